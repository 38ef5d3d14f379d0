"""Runs the checks, fastest first, stopping at the first that fails; ends with a table of what ran and how long it took.

With `all`, a test that fails is run once more: on a busy machine real processes meet real accidents. One that passes
then is named in the table as unsteady, which is a bug to mend. `make soak` and narrower commands give no second try.

python3 scripts/test.py all                  everything CI runs (`make test`)
python3 scripts/test.py lint|unit|check      parts of it; `check` is lint and unit
python3 scripts/test.py e2e|sim [ARGS]       with further arguments for pytest or cargo
python3 scripts/test.py fmt                  not a check: formats the code
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import system
from project import BOLD, DIM, GREEN, RED, ROOT, VENV, cargo_environment, colour, fail, run, say

PYTHON_SOURCES = [name for name in ("python", "scripts", "tests", "bench", "examples") if (ROOT / name).is_dir()]
# One profile for everything that cargo compiles here, the binary and the extension of the end-to-end tests included.
QUICK = ["--profile", "quick"]
ANSI = re.compile(r"\x1b\[[0-9;]*m")
# The line of a tool's output that tells most: nextest's, pytest's and cargo test's totals.
TOTALS = re.compile(r"^\s*Summary \[[^]]*\] (.+)$|^=+ (\d.* in .+?) =+$|^test result: (.+)$")
# A test that failed, in pytest's summary, and one that nextest had to try twice.
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)|^\s*FLAKY \d+/\d+ \[[^]]*\] (?:\([^)]*\) )?(.+)$")
# More than so many failures are no accident.
MOST_ACCIDENTS = 3


@dataclass(frozen=True)
class Stage:
    """One check: the command, and what to do when it fails."""

    name: str
    command: list[str]
    hint: str
    environment: Mapping[str, str] = field(default_factory=dict)
    # Repeat the tool's own last line ("12 passed in 3 s") in the closing table.
    show_totals: bool = False
    # What runs the tests again that failed.
    second_try: list[str] | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a stage."""

    stage: Stage
    status: int
    seconds: float
    totals: str
    # Tests that failed, when there was a second try.
    unsteady: tuple[str, ...] = ()


def venv(tool: str) -> str:
    """Give the path of a tool that `.venv` holds."""
    return str((VENV / "bin" / tool).relative_to(ROOT))


def python_stages() -> list[Stage]:
    """List the checks of Python sources."""
    return [
        Stage("ruff format", [venv("ruff"), "format", "--check", *PYTHON_SOURCES], "`make fmt` formats it"),
        Stage(
            "ruff check", [venv("ruff"), "check", *PYTHON_SOURCES], "`make fmt` repairs what can be repaired by itself"
        ),
        Stage("mypy", [venv("mypy"), "--python-executable", venv("python")], "python/instep must pass mypy --strict"),
    ]


def rust_stages() -> list[Stage]:
    """List the checks of Rust sources that run none of it."""
    everything = ["--workspace", "--all-targets"]
    return [
        Stage(
            "cargo lock",
            ["cargo", "metadata", "--locked", "--format-version", "1", "--quiet"],
            "commit Cargo.lock together with the Cargo.toml that changed",
        ),
        Stage(
            "clippy",
            ["cargo", "clippy", "--quiet", *QUICK, *everything, "--", "-D", "warnings"],
            'an exception is `#[expect(lint, reason = "...")]` on the item',
        ),
        Stage(
            "cargo doc",
            ["cargo", "doc", "--quiet", *QUICK, "--workspace", "--no-deps", "--document-private-items"],
            "links in doc comments must resolve",
            {"RUSTDOCFLAGS": "-D warnings"},
        ),
    ]


def formatting() -> Stage:
    """Give the quickest check, which needs nothing installed."""
    return Stage("cargo fmt", ["cargo", "fmt", "--all", "--check"], "`make fmt` formats it")


def environment() -> Stage:
    """Give the step that makes `.venv`, for the stages that need its tools."""
    return Stage("environment", [sys.executable, "scripts/build.py", "venv"], "see the lines above")


def pages() -> Stage:
    """Give the check of the pages, which also makes them for the Rust tests to look at."""
    return Stage(
        "pages", [sys.executable, "scripts/build.py", "check-pages"], "see the lines above; the pages lie in web/"
    )


def unit_stages(arguments: list[str], *, second_try: bool = False) -> list[Stage]:
    """List the Rust tests."""
    hint = "run one test again: make unit ARGS='-p CRATE NAME'"
    environment = {"NEXTEST_RETRIES": "1"} if second_try else {}
    return [
        Stage("rust tests", [*cargo_test(), *arguments], hint, environment, show_totals=True),
        *(
            []
            if arguments
            else [Stage("doc tests", ["cargo", "test", *QUICK, "--workspace", "--doc", "--quiet"], hint)]
        ),
    ]


def cargo_test() -> list[str]:
    """Give the command for Rust tests: nextest where it is installed, else cargo's own."""
    if shutil.which("cargo-nextest"):
        nextest = ["cargo", "nextest", "run", "--config-file", "scripts/nextest.toml", "--no-tests", "pass"]
        return [*nextest, "--cargo-profile", "quick", "--workspace"]
    return ["cargo", "test", *QUICK, "--workspace", "--lib", "--bins", "--tests"]


def simulation_stages(arguments: list[str]) -> list[Stage]:
    """List the simulations: Rust tests with `simulation` in their name, which read SEED from the environment."""
    return [
        Stage(
            "simulations",
            [*cargo_test(), *arguments, "simulation"],
            "replay with SEED=<seed above> make sim",
            show_totals=True,
        )
    ]


def end_to_end_stages(arguments: list[str], *, second_try: bool = False) -> list[Stage]:
    """List the build of what users get, and the tests of that with real torch."""
    pytest = [venv("python"), "-m", "pytest", f"--color={'yes' if sys.stdout.isatty() else 'no'}", "--durations=5"]
    hint = "run one test again: make e2e ARGS='-k NAME -x'"
    build = Stage("build", [sys.executable, "scripts/build.py", "build"], "see the lines above")
    if arguments:
        return [build, Stage("pytest", [*pytest, *arguments], hint, show_totals=True)]
    client = Stage("determined", [sys.executable, "scripts/build.py", "determined"], "see the lines above")
    frameworks = Stage("frameworks", [sys.executable, "scripts/build.py", "frameworks"], "see the lines above")
    suites = [
        name
        for name in ("backend", "ordinary", "e2e", "compat", "detached", "core", "managed", "pages", "frameworks")
        if any((ROOT / "tests" / name).glob("test_*.py"))
    ]

    def suite(name: str) -> Stage:
        command = [*pytest, f"tests/{name}"]
        again = [*command, "--last-failed"] if second_try else None
        return Stage(f"tests/{name}", command, hint, show_totals=True, second_try=again)

    return [build, client, frameworks, *map(suite, suites)]


def stages_of(command: str, arguments: list[str]) -> list[Stage]:
    """List the stages of a command, fastest first."""
    lint = [formatting(), environment(), *python_stages(), pages(), *rust_stages()]
    match command:
        case "all":
            return [*lint, *unit_stages([], second_try=True), *end_to_end_stages([], second_try=True)]
        case "check":
            return [*lint, *unit_stages([])]
        case "lint":
            return lint
        case "unit":
            return unit_stages(arguments)
        case "sim":
            return simulation_stages(arguments)
        case "e2e":
            return end_to_end_stages(arguments)
        case _:
            fail(f"there is no test command `{command}`", hint="all, check, lint, unit, e2e, sim or fmt", status=2)


def perform(stage: Stage, number: int, count: int) -> Outcome:
    """Run one stage, and once more the tests that failed if they are few and may have a second try."""
    say(f"{colour(f'[{number}/{count}] {stage.name}', BOLD)}  {colour(shlex.join(stage.command), DIM)}")
    started = time.monotonic()
    status, totals, failed = show(stage, stage.command)
    if status == 1 and stage.second_try and 0 < len(failed) <= MOST_ACCIDENTS:
        say(f"{colour('once more', BOLD)}  {colour(shlex.join(stage.second_try), DIM)}")
        status, _, _ = show(stage, stage.second_try)
    return Outcome(stage, status, time.monotonic() - started, totals, tuple(failed) if status == 0 else ())


def show(stage: Stage, command: list[str]) -> tuple[int, str, list[str]]:
    """Run a command of a stage, showing its output as it comes; give its status, its totals and what failed in it."""
    totals = ""
    failed: list[str] = []
    quiet = stage.name == "cargo lock"  # its output is for programs
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**colours(), **cargo_environment(), **stage.environment},
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if quiet else subprocess.PIPE,
        stderr=None if quiet else subprocess.STDOUT,
    ) as process:
        for line in process.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            plain = ANSI.sub("", line).rstrip()
            if stage.show_totals and (found := TOTALS.search(plain)):
                totals = next(filter(None, found.groups())).strip()
            if stage.show_totals and (found := FAILED.search(plain)):
                failed.append(next(filter(None, found.groups())))
    return process.returncode, totals, list(dict.fromkeys(failed))


def colours() -> dict[str, str]:
    """Ask tools to keep their colours although their output passes through this script, if it ends on a terminal."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return {}
    return {"CARGO_TERM_COLOR": "always", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}


def table(outcomes: list[Outcome], count: int) -> None:
    """Show what ran, how long it took and its totals."""
    say("")
    for outcome in outcomes:
        mark = colour("ok  ", GREEN) if outcome.status == 0 else colour("FAIL", RED)
        say(f"  {mark}  {outcome.stage.name:<14} {outcome.seconds:7.1f} s  {outcome.totals}".rstrip())
        for name in outcome.unsteady:
            say(colour(f"        unsteady, passed on the second try: {name}", RED))
    if left := count - len(outcomes):
        say(f"        {left} more not run")
    say(f"        {'total':<14} {sum(outcome.seconds for outcome in outcomes):7.1f} s")


def check(command: str, arguments: list[str]) -> None:
    """Run the stages of a command until one fails."""
    system.require("test" if command in ("all", "unit", "check", "e2e") else "build")
    stages = stages_of(command, arguments)
    outcomes: list[Outcome] = []
    for number, stage in enumerate(stages, start=1):
        try:
            outcomes.append(perform(stage, number, len(stages)))
        except FileNotFoundError:
            fail(f"cannot run {stage.name}", cause=f"there is no {stage.command[0]}", hint="`make build` makes it")
        if outcomes[-1].status != 0:
            break
    table(outcomes, len(stages))
    last = outcomes[-1]
    if last.status != 0:
        cause = f"`{shlex.join(last.stage.command)}` ended with status {last.status}, see above"
        fail(f"{last.stage.name} failed", cause=cause, hint=last.stage.hint)


def format_all() -> None:
    """Format Rust and Python sources."""
    run(["cargo", "fmt", "--all"], what="format Rust")
    run([sys.executable, "scripts/build.py", "venv"], what="install ruff", quiet=True)
    run([venv("ruff"), "check", "--quiet", "--fix-only", *PYTHON_SOURCES], what="sort imports")
    run([venv("ruff"), "format", "--quiet", *PYTHON_SOURCES], what="format Python")


def main(arguments: list[str]) -> None:
    """Run one of the commands of the module's description."""
    command, *rest = arguments or ["all"]
    if command == "fmt":
        format_all()
    else:
        check(command, rest)


if __name__ == "__main__":
    main(sys.argv[1:])
