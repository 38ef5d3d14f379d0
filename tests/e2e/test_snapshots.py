"""What people read, word by word: help, errors, failure reports, output of workers, the status line on a terminal.

Every case runs the real binary and real workers, and compares what came with tests/e2e/snapshots/<name>.txt. What
differs from run to run and from machine to machine is replaced by a placeholder first (see `Desk.neutral`).

    UPDATE_SNAPSHOTS=1 make e2e ARGS='-k snapshots'

writes the files anew, and removes those of cases that are gone; read the diff before you commit it. Without it, a file
that is missing or that no case uses is a failure.
"""

from __future__ import annotations

import difflib
import fcntl
import importlib.metadata
import os
import pty
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conftest import Result, Runner, Running, WaitUntil

SNAPSHOTS = Path(__file__).resolve().parent / "snapshots"
UPDATE = os.environ.get("UPDATE_SNAPSHOTS") == "1"
# Generous: what is waited for takes well under a second. No case imports torch.
TIMEOUT_S = 60.0

# Workers. They do not import torch: what it would print differs between its versions.
GREETING = 'print("ready to train")\n'
VALUE_ERROR = """\
import os
import time

rank = int(os.environ["RANK"])


def load(shard):
    if shard == 1:
        raise ValueError("expected 4 columns, got 3")


if __name__ == "__main__":
    load(rank)
    time.sleep(60)
"""
# What torch.distributed.elastic's `record` leaves behind when main() raises.
ERROR_FILE = """\
import json
import os
import sys
import time

rank = int(os.environ["RANK"])
if rank == 1:
    message = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x20 and 21x1)"
    calls = f'''Traceback (most recent call last):
  File "train.py", line 88, in main
    trainer.train(args.epochs)
  File "train.py", line 41, in train
    loss = self.model(batch)
{message}
'''
    details = {"py_callstack": calls, "timestamp": str(int(time.time()))}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": {"message": message, "extraInfo": details}}, file)
    sys.exit(1)
time.sleep(60)
"""
KILLED = """\
import os
import signal
import time

if os.environ["RANK"] == "2":
    print("epoch 3, loss 0.0412", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""
FAILS_EACH_TIME = """\
import os
import sys
import time

if os.environ["RANK"] == "0":
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    sys.exit(f"cannot read the dataset (attempt {attempt})")
time.sleep(60)
"""
SILENT = "import os, sys, time\nif os.environ['RANK'] == '1':\n    sys.exit(3)\ntime.sleep(60)\n"
# What folds depends on who speaks when, so rank 0 speaks for all, line by line, through the others' own pipes.
TALKS = """\
import array
import fcntl
import os
import pathlib
import termios
import time


def unread(pipe):
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def wait_for(*names):
    deadline = time.monotonic() + 60
    while not all(pathlib.Path(name).exists() for name in names) and time.monotonic() < deadline:
        time.sleep(0.01)


ranks = range(int(os.environ["WORLD_SIZE"]))
rank = int(os.environ["RANK"])
pathlib.Path(f"{rank}.starting").write_text(str(os.getpid()))
os.rename(f"{rank}.starting", f"{rank}.ready")
if rank == 0:
    wait_for(*(f"{other}.ready" for other in ranks))
    pipes = [open(f"/proc/{pathlib.Path(f'{other}.ready').read_text()}/fd/1", "w") for other in ranks]
    lines = ("loading the dataset", "shard {}: 1000 samples", "ready", "epoch 0: loss 0.9134")
    for line in lines:
        for other, pipe in enumerate(pipes):
            print(line.format("5, short" if other == 5 else "full"), file=pipe, flush=True)
        while any(map(unread, pipes)):
            time.sleep(0.001)
    pathlib.Path("said").touch()
wait_for("said")
"""
# Says that it is ready in a file, then stays until it is told to go on, or a signal comes.
HOLDS = """\
import os
import pathlib
import time

rank = os.environ["RANK"]
print(f"rank {rank}: epoch 0", flush=True)
pathlib.Path(f"ready.{rank}").touch()
deadline = time.monotonic() + 60
while not pathlib.Path("go").exists() and time.monotonic() < deadline:
    time.sleep(0.01)
print(f"rank {rank}: done", flush=True)
"""


@dataclass(frozen=True)
class Case:
    """A command line of instep to its end, and what it may need. `{free}` and `{taken}` are ports."""

    name: str
    words: str
    status: int = 0
    train: str = GREETING
    environment: Mapping[str, str | None] = field(default_factory=dict)
    # Further files beside train.py.
    files: Mapping[str, str] = field(default_factory=dict)
    # The order in which ranks are heard is theirs; sorting what they say makes it ours.
    sort_stdout: bool = False

    def __str__(self) -> str:
        """Name the test."""
        return self.name


C10D = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint"

CASES = [
    Case("help", "--help"),
    Case("help-store", "store --help"),
    Case("help-doctor", "doctor --help"),
    Case("help-bench", "bench --help"),
    Case("help-bench-collectives", "bench collectives --help"),
    Case("help-agent", "agent --help"),
    Case("help-command-run", "command run --help"),
    Case("version", "--version"),
    # Command lines that cannot be understood.
    Case("error-unknown-command", "runn train.py", status=2),
    Case("error-unknown-option", "run --nprocs 2 train.py", status=2),
    Case("error-mistyped-option", "run --max-restart-s 2 train.py", status=2),
    Case("error-ambiguous-option", "run --rdzv 2 train.py", status=2),
    Case("error-no-script", "run --nproc-per-node 2", status=2),
    Case("error-number-expected", "run --max-restarts many train.py", status=2),
    Case("error-bench-nothing", "bench", status=2),
    Case("error-bench-backend", "bench collectives --backends instep,mpich", status=2),
    Case("error-bench-operation", "bench collectives --ops allreduce", status=2),
    Case("error-bench-size", "bench collectives --sizes 8,4X", status=2),
    Case("error-bench-no-rank", "bench collectives --nproc 0", status=2),
    Case("error-bench-option", "bench collectives --world 4", status=2),
    Case("error-agent-unknown-verb", "agent enabel one", status=2),
    Case("error-agent-which", "agent disable", status=2),
    Case("error-tensorboard-of-nothing", "tensorboard start", status=2),
    # Those that cannot work.
    Case("error-agent-list-without-master", "agent list --master http://127.0.0.1:{free}", status=1),
    Case(
        "error-agent-state-folder",
        "agent --master http://127.0.0.1:{free} --slots 1 --default-user 0 --state-folder train.py/state",
        status=1,
    ),
    Case(
        "error-agent-python-missing",
        "agent --master http://127.0.0.1:{free} --slots 1 --python missing/python",
        status=1,
    ),
    Case("error-bench-no-mpi", "bench collectives --backends mpi", status=1, environment={"PATH": "/nowhere"}),
    Case("error-script-missing", "run trian.py", status=1),
    Case("error-python-missing", "run --python missing/python train.py", status=1),
    # For a word, torch is asked. One that is quick to import: the real one (see test_bad_input.py) can take a minute.
    Case(
        "error-nproc-word",
        "run --nproc-per-node four train.py",
        status=1,
        environment={"PYTHONPATH": "quick"},
        files={"quick/torch.py": "class _C:\n    _get_privateuse1_backend_name = lambda: 'privateuseone'\n"},
    ),
    Case("error-nproc-zero", "run --nproc-per-node 0 train.py", status=1),
    Case("error-nnodes-range", "run --nnodes 4:2 train.py", status=1),
    Case("error-rdzv-conf", "run --rdzv-conf timeout:60 train.py", status=1),
    Case("error-rdzv-conf-seconds", f"run {C10D} 127.0.0.1:{{free}} --rdzv-conf join_timeout=soon train.py", status=1),
    Case("error-etcd", "run --rdzv-backend etcd --rdzv-endpoint node-a:2379 train.py", status=1),
    Case("error-node-rank", "run --nnodes 2 --node-rank 2 train.py", status=1),
    Case("error-log-dir", "run --log-dir train.py/logs train.py", status=1),
    Case("error-tee-mask", "run --tee 4 train.py", status=1),
    # Nodes that do not meet.
    Case(
        "error-endpoint-unresolvable",
        f"run {C10D} no-such-host.invalid:29400 --rdzv-conf read_timeout=1 train.py",
        status=1,
    ),
    Case(
        "error-endpoint-refused",
        f"run {C10D} 127.0.0.1:{{free}} --rdzv-conf is_host=false,read_timeout=1 train.py",
        status=1,
    ),
    Case("error-endpoint-port-in-use", f"run {C10D} 127.0.0.1:{{taken}} --rdzv-conf is_host=true train.py", status=1),
    Case("error-master-port-in-use", "run --master-port {taken} train.py", status=1),
    Case("error-store-port-in-use", "store --port {taken}", status=1),
    Case("error-nobody-joins", f"run {C10D} 127.0.0.1:{{free}} --rdzv-conf join_timeout=1 train.py", status=1),
    # Reports of runs that failed.
    Case("failure-exception", "run --nproc-per-node 4 train.py", status=1, train=VALUE_ERROR),
    Case("failure-error-file", "run --nproc-per-node 4 train.py", status=1, train=ERROR_FILE),
    Case("failure-killed", "run --nproc-per-node 4 train.py", status=1, train=KILLED),
    Case("failure-silent", "run --nproc-per-node 2 train.py", status=1, train=SILENT),
    Case("failure-logs-kept", "run --nproc-per-node 4 --log-dir logs --tee 3 train.py", status=1, train=VALUE_ERROR),
    Case(
        "failure-restarts-used-up", "run --nproc-per-node 2 --max-restarts 1 train.py", status=1, train=FAILS_EACH_TIME
    ),
    Case("failure-program-not-found", "run --nproc-per-node 2 --no-python tarin", status=1),
    # Runs that go well.
    Case("output-plain", "run --nproc-per-node 2 train.py"),
    Case("output-threads-warning", "run --nproc-per-node 2 train.py", environment={"OMP_NUM_THREADS": None}),
    Case("output-fold", "run --nproc-per-node 8 --fold train.py", train=TALKS),
    Case("output-tee", "run --nproc-per-node 2 --log-dir logs --tee 3 train.py", sort_stdout=True),
    Case("dry-run", "run --nproc-per-node 8 --dry-run train.py --lr 0.1 --name 'my run'"),
    Case("dry-run-nodes", f"run {C10D} node-a:29603 --rdzv-id 456 --nproc-per-node 8 --dry-run train.py"),
    Case("dry-run-json", "run --nproc-per-node 8 --max-restarts 3 --dry-run=json train.py"),
]
# Those of the tests further down.
OTHERS = {
    "help-run-80-columns",
    "help-run-120-columns",
    "failure-launcher-told-to-end",
    "failure-launcher-told-to-end-workers-do-not",
    "failure-on-a-terminal",
    "nodes-waiting-then-joining",
    "nodes-failure-elsewhere",
    "terminal-running",
    "terminal-one-worker-done",
    "terminal-after-the-end",
    "terminal-narrow",
}


class Screen:
    """What a terminal shows after some bytes. It knows what instep uses, and fails on anything else."""

    ESCAPE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines: list[list[str]] = [[]]
        self.column = 0

    def show(self, text: str) -> Screen:
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                escape = self.ESCAPE.match(text, at)
                assert escape is not None, f"an escape sequence this screen does not know: {text[at : at + 20]!r}"
                at = escape.end()
                self._obey(escape[1], escape[2])
            else:
                self._put(text[at])
                at += 1
        return self

    def _obey(self, argument: str, command: str) -> None:
        if command == "K" and argument in ("", "0"):
            del self.lines[-1][self.column :]
        else:
            assert command == "m", f"an escape sequence this screen does not know: {argument}{command}"

    def _put(self, letter: str) -> None:
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self.lines.append([])
        else:
            if self.column == self.columns:
                self.lines.append([])
                self.column = 0
            line = self.lines[-1]
            line.extend(" " * (self.column + 1 - len(line)))
            line[self.column] = letter
            self.column += 1

    def __str__(self) -> str:
        """The lines from the first to the one with the cursor."""
        return "\n".join("".join(line).rstrip() for line in self.lines)


class Terminal:
    """A command on a pseudo-terminal of its own."""

    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path, columns: int) -> None:
        self.columns = columns
        self.text = ""
        self._title = f"$ instep {shlex.join(command[1:])}\non a terminal of {columns} columns\n---\n"
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._process = subprocess.Popen(
            command,
            env={**environment, "TERM": "xterm-256color"},
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def screen(self) -> str:
        return str(Screen(self.columns).show(self.text))

    def transcript(self) -> str:
        """Write down the command and what the screen shows now."""
        return f"{self._title}{self.screen()}\n"

    def read_until(self, condition: Callable[[], object], what: str) -> None:
        """Read on until the condition holds, or to the end if it never does."""
        __tracebackhide__ = True
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            readable, _, _ = select.select([self._ours], [], [], 0.05)
            if readable and not self._read():
                return
            if time.monotonic() > deadline:
                pytest.fail(f"waited {TIMEOUT_S} s for {what}\n{self.text!r}", pytrace=True)

    def _read(self) -> bool:
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # EIO: everybody at the other end is gone
            return False
        self.text += data.decode()
        return bool(data)

    def wait(self) -> int:
        self.read_until(lambda: False, "the end")
        return self._process.wait(TIMEOUT_S)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)


class Desk:
    """A folder with a script, from which command lines are tried; and the memory of what they said last time."""

    def __init__(self, instep: Path, python: Path, folder: Path, run: Runner) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        self._instep = instep
        self._python = python
        self._run = run
        self.ports: dict[str, int] = {}
        unwanted = [name for name in os.environ if name.startswith(("PET_", "TORCHELASTIC_"))]
        self._environment: dict[str, str | None] = {
            **dict.fromkeys([*unwanted, "PYTHON_EXEC", "NO_COLOR", "COLUMNS", "LINES"]),
            "VIRTUAL_ENV": str(python.parent.parent),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self._temporary),
        }

    def write(self, script: str) -> None:
        (self.folder / "train.py").write_text(script)

    def start(self, words: str, environment: Mapping[str, str | None] | None = None) -> Running:
        env = {**self._environment, **(environment or {})}
        return self._run.start(self._instep, *shlex.split(words), env=env, cwd=self.folder)

    @contextmanager
    def terminal(self, words: str, columns: int = 80) -> Iterator[Terminal]:
        merged = {**os.environ, **self._environment}
        env = {name: value for name, value in merged.items() if value is not None}
        terminal = Terminal([str(self._instep), *shlex.split(words)], env, self.folder, columns)
        try:
            yield terminal
        finally:
            terminal.close()

    def neutral(self, text: str) -> str:
        """Replace what differs between runs and machines, the longest names first."""
        names = {
            str(self.folder): "[FOLDER]",
            str(self._temporary): "[TMP]",
            str(self._python): "[PYTHON]",
            str(self._python.parent.parent): "[VENV]",
            str(self._instep): "[INSTEP]",
            **{str(port): f"[{name.upper()} PORT]" for name, port in self.ports.items()},
        }
        for name, placeholder in names.items():
            text = text.replace(name, placeholder)
        host = r"|".join(re.escape(name) for name in {socket.gethostname(), socket.getfqdn()} - {"localhost"})
        for pattern, placeholder in (
            (rf"(?<![\w.-])(?:{host})(?![\w.-])", "[HOST]"),
            # A run's own folder of logs: torchelastic_<random letters>/<run id>_<random letters>.
            (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:_[a-z0-9]{8}\b)?", "[UUID]"),
            (r"(?<=torchelastic_)[a-z0-9_]{8}\b", "[RANDOM]"),
            (r"\b\d{4}-\d\d-\d\d[_T ]\d\d:\d\d:\d\d(?:\.\d+)?", "[TIME]"),
            (r"\bpid(:?) \d+", r"pid\1 [PID]"),
            (r"\bup (?:\d+:)?\d+:\d\d\b", "up [CLOCK]"),
            (rf"\b{re.escape(importlib.metadata.version('instep'))}\b", "[VERSION]"),
            (r"(?<=does not resolve )\(.+?\)", "([WHAT THE RESOLVER SAYS])"),
        ):
            text = re.sub(pattern, placeholder, text)
        return text


def transcript(words: str, result: Result, sort_stdout: bool = False) -> str:
    """Write down a command as a person would tell it."""
    stdout = "".join(sorted(result.stdout.splitlines(keepends=True))) if sort_stdout else result.stdout
    parts = [f"$ instep {words}\nexit status {result.status}\n"]
    for name, text in (("stdout", stdout), ("stderr", result.stderr)):
        if text:
            parts.append(f"--- {name}\n{text if text.endswith(chr(10)) else text + chr(10)}")
    return "".join(parts)


@pytest.fixture
def desk(instep: Path, python: Path, tmp_path: Path, run: Runner) -> Iterator[Desk]:
    desk = Desk(instep, python, tmp_path, run)
    desk.write(GREETING)
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        desk.ports = {"taken": taken.getsockname()[1], "free": free.getsockname()[1]}
        free.close()
        yield desk


Matches = Callable[[str, str], None]


@pytest.fixture
def matches(desk: Desk) -> Matches:
    """Compare with the snapshot of this name: `matches("version", text)`."""

    def compare(name: str, text: str) -> None:
        __tracebackhide__ = True
        assert name in OTHERS or any(case.name == name for case in CASES), f"{name} is not in OTHERS"
        path = SNAPSHOTS / f"{name}.txt"
        text = desk.neutral(text)
        if UPDATE:
            SNAPSHOTS.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists():
            pytest.fail(f"there is no {path.name}\nhint: UPDATE_SNAPSHOTS=1 writes it\n\n{text}", pytrace=False)
        elif (before := path.read_text()) != text:
            difference = difflib.unified_diff(
                before.splitlines(), text.splitlines(), f"{path.name}, the snapshot", "what came", lineterm=""
            )
            lines = "\n".join(difference)
            pytest.fail(f"{lines}\nhint: if this is better than before: UPDATE_SNAPSHOTS=1", pytrace=False)

    return compare


@pytest.mark.parametrize("case", CASES, ids=str)
def test_command_reads_as_before(case: Case, desk: Desk, matches: Matches) -> None:
    desk.write(case.train)
    for name, text in case.files.items():
        (desk.folder / name).parent.mkdir(exist_ok=True)
        (desk.folder / name).write_text(text)
    words = case.words.format(**desk.ports)
    result = desk.start(words, case.environment).wait(TIMEOUT_S).expect(case.status)
    matches(case.name, transcript(words, result, case.sort_stdout))


@pytest.mark.parametrize("columns", [80, 120])
def test_help_of_run_fits_the_terminal(columns: int, desk: Desk, matches: Matches) -> None:
    with desk.terminal("run --help", columns) as terminal:
        assert terminal.wait() == 0
        assert max(map(len, terminal.screen().splitlines())) <= columns
        matches(f"help-run-{columns}-columns", terminal.transcript())


def test_launcher_told_to_end_says_so(desk: Desk, matches: Matches, wait_until: WaitUntil) -> None:
    desk.write(HOLDS)
    words = "run --nproc-per-node 2 --redirects 1 train.py"
    running = desk.start(words)
    wait_until((desk.folder / "ready.1").exists, TIMEOUT_S, "rank 1")
    wait_until((desk.folder / "ready.0").exists, TIMEOUT_S, "rank 0")
    running.send_signal(signal.SIGTERM)
    matches("failure-launcher-told-to-end", transcript(words, running.wait(TIMEOUT_S)))


def test_workers_that_do_not_listen_are_killed(desk: Desk, matches: Matches, wait_until: WaitUntil) -> None:
    desk.write(f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{HOLDS}")
    words = "run --nproc-per-node 2 --redirects 1 --shutdown-timeout 1 train.py"
    running = desk.start(words)
    wait_until((desk.folder / "ready.1").exists, TIMEOUT_S, "rank 1")
    wait_until((desk.folder / "ready.0").exists, TIMEOUT_S, "rank 0")
    running.send_signal(signal.SIGTERM)
    matches("failure-launcher-told-to-end-workers-do-not", transcript(words, running.wait(TIMEOUT_S)))


def test_two_nodes_say_what_they_wait_for(desk: Desk, matches: Matches, wait_until: WaitUntil) -> None:
    words = f"run {C10D} 127.0.0.1:{desk.ports['free']} --rdzv-id 456 --nproc-per-node 2 train.py"
    first = desk.start(words)
    wait_until(lambda: "waiting" in first.stderr, TIMEOUT_S, "the first node to wait")
    second = desk.start(words)
    both = [node.wait(TIMEOUT_S).expect(0) for node in (first, second)]
    matches("nodes-waiting-then-joining", "\n".join(transcript(words, node) for node in both))


def test_node_hears_of_a_failure_elsewhere(desk: Desk, matches: Matches, wait_until: WaitUntil) -> None:
    desk.write(VALUE_ERROR)
    words = f"run {C10D} 127.0.0.1:{desk.ports['free']} --rdzv-id 456 train.py"
    first = desk.start(words)
    wait_until(lambda: "waiting" in first.stderr, TIMEOUT_S, "the first node to wait")
    second = desk.start(words)
    both = [node.wait(TIMEOUT_S).expect(1) for node in (first, second)]
    matches("nodes-failure-elsewhere", "\n".join(transcript(words, node) for node in both))


def test_status_line_is_there_while_workers_run_and_gone_after(desk: Desk, matches: Matches) -> None:
    desk.write(HOLDS)
    with desk.terminal("run --nproc-per-node 1 --max-restarts 3 train.py") as terminal:
        terminal.read_until(lambda: "epoch 0\r\n" in terminal.text and "running" in last_line(terminal), "its status")
        matches("terminal-running", terminal.transcript())
        (desk.folder / "go").touch()
        assert terminal.wait() == 0
        matches("terminal-after-the-end", terminal.transcript())


def test_status_line_tells_that_a_worker_is_done(desk: Desk, matches: Matches) -> None:
    desk.write("import os\nif os.environ['RANK'] == '1':\n    raise SystemExit\n" + HOLDS)
    with desk.terminal("run --nproc-per-node 2 train.py") as terminal:
        terminal.read_until(lambda: "1 of 2" in last_line(terminal) and "epoch 0" in terminal.text, "one to end")
        matches("terminal-one-worker-done", terminal.transcript())


def test_status_line_fits_a_narrow_terminal(desk: Desk, matches: Matches) -> None:
    desk.write(HOLDS)
    with desk.terminal("run --max-restarts 3 train.py", columns=40) as terminal:
        terminal.read_until(lambda: "epoch 0\r\n" in terminal.text and "running" in last_line(terminal), "its status")
        matches("terminal-narrow", terminal.transcript())


def last_line(terminal: Terminal) -> str:
    return terminal.screen().rpartition("\n")[2]


def test_colours_carry_no_meaning_alone(desk: Desk, matches: Matches) -> None:
    desk.write(VALUE_ERROR)
    words = "run --nproc-per-node 4 train.py"
    # Wide enough for the longest path: where a line breaks must not depend on the machine.
    with desk.terminal(words, columns=1000) as terminal:
        assert terminal.wait() == 1
        assert "\x1b[31" in terminal.text, "no colours on a terminal"
        matches("failure-on-a-terminal", terminal.transcript())
    piped = desk.start(words).wait(TIMEOUT_S).expect(1)
    assert "\x1b" not in piped.stderr
    assert desk.neutral(terminal.screen()) == desk.neutral(piped.stderr)


def test_every_snapshot_belongs_to_a_case() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) and not OTHERS & set(names), "two cases have the same name"
    unused = sorted(path for path in SNAPSHOTS.iterdir() if path.stem not in {*names, *OTHERS} or path.suffix != ".txt")
    if UPDATE:
        for path in unused:
            path.unlink()
    else:
        assert [path.name for path in unused] == [], "no case uses these: UPDATE_SNAPSHOTS=1 removes them"
