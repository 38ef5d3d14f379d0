"""What every test in tests/ can use: the built binary, the interpreter with torch, commands that cannot outlive a test.

Fixtures: `instep`, `python`, `wheel`, `uv` (paths), `run` (start commands), `wait_until` (wait on a condition with a
deadline). Each test gets its own folder from pytest's `tmp_path`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil
import pytest

from sqlite_only import REASONS
from zygote import forking

ROOT = Path(__file__).resolve().parent.parent
# Long enough for a loaded machine that imports torch in several workers at once; a test that needs more says so.
DEFAULT_TIMEOUT_S = 90.0
# Set in the environment of every command a test starts, and so inherited by all of its descendants.
MARK = "INSTEP_TEST_MARK"


def built(path: Path) -> Path:
    """Give `path`, or fail the test saying how to make it."""
    if not path.exists():
        pytest.fail(f"there is no {path}\nhint: run `make build` first", pytrace=False)
    return path


@pytest.fixture(scope="session")
def instep() -> Path:
    """The native binary."""
    return built(ROOT / "target" / "quick" / "instep")


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter with torch and the instep wheel."""
    return built(ROOT / ".venv" / "bin" / "python")


@pytest.fixture(scope="session")
def forked(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same interpreter with torch imported already, for tests that do not look at how it starts."""
    with forking(python, "torch", tmp_path_factory) as interpreter:
        yield interpreter


@pytest.fixture(scope="session")
def uv() -> Path:
    """The package installer, for tests that need an environment of their own."""
    return built(ROOT / ".venv" / "bin" / "uv")


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The wheel of this build."""
    return only_wheel(ROOT / "build" / "quick", "make build")


@pytest.fixture(scope="session")
def portable_wheel() -> Path:
    """The wheel that users install."""
    return only_wheel(ROOT / "dist", "make wheel")


def only_wheel(folder: Path, made_by: str) -> Path:
    """Give the one wheel in a folder, or fail the test saying how to make it."""
    found = sorted(folder.glob("instep-*.whl"))
    if len(found) != 1:
        pytest.fail(f"expected one wheel in {folder}, found {len(found)}\nhint: run `{made_by}` first", pytrace=False)
    return found[0]


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    command: tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    seconds: float

    def expect(self, status: int = 0) -> Result:
        """Give the result back if the command ended with `status`, else fail showing all of its output."""
        __tracebackhide__ = True
        if self.status != status:
            pytest.fail(f"ended with status {self.status}, expected {status}\n{self}", pytrace=True)
        return self

    def __str__(self) -> str:
        """Show the command and everything it said."""
        return f"$ {' '.join(self.command)}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


class Running:
    """A command that was started: its output so far, and ways to end it."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> None:
        self.command = tuple(command)
        self.started = time.monotonic()
        self.mark = uuid.uuid4().hex
        self._lines: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._process = subprocess.Popen(
            self.command,
            env={**env, MARK: self.mark},
            cwd=cwd,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that signals meant for pytest do not reach it
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("stdout", self._process.stdout), ("stderr", self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, stream: IO[str]) -> None:
        with stream:
            self._lines[name].extend(stream)

    @property
    def pid(self) -> int:
        """The process id of the command itself."""
        return self._process.pid

    @property
    def stdout(self) -> str:
        """What it wrote to standard output so far, whole lines."""
        return "".join(self._lines["stdout"])

    @property
    def stderr(self) -> str:
        """What it wrote to standard error so far, whole lines."""
        return "".join(self._lines["stderr"])

    def poll(self) -> int | None:
        """Its exit status, with all of its output read, or None while it runs."""
        status = self._process.poll()
        if status is not None:
            self._read_all()
        return status

    def _read_all(self) -> None:
        for reader in self._readers:
            # A descendant that outlives the command holds the pipe open; its output is not the command's.
            reader.join(timeout=2)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the command alone, not to its children."""
        self._process.send_signal(number)

    def children(self) -> list[psutil.Process]:
        """Its living descendants."""
        try:
            return list(psutil.Process(self.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []

    def wait(self, timeout: float = DEFAULT_TIMEOUT_S) -> Result:
        """Wait for the end; past the timeout kill everything and fail, showing the output."""
        __tracebackhide__ = True
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill_tree()
            pytest.fail(f"still running after {timeout} s\n{self._result(-1)}", pytrace=True)
        seconds = time.monotonic() - self.started
        self._read_all()
        return Result(self.command, status, self.stdout, self.stderr, seconds)

    def _result(self, status: int) -> Result:
        return Result(self.command, status, self.stdout, self.stderr, time.monotonic() - self.started)

    def left_behind(self) -> list[psutil.Process]:
        """Living processes the command started, also those whose parents are gone or that left its session."""
        return left_behind([self])

    def kill(self) -> None:
        """Kill the command alone."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def kill_tree(self) -> None:
        """Kill the command and every process it started."""
        kill_trees([self])


def left_behind(commands: Sequence[Running]) -> list[psutil.Process]:
    """Living processes that some commands have started; in one look at all processes, which is not for nothing."""
    marks = [f"{MARK}={command.mark}".encode() for command in commands]
    known = {command.pid for command in commands}
    found = []
    for number in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if number not in known and any(mark in Path(f"/proc/{number}/environ").read_bytes() for mark in marks):
                found.append(psutil.Process(number))
    return found


def kill_trees(commands: Sequence[Running]) -> None:
    """Kill commands and every process they started."""
    for command in commands:
        command.kill()
    deadline = time.monotonic() + 10
    # Again until none is left: one may have been starting another meanwhile.
    while (left := left_behind(commands)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


class Runner:
    """Starts commands for one test, and kills what is left of them when the test ends."""

    def __init__(self) -> None:
        self._started: list[Running] = []

    def start(
        self, *command: str | Path, env: Mapping[str, str | None] | None = None, cwd: Path | None = None
    ) -> Running:
        """Start a command; `env` is added to this process's environment, None removes a variable."""
        merged: dict[str, str | None] = {**os.environ, **(env or {})}
        kept = {name: value for name, value in merged.items() if value is not None}
        running = Running([str(word) for word in command], kept, cwd)
        self._started.append(running)
        return running

    def __call__(
        self,
        *command: str | Path,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Result:
        """Run a command to its end."""
        __tracebackhide__ = True
        return self.start(*command, env=env, cwd=cwd).wait(timeout)

    def kill_all(self) -> None:
        """Kill everything that was started and what it left behind."""
        if self._started:
            kill_trees(self._started)


def with_token(module: object) -> bool:
    """Whether jobs on several nodes have a token: all with INSTEP_TEST_TOKEN=1, else those of modules that say so."""
    return os.environ.get("INSTEP_TEST_TOKEN") == "1" or getattr(module, "WITH_TOKEN", False)


@pytest.fixture(scope="module", autouse=True)
def job_token(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give every job on several nodes a token, where `with_token`: what they do must be the same with one.

    Jobs on one node do not read it, and tests that say otherwise by an option or an environment of their own have that.
    """
    with pytest.MonkeyPatch.context() as patch:
        if with_token(request.module):
            path = tmp_path_factory.mktemp("token") / "job.token"
            path.touch(mode=0o600)
            path.write_text(secrets.token_hex(32))
            patch.setenv("INSTEP_JOB_TOKEN_FILE", str(path))
        yield


@pytest.fixture
def run() -> Iterator[Runner]:
    """Run commands: `run(instep, "--version").expect(0)`, or `run.start(...)` for one to talk to while it runs."""
    runner = Runner()
    yield runner
    runner.kill_all()


WaitUntil = Callable[..., None]


@pytest.fixture(scope="session")
def wait_until() -> WaitUntil:
    """Wait on a condition: `wait_until(lambda: "ready" in server.stdout, 10, "the server to be ready")`."""

    def wait(
        condition: Callable[[], object], timeout: float = 30.0, message: str | Callable[[], str] = "the condition"
    ) -> None:
        __tracebackhide__ = True
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                text = message() if callable(message) else message
                pytest.fail(f"waited {timeout} s for {text}", pytrace=True)
            time.sleep(0.02)

    return wait


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread every suite over the whole run: some wait most of the time, others need all processors.

    Where databases are in PostgreSQL, those that are about SQLite's file are skipped.
    """
    assert len(REASONS) <= 20, "the same answers on both engines"
    if os.environ.get("INSTEP_TEST_DATABASE"):
        for item in items:
            if reason := REASONS.get(item.nodeid.partition("[")[0]):
                item.add_marker(pytest.mark.skip(reason=f"about SQLite's file: {reason}"))
    suites: dict[Path, list[Path]] = {}
    for file in dict.fromkeys(item.path for item in items):
        suites.setdefault(file.parent, []).append(file)
    place = {file: number / len(files) for files in suites.values() for number, file in enumerate(files)}
    items.sort(key=lambda item: place[item.path])


def pytest_report_header() -> list[str]:
    """Say at the top of the run which interpreter and torch are tested."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "not installed"
    return [f"instep tests: python {sys.version.split()[0]}, torch {torch}, {os.cpu_count()} cores"]
