"""Runs what is too long for every commit, in suites of an hour at most.

    python3 scripts/soak.py [SUITE] [PYTEST ARGS]    (`make soak SUITE=ordinary`); without a suite all of them

A suite is a folder of tests/ with tests marked `soak`, or one of: walls (all that users try against agents and each
other; takes root), token (jobs on several nodes, with one; takes root), models (of shared memory, in every order of
accesses), simulations, collectives (every combination), deny (the dependencies, with cargo-deny), fuzz. SOAK_ROUNDS (1)
says how often the tests run, SOAK_FUZZ_SECONDS (60) how long all fuzz targets together, SOAK_SEEDS (20000) how many
fresh schedules every simulation takes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import system
from project import CACHE, ROOT, VENV_PYTHON, cargo_environment, fail, run, say

FUZZ_VERSION = "0.13.2"
DENY_VERSION = "0.20.2"
NO_TESTS_COLLECTED = 5
# What is built before the tests of a folder, where `make build` is not enough.
NEEDED = {
    "detached": ("build", "determined"),
    "e2e": ("build", "wheel"),
    "frameworks": ("build", "frameworks"),
    "ha": ("build", "determined"),
    "kubernetes": ("build", "determined"),
    "managed": ("build", "determined", "frameworks"),
    "ordinary": ("build", "determined", "frameworks"),
}


def soak_tests(folder: str, arguments: list[str]) -> None:
    """Build what users get and run the tests of a folder that are marked `soak`, again and again."""
    for made in ("build", "wheel", "determined", "frameworks"):
        if made in NEEDED.get(folder, ("build",)):
            run([sys.executable, "scripts/build.py", made], what=made)
    rounds = int(os.environ.get("SOAK_ROUNDS", "1"))
    command = [str(VENV_PYTHON), "-m", "pytest", "-m", "soak", f"tests/{folder}", *arguments]
    for number in range(1, rounds + 1):
        say(f"soak round {number} of {rounds}")
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status == NO_TESTS_COLLECTED:
            return
        if status != 0:
            sys.exit(status)


def walls() -> None:
    """Try every escalation chain, also those that CI tries."""
    for made in NEEDED["managed"]:
        run([sys.executable, "scripts/build.py", made], what=made)
    say("walls between users")
    files = [f"tests/managed/test_{name}.py" for name in ("walls", "limits", "quotas")]
    run([VENV_PYTHON, "-m", "pytest", "-m", "soak or not soak", *files], what="try the walls")


def with_token() -> None:
    """Run what jobs on several nodes do in every run once more, with a token."""
    run([sys.executable, "scripts/build.py", "build"], what="build")
    say("jobs with a token")
    names = ("multinode", "elastic", "faults", "network_faults", "network_messages", "secret", "recovery")
    files = [f"tests/e2e/test_{name}.py" for name in names]
    environment = {**os.environ, "INSTEP_TEST_TOKEN": "1"}
    run([VENV_PYTHON, "-m", "pytest", *files], what="run the tests with a token", env=environment)


def models() -> None:
    """Try what ranks share in memory in every order of their accesses, with loom."""
    say("models of the shared memory (loom)")
    flags = f"{os.environ.get('RUSTFLAGS', '')} --cfg loom".strip()
    # A folder of its own: other flags would have everything else compiled anew.
    environment = {**os.environ, "CARGO_TARGET_DIR": str(CACHE / "target-loom"), "RUSTFLAGS": flags}
    run(
        ["cargo", "test", "--release", "--quiet", "-p", "instep-collectives", "--lib", "model::"],
        what="run the models",
        hint="LOOM_LOG=trace and LOOM_LOCATION=1 show the order that failed",
        env=environment,
    )


def simulations() -> None:
    """Run every simulation of the decisions with schedules that nobody has seen before."""
    seeds = int(os.environ.get("SOAK_SEEDS", "20000"))
    say(f"simulations, {seeds} fresh schedules each")
    run(
        ["cargo", "test", "--profile", "quick", "--quiet", "-p", "instep-policy"],
        what="run the simulations",
        hint="SEED=... replays the schedule that failed",
        env={**cargo_environment(), "FRESH_SEEDS": str(seeds)},
    )


def every_combination() -> None:
    """Compare every collective, type, reduction, number of ranks and way with a plain reference; CI takes a sample."""
    say("every combination of the collectives")
    run(
        [
            "cargo",
            "test",
            "--profile",
            "quick",
            "--quiet",
            "-p",
            "instep-collectives",
            "--test",
            "operations",
            "--",
            "--ignored",
        ],
        what="run every combination",
        env=cargo_environment(),
    )


def fuzz() -> None:
    """Feed every fuzz target random input, sharing the time between them."""
    seconds = int(os.environ.get("SOAK_FUZZ_SECONDS", "60"))
    targets = sorted(path.stem for path in (ROOT / "fuzz" / "fuzz_targets").glob("*.rs"))
    if not targets:
        say("fuzz: no targets in fuzz/fuzz_targets")
        return
    tool = installed("cargo-fuzz", FUZZ_VERSION)
    # cargo-fuzz asks for nightly's sanitizer flags; the stable compiler accepts them when told to.
    environment = {**cargo_environment(), "RUSTC_BOOTSTRAP": "1"}
    for target in targets:
        say(f"fuzz {target}")
        run(
            [tool, "run", target, "--", f"-max_total_time={max(1, seconds // len(targets))}", "-print_final_stats=1"],
            what=f"fuzz {target}",
            hint="the input that failed is in fuzz/artifacts",
            env=environment,
        )


def deny() -> None:
    """Check the dependencies with cargo-deny, for known vulnerabilities too where their list can be had."""
    tool = installed("cargo-deny", DENY_VERSION)
    run([tool, "check", "licenses", "bans", "sources"], what="check the dependencies", hint="deny.toml has the rules")
    if subprocess.run([tool, "fetch", "db"], cwd=ROOT, check=False).returncode != 0:
        say("the list of vulnerabilities cannot be had here; not checked")
        return
    run([tool, "check", "--disable-fetch", "advisories"], what="check for known vulnerabilities")


def installed(tool: str, version: str) -> str:
    """Find one of cargo's tools, or compile it once per machine."""
    if found := shutil.which(tool):
        return found
    folder = CACHE / f"{tool}-{version}"
    if not (folder / "bin" / tool).is_file():
        say(f"installing {tool} (once per machine)")
        run(
            ["cargo", "install", "--quiet", "--locked", "--root", folder, "--version", version, tool],
            what=f"install {tool}",
        )
    return str(folder / "bin" / tool)


def main(arguments: list[str]) -> None:
    """Run one suite, or all of them."""
    system.require("soak")
    folders = sorted({path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")})
    named = bool(arguments) and not arguments[0].startswith("-")
    chosen, rest = ([arguments[0]], arguments[1:]) if named else ([*OTHERS, *folders], arguments)
    for name in chosen:
        if name in OTHERS:
            OTHERS[name]()
        elif name in folders:
            soak_tests(name, rest)
        else:
            fail(f"there is no soak suite `{name}`", hint=f"one of: {', '.join([*OTHERS, *folders])}", status=2)


# What runs without pytest.
OTHERS = {
    "walls": walls,
    "token": with_token,
    "models": models,
    "simulations": simulations,
    "collectives": every_combination,
    "deny": deny,
    "fuzz": fuzz,
}

if __name__ == "__main__":
    main(sys.argv[1:])
