"""A master whose database is in PostgreSQL: it is killed, the server restarted, and what was acknowledged is there."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Runner

from . import postgres
from .conftest import Client, Master
from .postgres import Postgres
from .test_operations import Operator, failed, operator
from .test_wire import new_trial, report

__all__ = ["operator"]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A PostgreSQL server for this file."""
    with postgres.running() as found:
        found.psql("CREATE USER locked PASSWORD 'right'; GRANT CREATE ON DATABASE determined TO locked;")
        yield found


def steps(api: Client, trial: int) -> list[int]:
    """The steps of a trial's training metrics."""
    found = api("GET", f"/api/v1/trials/{trial}/workloads?limit=-1")["workloads"]
    return [int(each["training"]["totalBatches"]) for each in found]


def test_nothing_acknowledged_is_lost_with_the_master_or_the_server(
    run: Runner, instep: Path, tmp_path: Path, server: Postgres, wait_until: Callable[..., None]
) -> None:
    master = Master(run.start, instep, tmp_path / "master.db", server.address)
    master.start(wait_until)
    api = master.client.login()
    admin = master.client.login("admin")
    admin("POST", "/api/v1/users", {"user": {"username": "ann", "active": True}, "password": "Long-enough-1"})
    trial = new_trial(api)
    report(api, trial, 1, {"loss": 0.5})

    master.kill()
    master.start(wait_until)
    assert master.client.login("ann", "Long-enough-1")("GET", "/api/v1/me")["user"]["username"] == "ann"
    report(api, trial, 2, {"loss": 0.25})
    assert steps(api, trial) == [1, 2]

    server.restart()
    # The first that meets the lost session connects again; nobody is told about it.
    report(api, trial, 3, {"loss": 0.125})
    assert steps(api, trial) == [1, 2, 3]
    assert api("GET", "/health")["status"] == "up"

    master.stop()


def test_a_master_that_cannot_have_its_database_says_why_and_never_the_password(
    operator: Operator, server: Postgres, tmp_path: Path
) -> None:
    place = f"127.0.0.1:{server.port}"
    password = tmp_path / "password"
    password.write_text("wrong\n")
    password.chmod(0o600)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"postgres://ann@127.0.0.1:{free.getsockname()[1]}/x"
    failed(operator("master", "--db", nobody), "refused")
    failed(operator("master", "--db", f"postgres://determined@{place}/nowhere"), "nowhere", "createdb")
    failed(operator("master", "--db", f"postgres://ann@{place}"), "names no database")
    locked = f"postgres://locked@{place}/determined"
    failed(operator("master", "--db", locked), "password missing", "--db-password-file")
    failed(operator("master", "--db", locked, "--db-password-file", password), "password authentication failed")
    failed(operator("master", "--db", f"postgres://locked:s3cret@{place}/determined"), "list of processes")
    for wrong in (f"postgres://locked:a?s3cret@{place}/x", f"postgresql+psycopg2://locked:s3cret@{place}/x"):
        refused = operator("master", INSTEP_MASTER_DB=wrong)
        failed(refused, "postgresql" if "+" in wrong else "%3F")
        assert "s3cret" not in refused.stdout + refused.stderr
    password.chmod(0o644)
    failed(operator("master", "--db", locked, "--db-password-file", password), "chmod 600")
    failed(operator("master", "backup", "copy.db", "--db", server.address), "pg_dump")
    failed(operator("master", "restore", "copy.db", "--db", server.address), "pg_restore")

    shown = operator("master", "config", "show", INSTEP_MASTER_DB=f"postgres://locked:s3cret@{place}/determined")
    text = shown.expect(0).stdout
    assert "s3cret" not in text
    assert "locked:********@" in text


def test_up_and_down_find_the_master_of_a_database_on_a_server(
    operator: Operator, server: Postgres, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("right\n")
    password.chmod(0o600)
    place = f"postgres://locked@127.0.0.1:{server.port}/determined?schema=up"
    settings = ("--db", place, "--db-password-file", str(password))
    said = operator("up", "--port", "0", "--slots", "0", *settings).expect(0).stdout
    assert "database: locked@127.0.0.1" in said
    assert "schema up" in said
    found = [file for file in (tmp_path / "data/instep").iterdir() if "right" in file.read_text(errors="replace")]
    assert not found, "the password is in no file of ours"
    # Another machine's master would have other files here; the server keeps it out, also on another way to it.
    elsewhere = {"XDG_DATA_HOME": str(tmp_path / "elsewhere")}
    socket_folder = server.sockets.replace("/", "%2F")
    by_socket = f"postgres://locked@{socket_folder}:{server.port}/determined?schema=up"
    for named in (settings, ("--db", by_socket)):
        failed(operator("master", "--port", "0", *named, **elsewhere), "in use by another master", "where it runs")
    assert "already up" in operator("up", "--slots", "0", *settings).expect(0).stdout
    assert "stopped the master" in operator("down", *settings).expect(0).stdout
    assert os.fspath(password) not in said
