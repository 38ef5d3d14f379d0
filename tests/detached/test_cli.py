"""The verbs of `instep` against a master: what they do, and word by word what people read.

Snapshots lie in tests/detached/snapshots, each a session at a shell; UPDATE_SNAPSHOTS=1 writes them anew.
"""

from __future__ import annotations

import difflib
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import stat
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Result, Runner

from .conftest import Client, Master
from .trial import finish, make_trial, report, save

SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = os.environ.get("UPDATE_SNAPSHOTS") == "1"
GROUPS = (
    "experiment",
    "trial",
    "checkpoint",
    "model",
    "workspace",
    "project",
    "user",
    "agent",
    "slot",
    "job",
    "resource-pool",
    "task",
    "template",
    "token",
    "resources",
    "config-policies",
)
CLUSTER = (
    "a list",
    "s list",
    "j list",
    "rp list",
    "task list",
    "tpl list",
    "token list",
    "resources raw 2026-01-01 2026-01-02",
)
SESSIONS = {"client-empty", "client-errors", "client-help", "client-tables"}


class Shell:
    """`instep` in a home of its own, and what was said so far."""

    def __init__(self, run: Runner, instep: Path, home: Path, master: str) -> None:
        self._run = run
        self.instep = instep
        self.home = home
        self.master = master
        self.said: list[str] = []
        unwanted = [name for name in os.environ if name.startswith(("DET_", "INSTEP_"))]
        self.environment: dict[str, str | None] = {
            **dict.fromkeys([*unwanted, "XDG_CONFIG_HOME", "COLUMNS"]),
            "HOME": str(home),
            "INSTEP_MASTER": master,
            "TZ": "UTC",
        }

    def __call__(self, words: str, status: int = 0) -> Result:
        """Run one command line, and remember it."""
        result = self._run(self.instep, *shlex.split(words), env=self.environment, cwd=self.home).expect(status)
        ending = f"[exit status {status}]\n" if status else ""
        self.said.append(f"$ instep {words}\n{result.stdout}{result.stderr}{ending}")
        return result

    def json(self, words: str) -> object:
        """What a command prints as JSON."""
        found: object = json.loads(self(f"{words} --json").stdout)
        return found

    def matches(self, name: str) -> None:
        """Compare all that was said with a snapshot."""
        __tracebackhide__ = True
        text = "\n".join(self.said).replace(self.master, "[MASTER]").replace(str(self.home), "[HOME]")
        for pattern, placeholder in (
            (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", f"[{'UUID':^34}]"),
            (r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", f"[{'TIME':^17}]"),
            (r"\[\d{4}-\d\d-\d\dT[\d:.]+Z\]", "[TIME]"),
            (r"\b\d+s\b", "0s"),
        ):
            text = re.sub(pattern, placeholder, text)
        path = SNAPSHOTS / f"{name}.txt"
        assert name in SESSIONS
        if UPDATE:
            SNAPSHOTS.mkdir(exist_ok=True)
            path.write_text(text)
        before = path.read_text() if path.exists() else ""
        if before != text:
            lines = difflib.unified_diff(before.splitlines(), text.splitlines(), "snapshot", "what came", lineterm="")
            pytest.fail("\n".join(lines) + "\nhint: if this is better than before: UPDATE_SNAPSHOTS=1", pytrace=False)


@pytest.fixture
def shell(run: Runner, instep: Path, tmp_path: Path, master: Master) -> Shell:
    home = tmp_path / "home"
    home.mkdir()
    return Shell(run, instep, home, master.address)


def test_every_snapshot_belongs_to_a_session() -> None:
    assert {path.stem for path in SNAPSHOTS.iterdir()} == SESSIONS


def test_empty_states_say_what_comes_next(shell: Shell) -> None:
    for words in ("e list", "e ls -a", "m list", "w list", "p list Uncategorized", "u list", *CLUSTER):
        shell(words)
    shell("w create lab")
    shell("p list lab")
    shell("p create lab thesis --description 'the last one'")
    shell("p list-experiments lab thesis")
    shell("m create digits --label small")
    shell("m list-versions digits")
    shell.matches("client-empty")


def test_tables(shell: Shell, api: Client, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    made = make_trial(api, "first", storage)
    uuid = save(api, made, storage, 20, {"state": "weights"})
    report(api, made, 10, loss=0.5, accuracy=1 / 3)
    report(api, made, 20, "validation", loss=0.25)
    lines = [
        {"task_id": made.task, "rank": rank, "log": f"line {rank}\n", "level": level}
        for rank, level in ((0, "LOG_LEVEL_INFO"), (1, "LOG_LEVEL_ERROR"))
    ]
    api("POST", "/task-logs", lines)
    finish(api, made)
    api("POST", "/api/v1/models", {"name": "digits"})
    api("POST", "/api/v1/models/digits/versions", {"checkpointUuid": uuid})
    for words in (
        "e list",
        "e describe 1",
        "e list-trials 1",
        "e metrics 1",
        "t metrics 1 --group validation -f",
        "e logs 1",
        "t logs 1 --level warning",
        "t logs 1 --rank 0 --tail 1",
        "t describe 1",
        "c list 1",
        "t list-checkpoints 1 --best 1",
        f"c describe {uuid}",
        "m list",
        "m describe digits",
        "whoami",
    ):
        shell(words)
    shell.said = [each.replace(str(tmp_path), "[TMP]") for each in shell.said]
    shell.matches("client-tables")
    assert shell("t logs 1 -f --search 'LINE [01]$' --regex").stdout == ""
    assert shell("t logs 1 --search 'line [0]' --regex").stdout.count("\n") == 1
    experiments = shell.json("e list --state completed --label none")
    assert experiments == []
    [experiment] = shell.json("experiment describe 1")  # type: ignore[misc]
    assert (experiment["id"], experiment["state"]) == (1, "STATE_COMPLETED")


def test_changes_and_files(shell: Shell, api: Client, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    made = make_trial(api, "first", storage)
    uuids = [save(api, made, storage, step, {"folder/state": "weights"}) for step in (1, 2, 3)]
    report(api, made, 1, loss=0.5)
    finish(api, made)
    shell("experiment label add 1 'two words'")
    shell("e label add 1 other")
    shell("e label remove 1 other")
    shell("e set name 1 renamed")
    shell("w create lab")
    shell("p create lab thesis")
    shell("e move 1 lab thesis")
    shell("e archive 1")
    experiment = api("GET", "/api/v1/experiments/1")["experiment"]
    found = [experiment[key] for key in ("name", "labels", "projectName", "archived")]
    assert found == ["renamed", ["two words"], "thesis", True]
    shell("e unarchive 1")
    assert shell(f"c download {uuids[0]}").stdout == f"checkpoints/{uuids[0]}\n"
    assert (shell.home / "checkpoints" / uuids[0] / "folder" / "state").read_text() == "weights"
    again = shell(f"c download {uuids[0]}", 1)
    assert "already exists" in again.stderr
    shell(f"c rm {uuids[0]} --glob 'folder/*' --yes")
    assert not (storage / uuids[0] / "folder").exists()
    shell(f"c delete {uuids[1]} --yes")
    assert not (storage / uuids[1]).exists()
    csv = shell("e export 1").stdout.splitlines()
    assert [line.split(",")[5:] for line in csv] == [["metric", "value"], ["loss", "0.5"]]
    shell("t export 1 --format jsonl -o metrics.jsonl")
    assert json.loads((shell.home / "metrics.jsonl").read_text())["metrics"] == {"loss": 0.5}
    shell("m create digits")
    shell(f"m register-version digits {uuids[2]}")
    assert "cannot be deleted" in shell("e delete 1 --yes", 1).stderr
    shell("m delete digits --yes")
    shell("e delete 1 --yes")
    assert list(storage.iterdir()) == []


def test_what_is_not_there_is_answered_with_where_to_look(shell: Shell) -> None:
    uuid = "00000000-0000-0000-0000-000000000000"
    for words, list_of in {
        "e archive 99": "experiment list",
        "e delete 99 --yes": "experiment list",
        "t metrics 77": "trial list",
        "t describe 77": "trial list",
        f"m register-version digitz {uuid}": "model list",
        "template describe base": "template list",
        f"c describe {uuid}": "checkpoint list",
        "agent enable nobody": "agent list",
        "agent token revoke nope": "agent token list",
        "user activate nobody": "user list",
    }.items():
        said = shell(words, 1).stderr
        assert "not found" in said and f"`instep {list_of}" in said.partition("hint: ")[2], said


def test_metrics_are_followed_to_the_end(
    shell: Shell, api: Client, run: Runner, instep: Path, wait_until: Callable[..., None]
) -> None:
    made = make_trial(api)
    report(api, made, 1, loss=0.5)
    shell("whoami")
    following = run.start(instep, "t", "metrics", "1", "-f", "--json", env=shell.environment)
    wait_until(lambda: "0.5" in following.stdout, 20, "the first point")
    report(api, made, 2, loss=0.25)
    report(api, made, 1, rate=1)
    wait_until(lambda: following.stdout.count("\n") == 3, 20, "what came later")
    finish(api, made)
    following.wait().expect(0)
    points = [json.loads(line) for line in following.stdout.splitlines()]
    assert sorted((point["step"], json.dumps(point["metrics"])) for point in points) == [
        (1, '{"loss": 0.5}'),
        (1, '{"rate": 1}'),
        (2, '{"loss": 0.25}'),
    ]


def test_metrics_that_are_no_numbers_are_printed(shell: Shell, api: Client) -> None:
    made = make_trial(api)
    report(api, made, 1, loss=1.0)
    report(api, made, 2, loss="abc")
    report(api, made, 3, loss=3.0, done=True)
    finish(api, made)
    lines = [line.split() for line in shell("t metrics 1 -f").stdout.splitlines()]
    assert sorted((line[1], sorted(line[3:])) for line in lines) == [
        ("1", ["loss=1"]),
        ("2", ["loss=abc"]),
        ("3", ["done=true", "loss=3"]),
    ]
    said = shell("t metrics 1")
    assert "not all values of done, loss are numbers" in said.stderr and "`instep trial metrics 1 -f`" in said.stderr


def test_a_detached_experiment_that_has_ended_needs_no_stop(shell: Shell, api: Client) -> None:
    made = make_trial(api)
    assert "runs elsewhere" in shell("e kill 1", 1).stderr
    assert "experiment 1 is running, not at its end" in shell("e archive 1", 1).stderr
    finish(api, made)
    for verb in ("kill", "cancel"):
        assert "experiment 1 has already ended (completed)" in shell(f"e {verb} 1").stderr
    said = shell("e pause 1", 1).stderr
    assert "experiment 1 has ended (completed)\nhint: start its script again" in said, said
    assert "hint: start its script again" in shell("e continue 1", 1).stderr


def test_sessions_are_kept_for_their_owner(shell: Shell, master: Master) -> None:
    admin = master.client.login("admin")
    user = {"user": {"username": "ann", "active": True}, "password": "Abcdefg1", "isHashed": False}
    admin("POST", "/api/v1/users", user)
    assert "determined" in shell("whoami").stdout
    kept = shell.home / ".config" / "instep" / "sessions.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    wrong = shell("login ann", 1)
    assert "wrong user or password" in wrong.stderr
    shell.environment |= {"INSTEP_USER": "ann", "INSTEP_PASSWORD": "Abcdefg1"}
    assert "ann" in shell("whoami").stdout
    shell.environment |= {"INSTEP_USER": None, "INSTEP_PASSWORD": None}
    token = json.loads(kept.read_text())["masters"][shell.master]["token"]
    assert "determined" in shell("logout").stderr
    assert Client(shell.master, token).raw("GET", "/api/v1/me")[0] == 401
    assert "not logged in" in shell("logout").stderr
    # A session that was opened by itself is opened again when it has ended; one of a person's is not.
    shell("whoami")
    sessions = json.loads(kept.read_text())
    sessions["masters"][shell.master]["token"] = "ended"
    kept.write_text(json.dumps(sessions))
    shell("whoami")
    sessions["masters"][shell.master]["automatic"] = False
    kept.write_text(json.dumps(sessions))
    assert "has ended" in shell("whoami", 1).stderr


def test_users_are_managed(shell: Shell, master: Master) -> None:
    token = master.client.login("admin").token
    folder = shell.home / ".config" / "instep"
    folder.mkdir(parents=True)
    session = {"masters": {shell.master: {"user": "admin", "token": token}}}
    (folder / "sessions.json").write_text(json.dumps(session))
    lost = shell("user create ann --display-name Ann", 1)
    assert lost.stderr.startswith("error: no password of ann was given: nothing was changed\nhint: "), lost
    assert "no password of admin was given" in shell("user change-password", 1).stderr
    master.client.login("admin")("POST", "/api/v1/users", {"user": {"username": "ann", "displayName": "Ann"}})
    audited = shell("master audit --user nobdy", 1)
    assert audited.stderr.count("hint: ") == 1, audited
    shell("user rename ann anna")
    shell("user edit anna --admin true")
    shell("user deactivate anna")
    users = {user["username"]: user for user in shell.json("user list -a")}  # type: ignore[attr-defined]
    assert (users["anna"]["admin"], users["anna"]["active"], users["anna"]["displayName"]) == (True, False, "Ann")
    shell("user activate anna")
    shell.environment["INSTEP_MASTER"] = None
    shell.environment["DET_MASTER"] = shell.master
    assert "admin" in shell("whoami").stdout


@pytest.mark.parametrize("key", [b"Abcdefg1\n", b"\x03"], ids=["answered", "interrupted"])
def test_a_password_is_not_shown_and_the_terminal_shows_again_what_is_typed(shell: Shell, key: bytes) -> None:
    ours, theirs = pty.openpty()
    asking = subprocess.Popen(
        [shell.instep, "login", "admin"],
        env={name: value for name, value in {**os.environ, **shell.environment}.items() if value is not None},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
    )
    said = b""
    while not said.endswith(b": "):
        said += os.read(ours, 1000)
    assert not termios.tcgetattr(theirs)[3] & termios.ECHO, "at once: a program may answer"
    os.write(ours, key)
    status = asking.wait(60)
    assert termios.tcgetattr(theirs)[3] & termios.ECHO
    said += os.read(ours, 1000)
    assert b"Abcdefg1" not in said
    assert status == (1 if key.endswith(b"\n") else -signal.SIGINT), said


def test_errors_say_what_to_do(shell: Shell) -> None:
    for words, status in (
        ("e describe 7", 1),
        ("t describe 7", 1),
        ("t logs 7", 1),
        ("e describe seven", 2),
        ("e list --state sleeping", 2),
        ("t logs 1 --level loud", 2),
        ("c describe x", 1),
        ("c list", 1),
        ("m describe nothing", 1),
        ("w describe nothing", 1),
        ("p describe Uncategorized nothing", 1),
        ("u create ann", 1),
        ("w delete Uncategorized --yes", 1),
        ("w create Uncategorized", 1),
        ("e delete 1", 1),
        ("-m http://127.0.0.1:1 e list", 1),
        ("e list -m http://127.0.0.1:1", 1),
        ("e list -m ftp://somewhere", 1),
    ):
        shell(words, status)
    (shell.home / ".config" / "instep" / "sessions.json").write_text("{")
    shell("e list", 1)
    shell.matches("client-errors")


def test_https_at_a_master_that_does_not_encrypt_is_named(shell: Shell) -> None:
    shell.environment["INSTEP_MASTER"] = shell.master.replace("http://", "https://")
    assert (
        "hint: if the master does not encrypt connections, its address begins with http://" in shell("e list", 1).stderr
    )


def test_help(shell: Shell) -> None:
    shell.environment["COLUMNS"] = "100"
    for words in (
        "login --help",
        *(f"{group} --help" for group in GROUPS),
        "e create --help",
        "e list --help",
        "t logs --help",
    ):
        shell(words)
    shell.matches("client-help")


def test_the_newest_is_meant_where_nobody_says_which(shell: Shell, api: Client, tmp_path: Path) -> None:
    for words in ("t logs", "t describe", "e describe", "c list"):
        assert "you have no " in shell(words, 1).stderr
    trials = [make_trial(api, name, tmp_path / "storage") for name in ("older", "newer")]
    for made in trials:
        finish(api, made)
    said = shell("trial logs -f")
    assert said.stderr == "trial 2 of experiment 2 (newer), your newest\nno log lines\n"
    assert "Trial:       2\n" in shell("t describe").stdout
    assert "newer" in shell("e describe").stdout
    for words in ("e config", "e lt", "e logs", "e wait", "e metrics", "t metrics", "t list", "t list-checkpoints"):
        assert "your newest" in shell(words).stderr, words
    assert "your newest" not in shell("t describe 1").stderr


def test_checkpoints_that_are_gone_are_not_listed(shell: Shell, api: Client, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    made = make_trial(api, "first", storage)
    first, second = (save(api, made, storage, step, {"state": "weights"}) for step in (1, 2))
    shell(f"c delete {first} --yes")
    for words in ("c list", "e lc 1", "t list-checkpoints 1", "c list --best 5"):
        listed = shell(words)
        assert second in listed.stdout and first not in listed.stdout, words
        assert "1 deleted or incomplete checkpoint not shown: include them with -a" in listed.stderr
        assert first in shell(f"{words} -a").stdout
    shell(f"c delete {second} --yes")
    nothing = shell("c list 1")
    assert (nothing.stdout, nothing.stderr.count("\n")) == ("", 1), nothing.stderr


def test_what_fingers_know_from_det_works(shell: Shell) -> None:
    master, shell.environment["INSTEP_MASTER"] = shell.master, None
    for words in ("e ls", "whoami", "user whoami", "task ls", "a ls", "j ls"):
        shell(f"-m {master} {words}")
    assert "determined" in shell(f"--master={master} u whoami").stdout
    shell(f"-m {master} user logout")
    assert "unknown option -m" in shell(f"-m {master} run x.py", 2).stderr
    for words in ("e unpause --help", "e lt --help", "e lc --help", "j u --help", "cmd set priority --help"):
        shell(words)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("rnu", "instep run"),
        ("exp ls", "instep experiment"),
        ("e lst", "instep e list"),
        ("trial log", "instep trial logs"),
        ("e label ad", "instep e label add"),
        ("master confg", "instep master config"),
        ("agent lsit", "instep agent list"),
        ("bench colectives", "instep bench collectives"),
    ],
)
def test_misspelt_commands_are_recognised(shell: Shell, words: str, meant: str) -> None:
    text = shell(words, 2).stderr
    assert text.startswith("error: instep") and text.endswith(f"hint: did you mean `{meant}`?\n"), text


def test_the_log_of_a_master_is_shown_to_administrators(shell: Shell) -> None:
    assert "INFO serving address=" in shell("master logs --tail 5").stdout
    lines = shell("master logs --json").stdout.splitlines()
    assert json.loads(lines[0])["level"] == "LOG_LEVEL_INFO"
    shell("master logs -f --tail 0", status=2)
