"""Running a master: up and down, settings, copies of the database, and what is said when it cannot start."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Result, Runner

from .conftest import Client, Master
from .test_wire import new_trial, report


class Operator:
    """Types commands, with folders of its own."""

    def __init__(self, run: Runner, instep: Path, folder: Path) -> None:
        self.run, self.instep, self.folder = run, instep, folder
        self.environment = {"XDG_DATA_HOME": str(folder / "data"), "XDG_CONFIG_HOME": str(folder / "config")}

    def __call__(self, *words: str | Path, **variables: str) -> Result:
        environment = {**self.environment, **variables}
        return self.run(self.instep, *words, env=environment, cwd=self.folder, timeout=60)


@pytest.fixture
def operator(run: Runner, instep: Path, tmp_path: Path) -> Iterator[Operator]:
    """Commands whose default database is the test's own; a master that is still up is taken down."""
    person = Operator(run, instep, tmp_path)
    yield person
    person("down").expect(0)


def address_in(text: str) -> str:
    """The address that a command printed."""
    found = re.search(r"http://127\.0\.0\.1:\d+", text)
    assert found, text
    return found[0]


def failed(result: Result, *parts: str) -> None:
    """The command failed, and said so with an error and a hint."""
    text = result.expect(1).stderr
    assert text.startswith("error: "), text
    assert "\nhint: " in text
    for part in parts:
        assert part in text, text


def test_up_starts_a_master_once_and_down_stops_it(operator: Operator) -> None:
    said = operator("up", "--port", "0").expect(0).stdout
    address = address_in(said)
    assert (operator.folder / "data/instep/master.log").exists()
    api = Client(address).login()
    trial = new_trial(api)

    again = operator("up").expect(0).stdout
    assert "already up" in again
    assert address_in(again) == address
    failed(operator("up", "--port", "1"), "already", address, "instep down")

    assert address in operator("down").expect(0).stdout
    with pytest.raises(OSError):
        api("GET", "/info")
    assert "no master" in operator("down").expect(0).stdout
    address = address_in(operator("up", "--port", "0").expect(0).stdout)
    assert Client(address, api.token)("GET", f"/api/v1/trials/{trial}")["trial"]["id"] == trial


def lent(address: str) -> int:
    """How many slots the agents of a master lend."""
    agents = Client(address).login()("GET", "/api/v1/agents")["agents"]
    return sum(len(agent["slots"]) for agent in agents)


def test_nobody_is_locked_out_by_programs_that_are_not_logged_in(operator: Operator) -> None:
    address = address_in(operator("up", "--port", "0", "--slots", "0").expect(0).stdout)
    as_admin = operator("whoami", "--master", address, INSTEP_USER="admin").expect(0).stdout
    assert "admin" in as_admin, "a name without a password is not ignored"
    administrator = Client(address).login("admin")
    for user in sorted(administrator("GET", "/api/v1/users")["users"], key=lambda user: bool(user["admin"])):
        administrator("PATCH", f"/api/v1/users/{user['id']}", {"password": "Correct-Horse-1"})
    operator("down").expect(0)
    (operator.folder / "config/instep/sessions.json").unlink(missing_ok=True)

    up = operator("up", "--port", "0", "--slots", "1").expect(0)
    assert "warning: no agent offers this machine's slots" in up.stderr, up
    assert "not logged in" in up.stderr and "`instep login USER` as an administrator" in up.stderr, up
    address = address_in(up.stdout)
    for _ in range(12):
        failed(operator("e", "list", "--master", address), "not logged in", "instep login USER")
    failed(operator("e", "list", "--master", address, INSTEP_USER="admin"), "wrong user or password", "INSTEP_PASSWORD")
    right = {"INSTEP_USER": "admin", "INSTEP_PASSWORD": "Correct-Horse-1"}
    operator("e", "list", "--master", address, **right).expect(0)
    assert "agent: offers 1 slot" in operator("up", "--slots", "1", **right).expect(0).stdout


def test_up_gives_a_master_that_is_up_the_slots_that_are_asked_for(
    operator: Operator, wait_until: Callable[..., None]
) -> None:
    address = address_in(operator("up", "--port", "0", "--slots", "1").expect(0).stdout)
    assert lent(address) == 1, "`up` returns when the slots are there"
    more = operator("up", "--slots", "4").expect(0).stdout
    assert "already up" in more
    assert "agent: offers 4 slots of this machine instead of 1 slot" in more
    assert lent(address) == 4
    assert "agent" not in operator("up", "--slots", "4").expect(0).stdout, "nothing is to be done"
    assert "agent" not in operator("up").expect(0).stdout, "nothing else is wanted"
    agent = json.loads(operator("up", "--json").expect(0).stdout)["agent"]
    assert (agent["connected"], agent["slots"], agent["gpus"]) == (True, 4, False)
    assert Path(agent["log"]).is_file()
    operator("up", "--slots", "0").expect(0)
    wait_until(lambda: lent(address) == 0, 20, "the end of the agent")


def test_a_second_agent_of_the_machine_needs_another_name(
    operator: Operator, wait_until: Callable[..., None], tmp_path: Path
) -> None:
    """Both have the machine's name, address and devices; neither may take the other's connection."""
    address = address_in(operator("up", "--port", "0", "--slots", "2").expect(0).stdout)
    wait_until(lambda: lent(address) == 2, 20, "the agent")
    options = ("--slots", "2", "--default-user", "root", "--state-folder", tmp_path / "second")
    failed(
        operator("agent", "--master", address, *options),
        "is connected already",
        "`instep up` has started one on its own machine",
        "--name",
    )
    said = operator("command", "run", "sleep 1; echo done", INSTEP_MASTER=address).expect(0).stdout
    assert "|| done\n" in said, said


def test_up_takes_no_slots_from_tasks_at_work(operator: Operator, wait_until: Callable[..., None]) -> None:
    address = address_in(operator("up", "--port", "0", "--slots", "2").expect(0).stdout)
    wait_until(lambda: lent(address) == 2, 20, "the agent")
    task = operator("command", "run", "-d", "sleep 600", INSTEP_MASTER=address).expect(0).stdout.strip()

    def state() -> object:
        return Client(address).login()("GET", f"/api/v1/commands/{task}")["command"]["state"]

    wait_until(lambda: state() == "STATE_RUNNING", 30, "the command to run")
    failed(operator("up", "--slots", "1"), "1 task is running", "instep down && instep up --slots 1")
    operator("up", "--slots", "3").expect(0)
    wait_until(lambda: lent(address) == 3, 20, "a further slot")
    assert state() == "STATE_RUNNING", "the next agent takes the task over"


def test_up_refuses_settings_that_do_not_apply(operator: Operator) -> None:
    words = ("--port", "0", "--slots", "0", "--session-hours", "5")
    address = address_in(operator("up", *words).expect(0).stdout)
    failed(
        operator("up", "--host", "0.0.0.0", "--slots", "2"),
        f"already serves this database, at {address}",
        "--host is 127.0.0.1, not 0.0.0.0",
        "instep down && instep up --host=0.0.0.0 --slots 2 (it also has --port 0 --session-hours 5: repeat what you",
    )
    failed(operator("up", "--preemption"), "--preemption is false, not true")
    failed(operator("up", INSTEP_MASTER_LOG_LEVEL="debug"), "--log-level is info, not debug")
    failed(operator("up", "--foreground"), "already", "instep down && instep up --foreground")
    assert "already up" in operator("up", "--host", "127.0.0.1", "--port", "0").expect(0).stdout


def two_ports() -> int:
    """Find two free ports side by side, and give the first: below those that the system hands out to others."""
    first = 20_000 + os.getpid() % 10_000
    for port in range(first, first + 2_000, 2):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):  # noqa: SIM117
            with socket.create_server(("127.0.0.1", port + 1)):
                return port
    pytest.fail("there are no two free ports side by side")


def test_the_pages_of_tasks_have_a_port_of_their_own(operator: Operator) -> None:
    """The next one, which people can guess; another if that is taken; the one that somebody wants, or an error."""

    def tasks(result: Result) -> str:
        found: str = json.loads(result.expect(0).stdout)["tasks_address"]
        return found

    own = two_ports()
    port = own + 1
    with socket.create_server(("127.0.0.1", 0)) as busy:
        taken = busy.getsockname()[1]
        words = ("--port", "0", "--proxy-port", str(taken))
        said = f"cannot listen on 127.0.0.1:{taken}, for the pages of tasks"
        failed(operator("up", *words), said, "choose another --proxy-port")
    same = ("--port", str(port), "--proxy-port", str(port))
    failed(operator("master", *same), f"the master's own port {port}", "--proxy-port")
    failed(operator("master", "--proxy-url", "example.org/x"), "`example.org/x` is not an address such as https://")
    wanted = tasks(operator("up", "--json", "--slots", "0", "--port", "0", "--proxy-port", str(port)))
    assert wanted == f"http://127.0.0.1:{port}"
    again = operator("up", "--slots", "0").expect(0).stdout
    assert f"\npages of tasks: {wanted}\n" in again
    failed(operator("up", "--proxy-port", "1"), f"--proxy-port is {port}, not 1")
    status, _, body = Client(wanted).raw("GET", "/api/v1/me")
    assert status == 404 and b"only the pages of tasks are served on this port" in body
    master = address_in(again)
    for words in (("whoami",), ("e", "list")):
        failed(operator(*words, "--master", wanted), "only the pages of tasks", f"hint: the master is at {master}")
    # Somebody who takes that port for another master's is told whose it is.
    taken = (
        f"cannot listen on 127.0.0.1:{port}: Address already in use: the master at {master} serves the pages of tasks"
    )
    failed(operator("up", "--db", "other.db", "--port", str(port)), taken)
    taken = f"Address already in use: a master serves there, at {master}\nhint: "
    failed(operator("up", "--db", "other.db", "--port", master.rpartition(":")[2]), taken)
    operator("down").expect(0)
    # Nobody says: the next port, and any other while that is taken.
    with socket.create_server(("127.0.0.1", own + 1)):
        other = tasks(operator("up", "--json", "--slots", "0", "--port", str(own)))
        assert other not in (f"http://127.0.0.1:{own + 1}", f"http://127.0.0.1:{own}")
    operator("down").expect(0)
    assert tasks(operator("up", "--json", "--slots", "0", "--port", str(own))) == f"http://127.0.0.1:{own + 1}"


def test_a_master_that_cannot_start_says_why(operator: Operator) -> None:
    folder = operator.folder
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        for command in ("master", "up"):
            failed(operator(command, "--port", port), f"cannot listen on 127.0.0.1:{port}", "choose another --port")
    (folder / "corrupt.db").write_bytes(b"this is no database at all; " * 100)
    (folder / "folder.db").mkdir()
    with sqlite3.connect(folder / "newer.db") as newer:
        newer.execute("CREATE TABLE schema_steps (number BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL)")
        newer.execute("INSERT INTO schema_steps VALUES (1000, 0)")
    newer.close()
    for command in ("master", "up"):
        failed(operator(command, "--db", "corrupt.db"), "corrupt.db is not a usable database", "restore")
        failed(operator(command, "--db", "newer.db"), "newer.db has schema 1000", "version of instep")
        failed(operator(command, "--db", "folder.db"), "folder.db")
        failed(operator(command, "--host", "no.such.host.invalid"), "no.such.host.invalid", "--host")
    assert (folder / "corrupt.db").read_bytes().startswith(b"this is no database")
    operator("up", "--port", "0").expect(0)
    failed(operator("master", "--port", "0"), "in use by another master (pid", ", at http://127.0.0.1:", "instep down")
    failed(operator("down", "--db", "no-such.db"), "there is no database no-such.db")


def test_settings_come_from_file_environment_and_options(operator: Operator) -> None:
    file = operator.folder / "config/instep/master.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("port: 1234\nhost: localhost\nallow_hosts: [gateway, proxy]\n")
    shown = operator("master", "config", "show", "--db", "x.db", INSTEP_MASTER_PORT="1235").expect(0).stdout
    rows = {line.split()[0]: re.split(r"\s{2,}", line)[1:] for line in shown.splitlines()}
    assert rows["host"] == ["localhost", str(file)]
    assert rows["port"] == ["1235", "INSTEP_MASTER_PORT"]
    assert rows["db"] == ["x.db", "--db"]
    assert rows["allow_hosts"] == ["gateway, proxy", str(file)]
    values = json.loads(operator("master", "config", "show", "--json").expect(0).stdout)
    assert values["port"] == {"value": "1234", "origin": str(file)}
    operator("master", "config", "check").expect(0)

    other = operator.folder / "other.yaml"
    other.write_text("prot: 1\n")
    for words in (("master", "config", "check"), ("master",), ("up",)):
        failed(operator(*words, "--config", other), f"unknown key `prot` in {other}", "did you mean `port`?")
    failed(operator("master", "config", "check", INSTEP_MASTER_PORT="x"), "INSTEP_MASTER_PORT: `x` is not a port")
    # `config show` would say the same again, and show nothing.
    failed(operator("master", "config", "show", INSTEP_MASTER_PORT="x"), "hint: `instep master --help` lists")
    failed(operator("master", "--config", "missing.yaml"), "missing.yaml")
    operator("master", "--port", "x").expect(2)
    file.unlink()


def test_a_backup_of_a_busy_master_can_be_restored(operator: Operator, master: Master) -> None:
    api = master.client.login()
    trial = new_trial(api)
    report(api, trial, 1, {"loss": 1.0})
    words = ("master", "--db", str(master.database))
    copy = operator.folder / "copy.db"
    assert "key" not in operator(*words, "backup", operator.folder / "early.db").expect(0).stderr
    api("PUT", "/api/v1/secrets/token", {"value": "hunter2"})
    key = master.database.with_name("master.db.secret-key")
    said = operator(*words, "backup", copy).expect(0).stderr
    assert "their key is not in the backup" in said
    assert f"hint: keep a copy of {key}" in said
    assert copy.stat().st_mode & 0o077 == 0
    failed(operator(*words, "backup", copy), "exists already")
    nowhere = operator.folder / "none" / "copy.db"
    failed(operator(*words, "backup", nowhere), "cannot write the backup", "choose a file in an existing")
    report(api, trial, 2, {"loss": 0.5})
    failed(operator(*words, "restore", copy, "--replace"), "in use by another master")
    master.stop()
    failed(operator(*words, "restore", copy), "exists already", "--replace")
    corrupt = operator.folder / "corrupt.db"
    corrupt.write_bytes(copy.read_bytes()[:5000] + b"x" * 3000)
    failed(operator(*words, "restore", corrupt, "--replace"), "corrupt.db is not a usable database")
    elsewhere = operator("master", "--db", operator.folder / "elsewhere.db", "restore", copy).expect(0).stderr
    assert "their key is missing" in elsewhere
    assert f"to {operator.folder / 'elsewhere.db.secret-key'}" in elsewhere
    restored = operator(*words, "restore", copy, "--replace").expect(0)
    said = restored.stdout
    assert f"{key} must be the key with which they were encrypted" in restored.stderr
    operator("up", *words[1:], "--port", "0").expect(0)
    (kept,) = [path for path in master.database.parent.iterdir() if re.search(r"replaced-\d+$", path.name)]
    assert str(kept) in said
    presence = operator("up", *words[1:]).expect(0).stdout
    api = Client(address_in(presence), api.token)
    path = f"/api/v1/trials/metrics/trial_metrics?trialIds={trial}&group=training"
    assert [row["totalBatches"] for element in api.lines(path) for row in element["metrics"]] == [1]
    operator("down", *words[1:]).expect(0)


def test_what_asks_a_master_takes_no_options_of_a_server(operator: Operator, master: Master) -> None:
    for command in ("audit", "logs"):
        for option in ("--port=1234", "--db=other.db", "--roles"):
            refused = operator("master", command, option, "--master", master.address)
            failed(refused, f"`{option}` means nothing to `instep master {command}`", "--master")
