"""What people are told of several masters: who leads, who could take over, and what is wrong with one that cannot."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from conftest import Result, Runner
from detached.postgres import Postgres
from ports import free_ports

from .conftest import Masters


class OtherServer(BaseHTTPRequestHandler):
    """Serves something, and is no master."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b"<html>no such page\nhint: none</html>")

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def another_server() -> Iterator[str]:
    """Give the address of a server that is no master."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), OtherServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_status_says_what_each_address_is(masters: Masters, run: Runner, instep: Path, tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": None}

    def status(*addresses: str) -> Result:
        return run(instep, "master", "status", "-m", ",".join(addresses), env=environment)

    def rows(*addresses: str) -> list[Any]:
        found = run(instep, "master", "status", "--json", "-m", ",".join(addresses), env=environment)
        parsed: list[Any] = json.loads(found.stdout)
        return parsed

    shared = ("--checkpoints", str(tmp_path))
    first, second = masters.start(*shared), masters.start(*shared)
    # Everybody sees everything without roles: it must not lead a cluster that has them, or had none.
    third = masters.start(*shared, "--roles", "--session-hours", "1")
    assert masters.leader() is first
    found = {row["address"]: row for row in rows(first.address, second.address, third.address)}
    assert [found[each.address]["role"] for each in (first, second, third)] == ["leader", "standby", "standby"]
    assert [found[each.address]["canTakeOver"] for each in (first, second, third)] == [None, True, False]
    said = "cannot take over: its settings differ from the leader's: roles, session_hours"
    assert found[third.address]["problem"] == said
    # Its log says it from the next look on.
    values = "roles is true, and the leader's false; session_hours is 1, and the leader's 168"
    masters.wait_until(lambda: values in third.process.stderr, 30, masters.told)
    assert said in status(third.address).expect(0).stdout

    with another_server() as other:
        shown = status(other, first.address).expect(0).stdout
        assert f"{other}" in shown and "no master" in shown and "status 404" in shown
        assert "hint" not in shown
        alone = status(other).expect(1)
        assert "no master answers at these addresses" in alone.stderr

    # A leader that nobody here reaches is not nobody: those who stand by have just heard of it.
    first.signal(signal.SIGSTOP)
    try:
        frozen = status(second.address)
        assert frozen.status == 0, frozen.stderr
        assert "unreachable" in frozen.stdout
        assert f"{second.address} says that {first.address} leads, which gives no answer from here" in frozen.stderr
    finally:
        first.signal(signal.SIGCONT)
    masters.leader()

    # Who is left may not lead.
    for member in (first, second):
        member.signal(signal.SIGTERM)
        member.process.wait().expect(0)
    masters.wait_until(lambda: third.health().get("code") == 503, 30, masters.told)
    nobody = status(third.address).expect(1)
    assert "no master leads" in nobody.stderr


def test_a_database_that_does_not_exist_is_an_error_and_not_waited_for(
    server: Postgres, run: Runner, instep: Path, tmp_path: Path
) -> None:
    port, tasks = free_ports(2)
    words = ["--port", str(port), "--proxy-port", str(tasks), "--advertise", f"http://127.0.0.1:{port}"]
    place = server.address.removesuffix("determined") + "no_such_database"
    environment = {"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
    refused = run(instep, "master", *words, "--db", place, env=environment).expect(1)
    assert 'database "no_such_database" does not exist' in refused.stderr
    assert "hint: make the database" in refused.stderr


def test_up_does_not_say_that_a_master_without_a_leader_is_up(run: Runner, instep: Path, tmp_path: Path) -> None:
    port, tasks, nobody = free_ports(3)
    place = f"postgres://determined@127.0.0.1:{nobody}/determined"
    words = ["--port", str(port), "--proxy-port", str(tasks), "--advertise", f"http://127.0.0.1:{port}", "--db", place]
    environment = {"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
    refused = run(instep, "up", *words, env=environment, timeout=60).expect(1)
    try:
        assert "is up" not in refused.stdout
        assert f"a master runs at http://127.0.0.1:{port} (pid " in refused.stderr
        assert "and none leads: cannot see who leads: " in refused.stderr
        assert "hint: it tries again until one does" in refused.stderr
    finally:
        run(instep, "down", "--db", place, env=environment).expect(0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", port))


def test_a_second_master_of_a_user_on_a_machine_is_told_what_it_needs(
    masters: Masters, run: Runner, instep: Path
) -> None:
    first = masters.start()
    port, tasks = free_ports(2)
    words = ["--port", str(port), "--proxy-port", str(tasks), "--advertise", f"http://127.0.0.1:{port}"]
    environment = {"XDG_DATA_HOME": str(masters.folder / first.name), "HOME": str(masters.folder)}
    refused = run(instep, "master", *words, "--db", masters.place, env=environment).expect(1)
    assert f"schema {masters.folder.name} is in use by another master here (pid {first.process.pid}" in refused.stderr
    assert f"which has its files in {masters.folder / first.name / 'instep'}" in refused.stderr
    assert "another folder for its files: set XDG_DATA_HOME" in refused.stderr
    target = masters.folder / "copy.db"
    refused = run(instep, "master", "copy", masters.place, target, env=environment).expect(1)
    assert "is in use by another master here" in refused.stderr
    assert not target.exists()
