"""Runs what is too long for every commit: models of shared memory, tests marked `soak`, repeated, a minute of fuzzing.

    python3 scripts/soak.py [PYTEST ARGS]    (`make soak`)

SOAK_ROUNDS (1) says how often the tests run, SOAK_FUZZ_SECONDS (60) how long all fuzz targets together, SOAK_SEEDS
(20000) how many fresh schedules every simulation takes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import system
from project import CACHE, ROOT, VENV_PYTHON, cargo_environment, run, say

FUZZ_VERSION = "0.13.2"
NO_TESTS_COLLECTED = 5


def soak_tests(arguments: list[str], rounds: int) -> None:
    """Run the tests marked `soak` again and again."""
    command = [str(VENV_PYTHON), "-m", "pytest", "-m", "soak", *arguments]
    for number in range(1, rounds + 1):
        say(f"soak round {number} of {rounds}")
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status == NO_TESTS_COLLECTED:
            return
        if status != 0:
            sys.exit(status)


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


def simulations(seeds: int) -> None:
    """Run every simulation of the decisions with schedules that nobody has seen before."""
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


def fuzz(seconds: int) -> None:
    """Feed every fuzz target random input, sharing the time between them."""
    targets = sorted(path.stem for path in (ROOT / "fuzz" / "fuzz_targets").glob("*.rs"))
    if not targets:
        say("fuzz: no targets in fuzz/fuzz_targets")
        return
    tool = cargo_fuzz()
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


def cargo_fuzz() -> str:
    """Find cargo-fuzz, or compile it once per machine."""
    if found := shutil.which("cargo-fuzz"):
        return found
    folder = CACHE / f"cargo-fuzz-{FUZZ_VERSION}"
    if not (folder / "bin" / "cargo-fuzz").is_file():
        say("installing cargo-fuzz (once per machine)")
        run(
            ["cargo", "install", "--quiet", "--locked", "--root", folder, "--version", FUZZ_VERSION, "cargo-fuzz"],
            what="install cargo-fuzz",
        )
    return str(folder / "bin" / "cargo-fuzz")


def main(arguments: list[str]) -> None:
    """Build, model, soak, fuzz."""
    system.require("soak")
    run([sys.executable, "scripts/build.py", "build"], what="build")
    run([sys.executable, "scripts/build.py", "wheel"], what="build the wheel that users install")
    run([sys.executable, "scripts/build.py", "determined"], what="install Determined's client")
    run([sys.executable, "scripts/build.py", "frameworks"], what="install the frameworks")
    models()
    simulations(int(os.environ.get("SOAK_SEEDS", "20000")))
    every_combination()
    soak_tests(arguments, int(os.environ.get("SOAK_ROUNDS", "1")))
    fuzz(int(os.environ.get("SOAK_FUZZ_SECONDS", "60")))


if __name__ == "__main__":
    main(sys.argv[1:])
