"""Runs the checks, fastest first, stopping at the first that fails; ends with a table of what ran and how long it took.

A test runs once: one that fails now and then is a bug, to be marked with the reason and mended, not repeated.

python3 scripts/test.py all                  everything CI runs (`make test`)
DB=postgres python3 scripts/test.py all      what is about the master's database, on PostgreSQL
python3 scripts/test.py lint|unit|check      parts of it; `check` is lint and unit
python3 scripts/test.py e2e|sim [ARGS]       with further arguments for pytest or cargo
python3 scripts/test.py fmt                  not a check: formats the code
"""

from __future__ import annotations

import os
import shutil
import sys

import linting_rustc
import system
from project import ROOT, VENV, fail, run
from stages import Check, Stage

PYTHON_SOURCES = [name for name in ("python", "scripts", "tests", "bench", "examples") if (ROOT / name).is_dir()]
# One profile for everything that cargo compiles here, the binary and the extension of the end-to-end tests included.
QUICK = ["--profile", "quick"]
# One compile for the tests, for clippy and for the links of docs; `make build` does without the lints.
LINTED = linting_rustc.environment()
LINT_HINT = 'an exception to a lint is `#[expect(lint, reason = "...")]` on the item'
CARGO = frozenset({"cargo"})  # two at a time would wait for each other's lock
BUILD = frozenset({"build"})  # so would two of scripts/build.py


def venv(tool: str) -> str:
    """Give the path of a tool that `.venv` holds."""
    return str((VENV / "bin" / tool).relative_to(ROOT))


def build(what: str, name: str, *, needs: frozenset[str] = frozenset(), uses: frozenset[str] = BUILD) -> Stage:
    """Give a step of scripts/build.py, which takes what the tests have compiled."""
    command = [sys.executable, "scripts/build.py", what]
    return Stage(name, command, "see the lines above", LINTED, needs=needs, uses=uses)


def python_stages() -> list[Stage]:
    """List the checks of Python sources."""
    needs = frozenset({"environment"})
    return [
        build("venv", "environment"),
        Stage(
            "ruff format", [venv("ruff"), "format", "--check", *PYTHON_SOURCES], "`make fmt` formats it", needs=needs
        ),
        Stage(
            "ruff check",
            [venv("ruff"), "check", *PYTHON_SOURCES],
            "`make fmt` fixes what can be fixed automatically",
            needs=needs,
        ),
        Stage(
            "mypy",
            [venv("mypy"), "--python-executable", venv("python")],
            "python/instep must pass mypy --strict",
            needs=needs,
        ),
    ]


def rust_stages() -> list[Stage]:
    """List the checks of Rust sources that compile none of it."""
    return [
        Stage("cargo fmt", ["cargo", "fmt", "--all", "--check"], "`make fmt` formats it", uses=CARGO),
        Stage(
            "dependencies",
            [sys.executable, "scripts/dependencies.py"],
            "deny.toml has the rules",
            uses=CARGO,
        ),
    ]


def lint_stages() -> list[Stage]:
    """List what runs none of our code; the check of the pages also makes them for the Rust tests to look at."""
    # Cargo waits for the pages, and nothing waits for the environment until the end.
    return [*rust_stages(), build("check-pages", "pages"), *python_stages()]


def lints() -> Stage:
    """Give the compile that makes nothing, for a look at the lints alone."""
    command = ["cargo", "check", "--quiet", *QUICK, "--workspace", "--all-targets"]
    return Stage("clippy, docs", command, LINT_HINT, LINTED, uses=CARGO)


def unit_stages(arguments: list[str]) -> list[Stage]:
    """List the Rust tests, whose compile is the one that clippy and the links of docs are checked in."""
    hint = f"run one test again: make unit ARGS='-p CRATE NAME'; {LINT_HINT}"
    needs = frozenset({"pages"})
    tests = Stage("rust tests", cargo_test(arguments), hint, LINTED, needs=needs, uses=CARGO, show_totals=True)
    examples = ["cargo", "test", *QUICK, "--workspace", "--doc", "--quiet"]
    further = [
        Stage("doc tests", examples, hint, LINTED, needs=needs, uses=CARGO),
        database_on_postgres(frozenset({"rust tests"})),
    ]
    return [tests] if arguments else [tests, *further]


def database_on_postgres(needs: frozenset[str]) -> Stage:
    """Give the tests of the database on the other engine."""
    command = [sys.executable, "scripts/on_postgres.py", *cargo_test(["-p", "instep-database"])]
    return Stage("on PostgreSQL", command, LINT_HINT, LINTED, needs=needs, uses=CARGO, show_totals=True)


def postgres_stages() -> list[Stage]:
    """List the tests of the database, and of the masters that use one, on PostgreSQL.

    Masters get a schema each of one server. tests/sqlite_only.py names what is skipped there.
    """
    suites = [f"tests/{name}" for name in ("detached", "core", "managed", "pages")]
    options = ["-n", str((os.cpu_count() or 1) + 2), "--dist", "loadfile", "--no-loadscope-reorder", "-rs"]
    pytest = [venv("python"), "-m", "pytest", "--durations=10", *options, *suites]
    made = [
        build("check-pages", "pages"),
        build("venv", "environment"),
        database_on_postgres(frozenset({"pages"})),
        build("build", "build", needs=frozenset({"environment", "on PostgreSQL"}), uses=BUILD | CARGO),
        build("determined", "determined", needs=frozenset({"environment"})),
        build("frameworks", "frameworks", needs=frozenset({"environment"})),
    ]
    command = [sys.executable, "scripts/on_postgres.py", "--by-socket", *pytest]
    hint = "run one test again: python3 scripts/on_postgres.py --by-socket .venv/bin/python -m pytest tests/... -k NAME"
    needs = frozenset(stage.name for stage in made)
    return [*made, Stage("pytest", command, hint, needs=needs, alone=True, show_totals=True)]


def cargo_test(arguments: list[str]) -> list[str]:
    """Give the command for Rust tests: nextest where it is installed, else cargo's own.

    `-p CRATE` chooses among the tests of the whole workspace: compiled alone, a crate's dependencies have other
    features and would be compiled once more.
    """
    if not shutil.which("cargo-nextest"):
        everything = [] if "-p" in arguments else ["--workspace"]
        return ["cargo", "test", *QUICK, *everything, "--lib", "--bins", "--tests", *arguments]
    nextest = ["cargo", "nextest", "run", "--config-file", "scripts/nextest.toml", "--no-tests", "pass"]
    if "-p" in arguments[:-1]:
        at = arguments.index("-p")
        arguments = [*arguments[:at], "-E", f"package({arguments[at + 1]})", *arguments[at + 2 :]]
    return [*nextest, "--cargo-profile", "quick", "--workspace", *arguments]


def simulation_stages(arguments: list[str]) -> list[Stage]:
    """List the simulations: the tests of the decisions, which read SEED from the environment."""
    command = cargo_test(["-p", "instep-policy", *arguments])
    return [Stage("simulations", command, "replay with SEED=<seed above> make sim", LINTED, show_totals=True)]


def end_to_end_stages(arguments: list[str]) -> list[Stage]:
    """List the build of what users get, and the tests of that with real torch."""
    pytest = [venv("python"), "-m", "pytest", f"--color={'yes' if sys.stdout.isatty() else 'no'}", "--durations=10"]
    hint = "run one test again: make e2e ARGS='-k NAME -x'"
    made = [
        build("build", "build", needs=frozenset({"environment", "rust tests"}), uses=BUILD | CARGO),
        build("determined", "determined", needs=frozenset({"environment"})),
        build("frameworks", "frameworks", needs=frozenset({"environment"})),
    ]
    if arguments:
        return [made[0], Stage("pytest", [*pytest, *arguments], hint, alone=True, show_totals=True)]
    # Most of a test's time is waiting: for processes to start, for time-outs, for a network that is cut.
    workers = str((os.cpu_count() or 1) + 2)
    suites = ["-n", workers, "--dist", "loadfile", "--no-loadscope-reorder"]
    needs = frozenset(stage.name for stage in made)
    return [*made, Stage("pytest", [*pytest, *suites], hint, needs=needs, alone=True, show_totals=True)]


def stages_of(command: str, arguments: list[str]) -> list[Stage]:
    """List the stages of a command, in the order in which they start when nothing else decides."""
    match command:
        case "all" if (engine := os.environ.get("DB", "")) not in ("", "sqlite"):
            if engine != "postgres":
                fail(f"there is no database `{engine}`", hint="DB=postgres, or none for SQLite", status=2)
            return postgres_stages()
        case "all":
            return [*lint_stages(), *unit_stages([]), *end_to_end_stages([])]
        case "check":
            return [*lint_stages(), *unit_stages([])]
        case "lint":
            return [*lint_stages(), lints()]
        case "unit":
            return unit_stages(arguments)
        case "sim":
            return simulation_stages(arguments)
        case "e2e":
            return end_to_end_stages(arguments)
        case _:
            fail(f"there is no test command `{command}`", hint="all, check, lint, unit, e2e, sim or fmt", status=2)


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
        return
    system.require("test" if command in ("all", "unit", "check", "e2e") else "build")
    Check(stages_of(command, rest)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
