"""A database is copied from a file to PostgreSQL and back, as an operator does it; killed on its way, and repeated."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Runner

from . import postgres
from .conftest import Master
from .postgres import Postgres
from .test_operations import Operator, failed, operator
from .test_postgres import steps
from .test_wire import new_trial, report

__all__ = ["operator"]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A PostgreSQL server for this file."""
    with postgres.running() as found:
        found.psql("CREATE USER locked PASSWORD 'right'; GRANT CREATE ON DATABASE determined TO locked;")
        yield found


@pytest.fixture
def filled(run: Runner, instep: Path, tmp_path: Path, wait_until: Callable[..., None]) -> Path:
    """A database file with a user, a password, metrics, a log and a secret, whose master has ended."""
    master = Master(run.start, instep, tmp_path / "file.db", place=str(tmp_path / "file.db"))
    master.start(wait_until)
    admin = master.client.login("admin")
    admin("POST", "/api/v1/users", {"user": {"username": "ann", "active": True}, "password": "Long-enough-1"})
    api = master.client.login("ann", "Long-enough-1")
    api("PUT", "/api/v1/secrets/token", {"value": "hunter2"})
    trial = new_trial(api)
    for step in range(1, 4):
        report(api, trial, step, {"loss": 1 / step})
    master.stop()
    return master.database


def tables(text: str) -> dict[str, Any]:
    """What a copy says of the tables, by their names."""
    return {each["table"]: each for each in json.loads(text)["tables"]}


def test_a_database_goes_to_postgresql_and_back_with_everything_in_it(
    operator: Operator, server: Postgres, filled: Path, run: Runner, instep: Path, wait_until: Callable[..., None]
) -> None:
    address = f"{server.address}?schema=both_ways"
    said = operator("master", "copy", filled, address).expect(0)
    assert "tables are the same on both sides" in said.stdout
    assert "users: 3 rows copied" in said.stderr
    assert "users: 3 rows compared" in said.stderr
    [key] = (operator.folder / "data/instep").glob("*.secret-key")
    assert key.read_bytes() == filled.with_name("file.db.secret-key").read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600
    assert "is a copy of" in operator("master", "copy", filled, address).expect(0).stdout

    back = operator.folder / "back.db"
    there = tables(operator("master", "copy", filled, address, "--json").expect(0).stdout)
    assert tables(operator("master", "copy", address, back, "--json").expect(0).stdout) == there
    assert there["users"]["rows"] == 3
    assert there["users"]["next_id"] == 4

    # A master works with the copy: with its users, passwords, metrics and ids.
    master = Master(run.start, instep, operator.folder / "copy.db", place=address)
    master.start(wait_until)
    api = master.client.login("ann", "Long-enough-1")
    assert steps(api, 1) == [1, 2, 3]
    assert new_trial(api) == 2
    failed(operator("master", "copy", address, operator.folder / "used.db"), "in use")
    failed(operator("master", "copy", filled, address), "in use")
    master.stop()
    failed(operator("master", "copy", filled, address), "holds another master's database already", "?schema=NAME")


def test_a_copy_that_was_killed_is_begun_anew_and_opens_for_nobody_before(
    operator: Operator, server: Postgres, filled: Path, run: Runner, wait_until: Callable[..., None]
) -> None:
    address = f"{server.address}?schema=killed"
    words = (operator.instep, "master", "copy", filled, address)
    copying = run.start(*words, env=operator.environment, cwd=operator.folder)
    wait_until(lambda: "rows copied" in copying.stderr or copying.poll() is not None, 30, "the copy to begin")
    copying.send_signal(signal.SIGKILL)
    copying.wait()
    if "tables are the same" not in copying.stdout:
        failed(operator("master", "--port", "0", "--db", address), "is an incomplete copy of", "instep master copy")
        failed(operator("master", "copy", address, "x.db"), "is an incomplete copy of")
        assert "beginning anew" in operator(*words[1:]).expect(0).stderr
    assert "is a copy of" in operator(*words[1:]).expect(0).stdout

    # The mark counts in a file as well.
    copy = operator.folder / "copy.db"
    operator("master", "copy", address, copy).expect(0)
    with sqlite3.connect(copy) as marked:
        marked.execute("CREATE TABLE incomplete_copy (original TEXT NOT NULL)")
        marked.execute("INSERT INTO incomplete_copy VALUES ('elsewhere')")
    failed(operator("master", "--port", "0", "--db", copy), "copy.db is an incomplete copy of elsewhere")
    failed(operator("master", "--db", copy, "backup", "b.db"), "is an incomplete copy of elsewhere")
    assert "beginning anew" in operator("master", "copy", address, copy).expect(0).stderr


def test_what_cannot_be_copied_is_refused_with_the_reason_and_no_password(
    operator: Operator, server: Postgres, filled: Path
) -> None:
    place = f"127.0.0.1:{server.port}/determined"
    address = f"postgres://locked@{place}?schema=refused"
    failed(operator("master", "copy", "none.db", address), "none.db")
    failed(operator("master", "copy", f"{server.address}?schema=nowhere", "x.db"), "no master's database", "schema")
    failed(operator("master", "copy", filled, filled), "both what is copied and what it is copied to")
    same = operator("master", "copy", filled, address, PGPASSWORD="right").expect(0)
    by_socket = f"postgres://locked@{server.sockets.replace('/', '%2F')}:{server.port}/determined?schema=refused"
    failed(operator("master", "copy", address, by_socket, PGPASSWORD="right"), "both what is copied")
    failed(operator("master", "copy", filled, address), "password")
    failed(operator("master", "copy", filled, f"postgres://locked:s3cret@{place}"), "--to-password-file")
    password = operator.folder / "password"
    password.write_text("right\n")
    password.chmod(0o600)
    shown = operator("master", "copy", address, "back.db", "--from-password-file", password).expect(0)
    assert "right" not in same.stdout + same.stderr + shown.stdout + shown.stderr
    failed(operator("master", "--db", "x.db", "copy", filled, address), "means nothing")
    with sqlite3.connect(operator.folder / "older.db") as older:
        with sqlite3.connect(filled) as database:
            database.backup(older)
        older.execute("DELETE FROM schema_steps WHERE number = (SELECT MAX(number) FROM schema_steps)")
    failed(operator("master", "copy", "older.db", "y.db"), "has schema", "start `instep master` of this version")
    assert not (operator.folder / "y.db").exists()
    # Another key lies where that of the secrets is to be.
    (operator.folder / "z.db.secret-key").write_bytes(bytes(32))
    failed(operator("master", "copy", filled, "z.db"), "is the key of other secrets")


@pytest.mark.soak
def test_copies_killed_at_any_moment_end_whole(operator: Operator, server: Postgres, filled: Path, run: Runner) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    address = f"{server.address}?schema=often"
    expected = tables(operator("master", "copy", filled, address, "--json").expect(0).stdout)
    for turn in range(20):
        targets = (f"{server.address}?schema=often_{turn}", operator.folder / f"often_{turn}.db")
        for source, target in zip((filled, address), targets, strict=True):
            words = ("master", "copy", source, target, "--json")
            for _ in range(3):
                copying = run.start(operator.instep, *words, env=operator.environment, cwd=operator.folder)
                # What is tested is the moment itself, and not something that happens at it.
                time.sleep(chance.uniform(0, 1.0))
                copying.send_signal(signal.SIGKILL)
                copying.wait()
            assert tables(operator(*words).expect(0).stdout) == expected
