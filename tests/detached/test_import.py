"""`instep import determined`: from small dumps and servers, into databases that masters then serve. Takes 19 s."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Result, Runner

from . import determined_dump as dump
from .conftest import Master, started
from .postgres import running

Import = Callable[..., Result]


@pytest.fixture
def take_over(run: Runner, instep: Path, tmp_path: Path) -> Import:
    """Imports a dump, written from tables, into this test's database."""

    def take(tables: dump.Tables | str, *options: str) -> Result:
        path = tmp_path / "determined.sql"
        path.write_text(tables if isinstance(tables, str) else dump.written(tables))
        return run(instep, "import", "determined", "--dump", path, "--to", tmp_path / "master.db", *options)

    return take


@pytest.fixture
def master(
    run: Runner, instep: Path, tmp_path: Path, take_over: Import, wait_until: Callable[..., None]
) -> Iterator[Master]:
    """A master on a database into which the small cluster was imported."""
    take_over(dump.cluster()).expect(0)
    yield from started(Master(run.start, instep, tmp_path / "master.db", place=str(tmp_path / "master.db")), wait_until)


def summary(result: Result) -> Any:  # noqa: ANN401
    """The JSON that an import printed."""
    return json.loads(result.expect(0).stdout)


def test_a_cluster_is_found_again_with_its_ids(master: Master) -> None:
    api = master.client.login("ann")
    [experiment] = api("GET", "/api/v1/experiments")["experiments"]
    assert (experiment["id"], experiment["name"], experiment["state"]) == (11, "experiment 11", "STATE_COMPLETED")
    assert (experiment["labels"], experiment["notes"]) == (["x", "y"], "some notes")
    assert experiment["description"] == "a\tb\nc\\d"
    assert experiment["endTime"] == "2024-02-01T01:00:00.500Z"
    assert (experiment["projectName"], experiment["workspaceName"], experiment["username"]) == ("mnist", "lab", "ann")
    whole = api("GET", "/api/v1/experiments/11")["experiment"]
    assert whole["originalConfig"] == "name: experiment 11\n"
    assert whole["config"]["checkpoint_storage"]["host_path"] == "/data"
    code = api("GET", "/api/v1/experiments/11/model_def")["b64Tgz"]
    assert code == "H4tjb2Rl"

    trial = api("GET", "/api/v1/trials/21")["trial"]
    assert (trial["experimentId"], trial["state"], trial["hparams"]) == (11, "STATE_COMPLETED", {"lr": 0.1})
    assert (trial["taskId"], trial["totalBatchesProcessed"], trial["wallClockTime"]) == ("11.r", 30, 600)
    assert trial["bestValidation"]["metrics"]["avgMetrics"] == {"loss": 0.25}
    assert trial["metadata"] == {"k": "v"}
    reports = [
        report
        for line in api.lines("/api/v1/trials/metrics/training_metrics?trialIds=21")
        for report in line["metrics"]
    ]
    found = [(report["totalBatches"], report["metrics"]["avg_metrics"]) for report in reports]
    assert found == [
        (10, {"loss": 1.0, "bad": "NaN"}),
        (20, {"loss": 0.5, "bad": "NaN"}),
        (30, {"loss": 1 / 3, "bad": "NaN"}),
    ]
    [line] = api.lines("/api/v1/trials/21/logs")
    assert line["message"].endswith("hello\n")
    assert line["timestamp"] == "2024-02-01T00:00:01.500Z"


def test_what_belongs_to_experiments_is_found_again(master: Master) -> None:
    api = master.client.login("ann")
    uuid = "00000000-0000-4000-8000-000000000001"
    checkpoint = api("GET", f"/api/v1/checkpoints/{uuid}")["checkpoint"]
    assert (checkpoint["state"], checkpoint["training"]["trialId"]) == ("STATE_COMPLETED", 21)
    assert checkpoint["resources"] == {"model.pt": "5"}
    assert checkpoint["training"]["validationMetrics"]["avgMetrics"] == {"loss": 0.25}
    [model] = api("GET", "/api/v1/models")["models"]
    assert (model["id"], model["name"], model["labels"], model["metadata"]) == (5, "best", ["a", "b c"], {"m": 1})
    [version] = api("GET", "/api/v1/models/best/versions")["modelVersions"]
    assert (version["version"], version["comment"], version["checkpoint"]["uuid"]) == (1, "c", uuid)
    [template] = api("GET", "/api/v1/templates")["templates"]
    assert (template["name"], template["config"]) == ("small", {"resources": {"slots": 1}})
    [user] = [user for user in api("GET", "/api/v1/users")["users"] if user["username"] == "ann"]
    assert (user["id"], user["displayName"]) == (3, "Ann\\B")
    assert user["agentUserGroup"]["agentUid"] == 1003
    project = api("GET", "/api/v1/projects/2")["project"]
    assert (project["key"], project["notes"]) == ("MNI", [{"name": "n", "contents": "c"}])


def test_every_row_is_counted_and_a_second_import_changes_nothing(take_over: Import, tmp_path: Path) -> None:
    first = summary(take_over(dump.cluster(), "--json"))
    assert first["changed"] is True
    assert first["kept"] is None
    assert first["renumbered"] == {}
    tables = first["tables"]
    assert tables["users"]["taken_over"] == 3
    assert tables["raw_steps"] == {
        "taken_over": 3,
        "there_already": 0,
        "not_taken_over": {"not of a trial that is taken over": 1, "taken back by a later run of its trial": 1},
    }
    [(why, rows)] = tables["experiments"]["not_taken_over"].items()
    assert (rows, "--unfinished" in why) == (1, True)
    assert tables["webhooks"]["not_taken_over"] == {"make them again": 1}
    before = (tmp_path / "master.db").read_bytes()
    result = take_over(dump.cluster())
    assert "nothing to take over" in result.expect(0).stdout
    assert (tmp_path / "master.db").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir() if "import" in path.name) == []


def test_what_is_new_is_added_and_the_former_database_kept(take_over: Import, tmp_path: Path) -> None:
    first = summary(take_over(dump.cluster(), "--json"))
    again = summary(take_over(dump.cluster(), "--unfinished", "--json"))
    assert again["changed"] is True
    assert again["tables"]["experiments"] == {"taken_over": 1, "there_already": 1, "not_taken_over": {}}
    taken_back = {"taken back by a later run of its trial": 1}
    assert again["tables"]["raw_steps"] == {"taken_over": 1, "there_already": 3, "not_taken_over": taken_back}
    for table in ("allocations", "task_logs"):
        assert again["tables"][table]["there_already"] == first["tables"][table]["taken_over"] == 1
    kept = Path(again["kept"])
    assert kept.parent == tmp_path
    for path, ids in ((kept, [(11,)]), (tmp_path / "master.db", [(11,), (12,)])):
        assert sqlite3.connect(path).execute("SELECT id FROM experiments ORDER BY id").fetchall() == ids


def test_ids_that_are_taken_become_others(
    run: Runner, instep: Path, tmp_path: Path, take_over: Import, wait_until: Callable[..., None]
) -> None:
    server = Master(run.start, instep, tmp_path / "master.db", place=str(tmp_path / "master.db"))
    for _ in started(server, wait_until):
        api = server.client.login()
        for number in range(11):
            config = {"name": f"own {number}", "searcher": {"name": "single", "metric": "loss", "max_length": 1}}
            api("POST", "/api/v1/experiments", {"config": json.dumps(config), "unmanaged": True})
        busy = take_over(dump.cluster())
        assert busy.status == 1
        assert "is in use by another master" in busy.stderr
        assert "hint: stop the master first" in busy.stderr
    told = take_over(dump.cluster()).expect(0).stdout
    assert "1 experiment ids were taken here and became others: 11 is 13" in told
    for _ in started(server, wait_until):
        api = server.client.login()
        names = {each["id"]: each["name"] for each in api("GET", "/api/v1/experiments?limit=100")["experiments"]}
        assert (names[11], names[13]) == ("own 10", "experiment 11")
        assert api("GET", "/api/v1/trials/21")["trial"]["experimentId"] == 13


@pytest.mark.parametrize(
    "unix", [{"uid": 0}, {"gid": 0}, {"user_": "root"}, {"uid": -1}, {"gid": 1 << 32}, {"group_": "a:b"}]
)
def test_root_of_a_container_does_not_become_root_of_the_machine(
    take_over: Import, tmp_path: Path, unix: dict[str, Any]
) -> None:
    tables = dump.cluster()
    tables["agent_user_groups"][0] |= unix
    tables["workspaces"][1] |= {"uid": 1003, "user_": "ann", "gid": 50, "group_": "lab"} | unix
    told = take_over(tables).expect(0).stdout
    assert "tasks of 2 users and workspaces ran as root in containers" in told
    with sqlite3.connect(tmp_path / "master.db") as database:
        for table in ("users", "workspaces"):
            assert database.execute(f"SELECT count(agent_user_group) FROM {table}").fetchone() == (0,), table


def test_a_dry_run_changes_nothing(take_over: Import, tmp_path: Path) -> None:
    told = take_over(dump.cluster(), "--dry-run").expect(0).stdout
    assert "nothing was changed" in told
    assert not (tmp_path / "master.db").exists()


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        (
            dump.written({}, migration=20240101000000),
            "its last migration is 20240101000000",
            "start the master of Determined",
        ),
        (dump.written({}, migration=20300101000000), "knows 20241024164947", "a later version of instep"),
        (dump.written({"users": [{"id": "x"}]}), "column `id` of row 1 of the table `users`: `x` is not", "report it"),
        (dump.written({})[:-60], "ends in the middle of", "write the dump again"),
        (
            "COPY public.things (a) FROM stdin;\n1\n\\.\n-- PostgreSQL database dump complete\n",
            "not a database",
            "master.yaml",
        ),
        ("PGDMP\x01", "a dump in PostgreSQL's own format", "pg_restore -f"),
    ],
)
def test_what_cannot_be_imported_is_refused(take_over: Import, tmp_path: Path, text: str, what: str, hint: str) -> None:
    refused = take_over(text)
    assert refused.status == 1
    assert what in refused.stderr
    assert hint in refused.stderr.split("hint:")[1]
    assert not (tmp_path / "master.db").exists()


def test_an_address_without_a_server_is_refused_without_its_password(run: Runner, instep: Path, tmp_path: Path) -> None:
    address = "postgres://ann:secret@127.0.0.1:1/determined"
    refused = run(instep, "import", "determined", "--db", address, "--to", tmp_path / "master.db")
    assert refused.status == 1
    assert "cannot connect to PostgreSQL at ann@127.0.0.1:1/determined" in refused.stderr
    assert "secret" not in refused.stderr


def test_a_server_gives_what_its_dump_gives(run: Runner, instep: Path, take_over: Import, tmp_path: Path) -> None:
    expected = summary(take_over(dump.cluster(), "--json"))
    with running() as server:
        server.psql(dump.statements(dump.cluster()))
        grants = "GRANT SELECT ON ALL TABLES IN SCHEMA public TO locked"
        server.psql(f"CREATE USER locked PASSWORD 'right'; {grants}; REVOKE SELECT ON users FROM locked")
        target = tmp_path / "served.db"

        def take(address: str, **environment: str) -> Result:
            words = ("import", "determined", "--db", address, "--to", target, "--json")
            return run(instep, *words, env=environment)

        for address, what, hint in (
            ("locked:wrong@127.0.0.1:{}/determined", "password authentication failed", "check user and password"),
            ("locked@127.0.0.1:{}/determined", "password missing", "PGPASSWORD"),
            ("determined@127.0.0.1:{}/nowhere", 'database "nowhere" does not exist', "check the name of the database"),
            ("locked:right@127.0.0.1:{}/determined", "permission denied for table users", "may read every table"),
            ("determined@127.0.0.1:{}/postgres", "is not a database of Determined", "master.yaml"),
        ):
            refused = take("postgres://" + address.format(server.port))
            assert refused.status == 1
            assert what in refused.stderr
            assert hint in refused.stderr.split("hint:")[1]
            assert not target.exists()
        server.psql(grants)
        address = f"postgres://locked@127.0.0.1:{server.port}/determined"
        assert summary(take(address, PGPASSWORD="right"))["tables"] == expected["tables"]
        for table in ("experiments", "trials", "task_logs", "checkpoints", "model_versions", "users"):
            both = [
                sqlite3.connect(path).execute(f"SELECT * FROM {table}") for path in (target, tmp_path / "master.db")
            ]
            assert both[0].fetchall() == both[1].fetchall(), table


def test_a_full_disk_is_named_and_the_import_continues(run: Runner, instep: Path, tmp_path: Path) -> None:
    path, disk = tmp_path / "determined.sql", tmp_path / "disk"
    disk.mkdir()
    big = dump.experiment(11, model_definition=bytes(3_000_000))
    path.write_text(dump.written({**dump.cluster(), "experiments": [big]}))
    words = f"{instep} import determined --dump {path} --to {disk}/master.db"
    script = (
        f"mount -t tmpfs -o size=2m none {disk} && ! {words} 2>{tmp_path}/said && ! test -e {disk}/master.db && "
        f"mount -o remount,size=50m {disk} && {words}"
    )
    done = run("unshare", "--mount", "sh", "-c", script).expect(0)
    said = (tmp_path / "said").read_text()
    assert "database or disk is full" in said
    assert "hint: nothing was changed; make room on the disk" in said
    assert "took over from" in done.stdout
    assert "continuing an import that was stopped" in done.stderr
