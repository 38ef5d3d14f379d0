"""`instep import determined` on a database with Determined's own schema: 1,000 experiments, 1,000,000 reports.

The schema is made by Determined's own migrations, which are not ours to keep: INSTEP_DETERMINED_SOURCE names a folder
with a copy of its repository at 0.38.1. PostgreSQL is started by the test, on a folder and a port of its own. Takes 5
minutes.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Result, Runner

from .conftest import Master, started
from .postgres import Postgres, running

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

SOURCE = os.environ.get("INSTEP_DETERMINED_SOURCE")
SCRIPTS = Path(__file__).parent / "scripts"
FILL = Path(__file__).with_name("determined_fill.sql")
PASSWORD = "Secret-1"
CLUSTER = "8d3c1f0a-0000-4000-8000-00000000de70"
EXPERIMENTS = 1000
TRIALS = 2 * EXPERIMENTS
# Training reports of a trial. Each tenth step is validated, each twentieth has a group of its own: 1,000,000 in all.
STEPS = 436
LINES = 50_000
# The seconds that an import may take.
LIMIT_S = 120.0
KILLS = 10


def migrations(source: Path) -> str:
    """Determined's migrations and views as one script, as its master runs them."""
    static = source / "master" / "static"
    parts = ["CREATE TABLE gopg_migrations (id serial, version bigint, created_at timestamptz);"]
    for path in sorted((static / "migrations").glob("*.up.sql")):
        text = path.read_text()
        parts.append(f"BEGIN;\n{text}\n;COMMIT;" if path.name.endswith(".tx.up.sql") else f"{text}\n;")
        parts.append(f"INSERT INTO gopg_migrations (version) VALUES ({path.name.split('_')[0]});")
    parts += [path.read_text() + "\n;" for path in sorted((static / "views_and_triggers" / "up").glob("*.sql"))]
    return "\n".join(parts)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server with a database of Determined, filled."""
    if SOURCE is None:
        pytest.skip("INSTEP_DETERMINED_SOURCE does not name a copy of Determined's repository at 0.38.1")
    with running() as server:
        server.psql(migrations(Path(SOURCE)))
        numbers = {"users": 20, "workspaces": 10, "projects": 30, "models": 20, "lines": LINES}
        numbers |= {"experiments": EXPERIMENTS, "trials": TRIALS, "steps": STEPS}
        # What Determined's client sends for a password, as far as bcrypt looks at it.
        sent = hashlib.sha512(b"GubPEmmotfiK9TMD6Zdw" + PASSWORD.encode()).hexdigest()[:72]
        variables: dict[str, object] = {**numbers, "cluster": CLUSTER, "password": sent}
        words = (word for name, value in variables.items() for word in ("-v", f"{name}={value}"))
        server.psql(FILL.read_text(), *words)
        yield server


def rows(server: Postgres, table: str, condition: str = "true") -> int:
    """How many rows a table of Determined has."""
    return int(server.psql(f"SELECT count(*) FROM {table} WHERE {condition}"))


def content(database: Path) -> dict[str, Any]:
    """What a master's database holds, but for when and as what it was made."""
    connection = sqlite3.connect(database)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    # Ids of rows that nobody names differ where work was done in other parts.
    internal = {"metric_tail", "metric_series", "metric_chunks", "metric_outlines", "schema_steps", "lease", "settings"}
    found: dict[str, Any] = {}
    for table in sorted(set(tables) - internal):
        digest = hashlib.sha256()
        names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
        # Times at which the import itself ran.
        names = [
            name for name in names if (table, name) not in {("templates", "created_at"), ("user_groups", "created_at")}
        ]
        for row in connection.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY {', '.join(names)}"):
            if table in ("users", "workspaces", "projects") and "Uncategorized" in row:
                continue
            digest.update(repr(row).encode())
        [(count,)] = connection.execute(f"SELECT count(*) FROM {table}")
        found[table] = (count, digest.hexdigest())
    series = "SELECT trial_id, group_name, name, roll_up FROM metric_series ORDER BY 1, 2, 3"
    found["series"] = hashlib.sha256(repr(connection.execute(series).fetchall()).encode()).hexdigest()
    chunks = (
        "SELECT trial_id, group_name, name, number, points, first_step, last_step FROM metric_chunks "
        "JOIN metric_series ON id = series_id ORDER BY 1, 2, 3, 4"
    )
    found["chunks"] = hashlib.sha256(repr(connection.execute(chunks).fetchall()).encode()).hexdigest()
    return found


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Where results of one test are kept for the next."""
    return {"folder": tmp_path_factory.mktemp("imported")}


def take_over(run: Runner, instep: Path, postgres: Postgres, target: Path, *options: str) -> Result:
    command = (instep, "import", "determined", "--db", postgres.address, "--to", target, "--unfinished", "--json")
    return run(*command, *options, timeout=600)


def test_counts_and_values_are_equal_through_determineds_client(
    run: Runner,
    instep: Path,
    determined: Path,
    postgres: Postgres,
    imported: dict[str, Any],
    wait_until: Callable[..., None],
) -> None:
    target = imported["folder"] / "master.db"
    before = time.monotonic()
    summary = json.loads(take_over(run, instep, postgres, target).expect(0).stdout)
    seconds = time.monotonic() - before
    reports = sum(
        summary["tables"][table]["taken_over"] for table in ("raw_steps", "raw_validations", "generic_metrics")
    )
    print(f"{reports} reports, {EXPERIMENTS} experiments: {seconds:.1f} s, {target.stat().st_size >> 20} MiB")
    assert reports == rows(postgres, "metrics", "NOT archived AND partition_type <> 'PROFILING'") >= 1_000_000
    for table in ("experiments", "runs", "checkpoints_v2", "models", "model_versions", "allocations", "users"):
        tally = summary["tables"][table]
        assert tally["taken_over"] + tally["there_already"] == rows(postgres, table), table
    assert summary["tables"]["task_logs"]["taken_over"] == LINES
    assert seconds <= LIMIT_S
    imported["content"] = content(target)
    again = json.loads(take_over(run, instep, postgres, target).expect(0).stdout)
    assert again["changed"] is False
    assert content(target) == imported["content"]
    served = imported["folder"] / "served.db"
    shutil.copy(target, served)
    server = Master(run.start, instep, served)
    for _ in started(server, wait_until):
        environment = {"DET_MASTER": server.address, "HOME": str(imported["folder"])}
        numbers = json.dumps({"experiments": EXPERIMENTS, "trials": TRIALS, "steps": STEPS, "lines": LINES})
        words = (determined, SCRIPTS / "imported.py", numbers, PASSWORD)
        run(*words, env=environment, timeout=300).expect(0)


def test_an_import_that_is_killed_and_repeated_has_the_same_result(
    run: Runner, instep: Path, postgres: Postgres, imported: dict[str, Any], tmp_path: Path
) -> None:
    target = tmp_path / "master.db"
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    command = (instep, "import", "determined", "--db", postgres.address, "--to", target, "--unfinished", "--json")
    killed = 0
    while killed < KILLS:
        process = run.start(*command)
        deadline = time.monotonic() + moments.uniform(0.2, 6.0)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if process.poll() is not None:
            # It came to its end in between: once more from the start.
            process.wait().expect(0)
            target.unlink()
            continue
        process.kill_tree()
        killed += 1
        assert not target.exists(), "nothing is there before all is"
    take_over(run, instep, postgres, target).expect(0)
    assert content(target) == imported["content"]


def test_a_dump_has_the_same_result(
    run: Runner, instep: Path, postgres: Postgres, imported: dict[str, Any], tmp_path: Path
) -> None:
    dump = tmp_path / "determined.sql"
    postgres.dump(dump)
    target = tmp_path / "master.db"
    done = run(instep, "import", "determined", "--dump", dump, "--to", target, "--unfinished", timeout=600).expect(0)
    assert done.seconds <= LIMIT_S
    assert content(target) == imported["content"]
