"""What comes out of a run: workers' output whole and in order, the status line, summaries, dry runs, completion."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from conftest import Runner, Running, WaitUntil

SCRIPTS = Path(__file__).resolve().parent / "scripts"
COLUMNS = 100
# An unfinished line is shown within this time.
PROMPT_WITHIN_S = 0.5
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Shell:
    """Starts `instep run` with its output going wherever a user may send it."""

    def __init__(self, instep: Path, python: Path, folder: Path, run: Runner, wait_until: WaitUntil) -> None:
        self.instep = instep
        self.folder = folder
        self.environment: dict[str, str | None] = {
            "VIRTUAL_ENV": str(python.parent.parent),
            "PYTHON_EXEC": None,
            "OMP_NUM_THREADS": "1",
            "COLUMNS": None,
        }
        self._run = run
        self._wait_until = wait_until

    def words(self, options: str, script: str, *arguments: str) -> list[str]:
        return [str(self.instep), "run", *shlex.split(options), str(SCRIPTS / script), str(self.folder), *arguments]

    def start(self, options: str, script: str, *arguments: str) -> Running:
        return self._run.start(*self.words(options, script, *arguments), env=self.environment)

    def redirected(self, redirection: str, options: str, script: str, *arguments: str) -> Running:
        """Start it as `instep run ... REDIRECTION`."""
        line = f'"$@" {redirection}'
        words = self.words(options, script, *arguments)
        return self._run.start("bash", "-c", f"set -o pipefail; {line}", "bash", *words, env=self.environment)

    def wait_for(self, name: str) -> None:
        self._wait_until((self.folder / name).exists, 20, name)

    def go(self) -> None:
        """Let the workers go on that wait for it."""
        (self.folder / "go").touch()


@pytest.fixture
def shell(instep: Path, python: Path, tmp_path: Path, run: Runner, wait_until: WaitUntil) -> Shell:
    return Shell(instep, python, tmp_path, run, wait_until)


class Terminal:
    """A command on a pseudo-terminal, and what a person sees on it."""

    def __init__(self, words: list[str], environment: dict[str, str | None]) -> None:
        merged: dict[str, str | None] = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": None, **environment}
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            words,
            env={name: value for name, value in merged.items() if value is not None},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._received = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # The end of a pseudo-terminal is an error.
        with contextlib.suppress(OSError):
            while chunk := os.read(self._master, 65536):
                self._received += chunk

    @property
    def received(self) -> str:
        """Every byte so far."""
        return self._received.decode(errors="replace")

    def screen(self) -> list[str]:
        """The lines as they look now, without colours."""
        lines = [""]
        column = 0
        for token in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|.", COLOUR.sub("", self.received), re.DOTALL):
            if token == "\r":
                column = 0
            elif token == "\n":
                lines.append("")
            elif token == "\x1b[K":
                lines[-1] = lines[-1][:column]
            else:
                assert not token.startswith("\x1b"), f"unknown sequence {token!r}"
                lines[-1] = lines[-1][:column].ljust(column) + token + lines[-1][column + 1 :]
                column += 1
        return [line.rstrip() for line in lines]

    def wait(self, timeout: float = 20) -> int:
        status = self.process.wait(timeout)
        self._reader.join(5)
        return status

    def close(self) -> None:
        # The launcher's guardian ends everything else.
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        os.close(self._master)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for terminal in started:
        terminal.close()


def test_lines_of_eight_workers_stay_whole(shell: Shell) -> None:
    console = shell.folder / "console"
    shell.redirected(f"> {shlex.quote(str(console))}", "--nproc-per-node 8", "talk.py", "lines", "1000").wait().expect(
        0
    )
    lines = console.read_text().splitlines()
    torn = [line for line in lines if len(line) != 3000 or not re.fullmatch(r"rank (\d) line \d+ \1+", line)]
    assert not torn, [(len(line), re.findall(r"rank \d line \d+", line)) for line in torn[:10]]
    for rank in range(8):
        numbers = [int(line.split()[3]) for line in lines if line.startswith(f"rank {rank} ")]
        assert numbers == list(range(1000))


def test_order_of_both_streams_is_kept_in_one_pipe(shell: Shell) -> None:
    shown = shell.redirected("2>&1", "", "talk.py", "both", "2000").wait().expect(0)
    assert shown.stdout.splitlines() == [f"{number} {name}" for number in range(2000) for name in ("out", "err")]


def test_streams_stay_apart_in_two_pipes(shell: Shell) -> None:
    shown = shell.start("", "talk.py", "both", "2000").wait().expect(0)
    assert shown.stdout.splitlines() == [f"{number} out" for number in range(2000)]
    assert shown.stderr.splitlines() == [f"{number} err" for number in range(2000)]


@pytest.mark.parametrize(
    ("mode", "first", "all_of_it"),
    [
        ("prompt", "name? ", "name? instep\n"),
        ("progress", "step 1/4\rstep 2/4\r", "step 1/4\rstep 2/4\rstep 3/4\rstep 4/4\n"),
    ],
)
def test_unfinished_line_appears_at_once(
    shell: Shell, wait_until: WaitUntil, mode: str, first: str, all_of_it: str
) -> None:
    console = shell.folder / "console"
    job = shell.redirected(f"> {shlex.quote(str(console))}", "", "talk.py", mode)
    shell.wait_for("0.written")
    wait_until(lambda: console.read_bytes().decode() == first, PROMPT_WITHIN_S, lambda: f"{console.read_bytes()!r}")
    shell.go()
    job.wait().expect(0)
    assert console.read_bytes().decode() == all_of_it


def test_last_line_without_an_end_is_not_lost(shell: Shell) -> None:
    script = shell.folder / "unfinished.py"
    script.write_text("import sys; sys.stdout.write('no line end'); sys.stderr.write('nor here')\n")
    shown = shell.start("", str(script)).wait().expect(0)
    assert (shown.stdout, shown.stderr) == ("no line end", "nor here")


def test_two_hundred_megabytes_pass_without_loss(shell: Shell) -> None:
    lines = 1_000_000
    shown = shell.redirected("| wc --lines --bytes", "--nproc-per-node 2", "talk.py", "flood", str(lines)).wait()
    assert [int(word) for word in shown.expect(0).stdout.split()] == [2 * lines, 2 * lines * 100]


def test_tee_prefixes_every_line(shell: Shell) -> None:
    logs = shell.folder / "logs"
    options = f"--nproc-per-node 2 --tee 3 --log-dir {logs}"
    shown = shell.start(options, "puppet.py", "say one", "say two", "complain three").wait().expect(0)
    for rank in range(2):
        said = [line for line in shown.stdout.splitlines() if line.startswith(f"[default{rank}]:")]
        assert said == [f"[default{rank}]:one", f"[default{rank}]:two"]
        [log] = logs.glob(f"*/attempt_0/{rank}/stdout.log")
        assert log.read_text() == "one\ntwo\n"
    assert sorted(shown.stderr.splitlines()) == ["[default0]:three", "[default1]:three"]


def test_tee_prefix_follows_its_template(shell: Shell) -> None:
    options = ["--tee", "1", "--role", "trainer", "--log-line-prefix-template", "${role_name}/${rank} "]
    shown = shell.start(shlex.join(options), "puppet.py", "say one").wait().expect(0)
    assert shown.stdout == "trainer/0 one\n"


def test_fold_shows_what_all_say_once(shell: Shell) -> None:
    said = [f"say epoch {number}" for number in range(20)]
    steps = ("ready", "await 4", *said, "2: say only me")
    shown = shell.start("--fold --nproc-per-node 4", "puppet.py", *steps).wait().expect(0)
    lines = [re.fullmatch(r"\[ranks? ([\d,-]+)\] (.*)", line) for line in shown.stdout.splitlines()]
    assert all(lines), shown
    entries = [(ranks_of(line[1]), line[2]) for line in lines if line]
    # Under load a rank may miss the moment in which lines are compared; nothing is lost or doubled then.
    for number in range(20):
        assert sorted(r for ranks, text in entries if text == f"epoch {number}" for r in ranks) == [0, 1, 2, 3], shown
    assert ([2], "only me") in entries, shown
    assert sum(len(ranks) > 1 for ranks, _ in entries) > 0, shown


def ranks_of(text: str) -> list[int]:
    """`0,2-3` as a list."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def test_workers_on_a_terminal_see_a_terminal(shell: Shell, terminals: list[Terminal]) -> None:
    terminal = Terminal(shell.words("--nproc-per-node 2", "talk.py", "terminal"), shell.environment)
    terminals.append(terminal)
    assert terminal.wait() == 0, terminal.received
    expected = [f"rank {rank} terminals [True, True] {COLUMNS}" for rank in range(2)]
    assert sorted(line for line in terminal.screen() if line) == expected


def test_workers_off_a_terminal_see_none(shell: Shell) -> None:
    shown = shell.start("", "talk.py", "terminal").wait().expect(0)
    assert shown.stdout == "rank 0 terminals [False, False] 80\n"


def test_status_line_appears_on_a_terminal_and_is_gone_at_the_end(
    shell: Shell, terminals: list[Terminal], wait_until: WaitUntil
) -> None:
    words = shell.words("--nproc-per-node 2", "puppet.py", "0: say before", "ready", "see go", "0: say after")
    terminal = Terminal(words, shell.environment)
    terminals.append(terminal)
    shell.wait_for("0.0.ready")
    shell.wait_for("0.1.ready")

    # The status line may be there before what the worker said has come through its terminal.
    def status_is_below_the_output() -> bool:
        *above, last = terminal.screen()
        return above == ["before"] and last.startswith("running · 2 workers · 1 node · up ")

    wait_until(status_is_below_the_output, 5, lambda: f"{terminal.screen()}")
    shell.go()
    assert terminal.wait() == 0, terminal.received
    assert terminal.screen() == ["before", "after", ""]


def test_status_line_gives_way_to_a_progress_bar(
    shell: Shell, terminals: list[Terminal], wait_until: WaitUntil
) -> None:
    terminal = Terminal(shell.words("", "talk.py", "progress"), shell.environment)
    terminals.append(terminal)
    shell.wait_for("0.written")
    wait_until(lambda: "step 2/4" in terminal.screen()[-1], 5, lambda: f"{terminal.screen()}")
    # Longer than the time after which the status line is drawn again.
    seen = time.monotonic()
    wait_until(lambda: time.monotonic() - seen > 1.2, 5, "the status line's turn")
    assert terminal.screen()[-1] == "step 2/4", terminal.received
    shell.go()
    assert terminal.wait() == 0, terminal.received
    assert terminal.screen() == ["step 4/4", ""]


def test_status_line_can_be_turned_off(shell: Shell, terminals: list[Terminal]) -> None:
    terminal = Terminal(shell.words("--no-status", "puppet.py", "say hello"), shell.environment)
    terminals.append(terminal)
    assert terminal.wait() == 0, terminal.received
    assert terminal.received == "hello\r\n"


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=lambda pair: "=".join(*pair.items()))
def test_plain_terminals_get_no_colours(
    shell: Shell, terminals: list[Terminal], environment: dict[str, str | None]
) -> None:
    # A warning, a restart and a failure report: everything that has colours otherwise.
    words = shell.words("--nproc-per-node 2 --max-restarts 1", "puppet.py", "exit 3")
    terminal = Terminal(words, {**shell.environment, "OMP_NUM_THREADS": None, **environment})
    terminals.append(terminal)
    assert terminal.wait() == 1, terminal.received
    assert "warning:" in terminal.received and "Root cause" in terminal.received
    assert COLOUR.findall(terminal.received) == []
    if environment.get("TERM") == "dumb":
        assert "\x1b" not in terminal.received


def test_colours_on_a_terminal_and_not_in_a_pipe(shell: Shell, terminals: list[Terminal]) -> None:
    terminal = Terminal(shell.words("", "puppet.py", "exit 3"), shell.environment)
    terminals.append(terminal)
    assert terminal.wait() == 1
    assert COLOUR.search(terminal.received)
    assert "\x1b" not in shell.start("", "puppet.py", "exit 3").wait().expect(1).stderr


def test_summary_of_a_run_that_succeeded(shell: Shell) -> None:
    path = shell.folder / "summary.json"
    options = f"--nproc-per-node 2 --max-restarts 3 --summary-json {path}"
    shell.start(options, "puppet.py", "1@0: exit 3").wait().expect(0)
    summary = json.loads(path.read_text())
    assert (summary["outcome"], summary["reason"], summary["signal"]) == ("succeeded", None, None)
    assert (summary["world_size"], summary["workers_per_node"], summary["node_rank"]) == (2, 2, 0)
    assert (summary["rounds"], summary["restarts"], summary["max_restarts"]) == (2, 1, 3)
    assert summary["program"].endswith("puppet.py")
    assert 0 < summary["duration_seconds"] < 60
    assert abs(time.time() - datetime.fromisoformat(summary["started"]).timestamp()) < 60
    assert (summary["root_cause"], summary["failures"]) == (None, [])
    assert [found.name for found in shell.folder.glob("summary*")] == ["summary.json"]


def test_summary_of_a_run_that_failed(shell: Shell) -> None:
    path = shell.folder / "summary.json"
    steps = ("ready", "await 3", "1: complain out of data", "1: exit 3", "hold")
    shell.start(f"--nproc-per-node 3 --summary-json {path}", "puppet.py", *steps).wait().expect(1)
    summary = json.loads(path.read_text())
    assert summary["outcome"] == "failed"
    assert "rank 1 on" in summary["reason"] and "exited with code 3" in summary["reason"]
    cause = summary["root_cause"]
    assert (cause["rank"], cause["local_rank"], cause["exit_code"], cause["signal"]) == (1, 1, 3, None)
    assert cause["last_lines"] == ["out of data"] and not cause["stopped_by_launcher"]
    others = sorted((f["rank"], f["exit_code"], f["signal"], f["stopped_by_launcher"]) for f in summary["failures"])
    assert others == [(0, -15, "SIGTERM", True), (1, 3, None, False), (2, -15, "SIGTERM", True)]


def test_summary_of_a_run_that_was_interrupted(shell: Shell) -> None:
    path = shell.folder / "summary.json"
    job = shell.start(f"--summary-json {path}", "puppet.py", "ready", "hold")
    shell.wait_for("0.0.ready")
    job.send_signal(signal.SIGTERM)
    job.wait().expect(1)
    summary = json.loads(path.read_text())
    assert (summary["outcome"], summary["signal"], summary["reason"]) == ("interrupted", "SIGTERM", "received SIGTERM")


@pytest.mark.parametrize(
    ("options", "steps", "status"),
    [
        ("", "exit 7", 1),
        ("--propagate-exit-code", "exit 7", 7),
        ("--propagate-exit-code", "die SIGKILL", 128 + signal.SIGKILL),
        ("--propagate-exit-code", "die SIGSEGV", 128 + signal.SIGSEGV),
        ("--propagate-exit-code", "exit 0", 0),
    ],
)
def test_exit_code_of_the_first_failure_is_passed_on_where_asked(
    shell: Shell, options: str, steps: str, status: int
) -> None:
    shell.start(f"{options} --nproc-per-node 2", "puppet.py", "ready", "await 2", f"1: {steps}").wait().expect(status)


def test_dry_run_starts_nothing(shell: Shell, run: Runner) -> None:
    words = shell.words("--dry-run --nproc-per-node 2 --max-restarts 3", "puppet.py", "ready", "a word")
    shown = run(*words, env=shell.environment).expect(0)
    assert shown.stdout.endswith("nothing was started (--dry-run)\n"), shown
    assert "2 on this node" in shown.stdout and "'a word'" in shown.stdout, shown
    assert list(shell.folder.iterdir()) == []


def test_dry_run_warns_of_a_script_that_does_not_exist(shell: Shell, run: Runner) -> None:
    shown = run(*shell.words("--dry-run --nproc-per-node 2", "nothere.py"), env=shell.environment).expect(0)
    [warning] = [line for line in shown.stdout.splitlines() if line.startswith("warning")]
    assert "nothere.py does not exist" in warning, shown
    there = run(*shell.words("--dry-run=json", "puppet.py"), env=shell.environment).expect(0)
    assert json.loads(there.stdout)["warnings"] == []


def test_dry_run_for_programs_is_json(shell: Shell, run: Runner, python: Path) -> None:
    words = shell.words("--dry-run=json --nproc-per-node 2 --max-restarts 3", "puppet.py", "ready", "a word")
    plan = json.loads(run(*words, env=shell.environment).expect(0).stdout)
    assert plan["command"] == [str(python), "-u", *words[-4:]]
    assert (plan["workers_per_node"], plan["max_restarts"]) == (2, 3)
    assert plan["nodes"] == {"min": 1, "max": 1, "this": 0}
    assert list(shell.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "mark"), [("bash", "complete -F _instep"), ("zsh", "#compdef instep"), ("fish", "complete -c instep")]
)
def test_completion_scripts(instep: Path, run: Runner, name: str, mark: str) -> None:
    for words in (("completion", name), ("run", "--print-completion", name)):
        script = run(instep, *words).expect(0).stdout
        assert mark in script
        assert "nproc-per-node" in script


def test_completion_works_in_bash(instep: Path, run: Runner) -> None:
    program = """
    source /dev/stdin <<< "$("$0" completion bash)"
    COMP_WORDS=(instep run --nproc) COMP_CWORD=2
    _instep instep --nproc run
    echo "${COMPREPLY[@]}"
    """
    assert run("bash", "-c", program, instep).expect(0).stdout == "--nproc-per-node\n"
