"""Builds the `instep` binary, the wheel, and a `.venv` in which both can be tried with torch.

    python3 scripts/build.py             target/quick/instep, build/quick/*.whl, .venv   (`make build`)
    python3 scripts/build.py wheel       target/release/instep, dist/*.whl               (`make wheel`)
    python3 scripts/build.py release     the same, and installed in .venv, for benchmarks
    python3 scripts/build.py venv        .venv with torch and the test tools, without instep
    python3 scripts/build.py pages       web/dist, the pages that the binary embeds
    python3 scripts/build.py check-pages the same, then their types and tests
    python3 scripts/build.py determined  build/determined, where the detached tests find Determined's client
    python3 scripts/build.py frameworks  build/frameworks: Lightning and others, over .venv's torch and instep
    python3 scripts/build.py lock        requirements/*lock.txt from the other requirements (`make lock`)

There are two builds. The quick one, for this machine, is what `make demo` and `make test` use: cargo's profile `quick`,
which the Rust tests share, so that everything is compiled once. The portable one is what users install: whole-program
optimisation, with zig as C compiler and linker against glibc 2.28, so that one wheel (manylinux_2_28) runs on older
clusters too; maturin packs it. Meanwhile uv installs torch. Each step is skipped when its inputs have not changed.

A private environment with uv, maturin and zig is made once per machine, in ~/.cache/instep. There lies cargo's target
folder too, shared by all clones (choose another with INSTEP_TARGET_DIR or CARGO_TARGET_DIR).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import audit
import pages
import system
from pack import pack
from project import (
    BOLD,
    BUILD,
    CACHE,
    DIM,
    DIST,
    REQUIREMENTS,
    ROOT,
    VENV,
    VENV_PYTHON,
    cargo_environment,
    colour,
    digest,
    fail,
    locked,
    run,
    say,
    stamped,
    target_dir,
)

# The oldest glibc the release runs on: RHEL 8, Debian 10, Ubuntu 18.10 and later. The wheel's tag says the same.
GLIBC = audit.OLDEST_GLIBC
TARGET = "x86_64-unknown-linux-gnu"
WHEEL_DATA = ROOT / "python" / "instep.data"
# Lies beside the package in site-packages and puts one of its folders behind site-packages on Python's path: there is
# `smdistributed`, found only where SageMaker's own is not installed. A path alone: no code runs when Python starts.
PATH_FILE = ("instep-smddp.pth", "instep/_smddp\n")
# A `.pth` file of the environments that tests use. Importing torch makes two million objects, and leaving looks at them
# again: a quarter of the time of such a process is garbage collection which finds nothing. Processes that a test has
# started do without.
QUICK_START = (
    "import atexit, gc, os; 'PYTEST_CURRENT_TEST' in os.environ"
    " and (gc.set_threshold(50_000), atexit.register(gc.freeze))\n"
)
LOCK = REQUIREMENTS / "lock.txt"
FRAMEWORKS_LOCK = REQUIREMENTS / "frameworks-lock.txt"
LOCK_SOURCES = [REQUIREMENTS / f"{name}.txt" for name in ("torch", "test", "build")]
# What many processes of the tests import at the same time.
TORCH_MODULES = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.run", "torch.utils.data")
DETERMINED_MODULES = (
    "determined.cli.cli",
    "determined.core",
    "determined.launch.torch_distributed",
    "jupyterlab.labapp",
)
WHEEL_INPUTS = [
    ROOT / name for name in ("Cargo.toml", "Cargo.lock", "crates", "python/instep", "pyproject.toml", "LICENSE")
]


@dataclass(frozen=True)
class Kind:
    """A way to build: cargo's profile, and where the wheel goes."""

    profile: str
    wheels: Path
    # Runs on other machines, old ones too.
    portable: bool

    @property
    def binary(self) -> Path:
        """The native binary."""
        return ROOT / "target" / self.profile / "instep"

    def built(self) -> list[Path]:
        """List the wheels that were built this way."""
        return sorted(self.wheels.glob("instep-*.whl"))


QUICK = Kind("quick", BUILD / "quick", portable=False)
PORTABLE = Kind("release", DIST, portable=True)


def step(name: str, text: str) -> None:
    """Show what is being done."""
    say(f"{colour(f'{name:>12}', BOLD)}  {text}")


def tools() -> Path:
    """Give the bin folder of the private environment with uv, maturin and zig, made on first use."""
    requirements = REQUIREMENTS / "build.txt"
    # The path is part of what cargo remembers (it names the linker), so it must be the same for every clone.
    identity = digest([], requirements.read_text(), sys.version)[:12]
    folder = CACHE / f"tools-{identity}"
    stamp = folder / "complete"
    with locked(CACHE / "tools.lock", "another build is installing the build tools"):
        if not stamp.is_file():
            step("tools", "installing uv, maturin and zig (once per machine)")
            shutil.rmtree(folder, ignore_errors=True)
            network = "check that PyPI, or the index that pip is configured with, can be reached"
            run([sys.executable, "-m", "venv", folder], what="create the build tools' environment", quiet=True)
            run(
                [
                    folder / "bin/python",
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    "--requirement",
                    requirements,
                ],
                what="install the build tools",
                hint=network,
                quiet=True,
            )
            write_zig_wrappers(folder)
            stamp.touch()
    return folder / "bin"


def write_zig_wrappers(folder: Path) -> None:
    """Write `zig-cc` and friends: what cargo, the cc crate and maturin call as the C compiler and linker.

    cargo-zigbuild and maturin could each make their own, but then cargo sees two linkers and compiles everything twice.
    """
    [zig] = folder.glob("lib/python*/site-packages/ziglang/zig")
    for name, command, options in (
        ("zig-cc", "cc", f"-g -fno-sanitize=all -target x86_64-linux-gnu.{GLIBC}"),
        ("zig-c++", "c++", f"-g -fno-sanitize=all -target x86_64-linux-gnu.{GLIBC}"),
        ("zig-ar", "ar", ""),
        ("zig-ranlib", "ranlib", ""),
    ):
        wrapper = folder / "bin" / name
        wrapper.write_text(
            "#!/bin/sh\n"
            f"export CARGO_ZIGBUILD_ZIG_PATH='{zig}'\n"
            f"exec '{folder}/bin/cargo-zigbuild' zig {command} -- {options} \"$@\"\n"
        )
        wrapper.chmod(0o755)


def release_environment(bin_folder: Path) -> dict[str, str]:
    """Give the environment for cargo and maturin: zig against the oldest glibc, target folder shared by clones."""
    suffix = TARGET.replace("-", "_")
    return {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "CARGO_TARGET_DIR": str(target_dir()),
        f"CARGO_TARGET_{suffix.upper()}_LINKER": str(bin_folder / "zig-cc"),
        f"CC_{suffix}": str(bin_folder / "zig-cc"),
        f"CXX_{suffix}": str(bin_folder / "zig-c++"),
        f"AR_{suffix}": str(bin_folder / "zig-ar"),
        f"RANLIB_{suffix}": str(bin_folder / "zig-ranlib"),
    }


def build_wheel(bin_folder: Path, kind: Kind) -> Path:
    """Compile the binary and the extension and pack the wheel; do nothing when no input has changed."""
    stamp = BUILD / f"wheel-{kind.profile}.stamp"
    own = [ROOT / "scripts" / name for name in ("build.py", "pack.py")]
    inputs = digest([*WHEEL_INPUTS, *pages.INPUTS, *own], str(bin_folder))
    if stamped(stamp, inputs) and kind.binary.is_file() and len(kind.built()) == 1:
        return kind.built()[0]
    pages.build(bin_folder, step, uv_environment())
    # The target folder is shared: nobody else may build between compiling and copying.
    with locked(target_dir() / "instep.lock", "another clone is building in the same target folder"):
        fresh = BUILD / "wheel"
        shutil.rmtree(fresh, ignore_errors=True)
        wheel = (portable_wheel if kind.portable else quick_wheel)(bin_folder, kind, fresh)
    for old in kind.built():
        old.unlink()
    replace(wheel, kind.wheels / wheel.name)
    stamp.write_text(inputs)
    return kind.wheels / wheel.name


FIRST_ERROR = "start with cargo's first error above"


def quick_wheel(_bin_folder: Path, kind: Kind, folder: Path) -> Path:
    """Build for this machine: the packages and features of the tests, so that nothing is compiled twice."""
    step("binary", f"cargo build --profile {kind.profile}")
    run(
        ["cargo", "build", "--profile", kind.profile, "--workspace"],
        what="build the binary",
        hint=FIRST_ERROR,
        env=cargo_environment(),
    )
    built = target_dir() / kind.profile
    collect_data(built / "instep", kind)
    return pack(built / "lib_native.so", WHEEL_DATA, folder)


def portable_wheel(bin_folder: Path, kind: Kind, folder: Path) -> Path:
    """Build what users install, for this machine and older ones."""
    environment = release_environment(bin_folder)
    step("binary", f"cargo build --profile {kind.profile}")
    run(
        ["cargo", "build", "--profile", kind.profile, "--target", TARGET, "--package", "instep"],
        what="build the binary",
        hint=FIRST_ERROR,
        env=environment,
    )
    collect_data(target_dir() / TARGET / kind.profile / "instep", kind)
    step("wheel", f"maturin build --profile {kind.profile}")
    run(
        [
            bin_folder / "maturin",
            "build",
            "--profile",
            kind.profile,
            "--target",
            TARGET,
            "--compatibility",
            f"manylinux_{GLIBC.replace('.', '_')}",
            "--auditwheel",
            "check",
            "--out",
            folder,
        ],
        what="build the wheel",
        hint=FIRST_ERROR,
        env=environment,
    )
    [wheel] = folder.glob("*.whl")
    audit.check_wheel(wheel)
    return wheel


def collect_data(binary: Path, kind: Kind) -> None:
    """Put the binary where people find it, and with the `.pth` file into what the wheel carries beside the package."""
    replace(binary, kind.binary)
    shutil.rmtree(WHEEL_DATA, ignore_errors=True)
    replace(binary, WHEEL_DATA / "scripts" / "instep")
    write_path_file()


def write_path_file() -> None:
    """Write the `.pth` file into the wheel's data: `platlib` is where the package itself goes."""
    name, text = PATH_FILE
    folder = WHEEL_DATA / "platlib"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def replace(source: Path, destination: Path) -> None:
    """Copy a file in one step, so that a running binary keeps its own file and nobody sees half of one."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(f".{destination.name}.{os.getpid()}")
    shutil.copy2(source, partial)
    partial.replace(destination)


def uv_environment() -> dict[str, str]:
    """Give the environment for uv: patient with large downloads, and using the index that pip is told to use."""
    environment = {"UV_HTTP_TIMEOUT": "300", **os.environ}
    if index := os.environ.get("PIP_INDEX_URL"):
        environment.setdefault("UV_DEFAULT_INDEX", index)
    return environment


def install_locked(bin_folder: Path) -> None:
    """Make `.venv` with torch and the test tools, as requirements/lock.txt has them."""
    stamp = VENV / "requirements.stamp"
    wanted = digest([], LOCK.read_text(), sys.version, QUICK_START, *TORCH_MODULES)
    if stamped(stamp, wanted):
        return
    step("environment", "installing torch and the test tools into .venv (the first time on a machine: some 3 GB)")
    environment = uv_environment()
    say_lines([bin_folder / "uv", "venv", "--quiet", "--allow-existing", "--python", sys.executable, VENV], environment)
    say_lines([bin_folder / "uv", "pip", "install", "--python", VENV_PYTHON, "--requirement", LOCK], environment)
    start_quickly(packages_of(VENV))
    import_once(VENV_PYTHON, TORCH_MODULES)
    stamp.write_text(wanted)


def start_quickly(packages: Path) -> None:
    """Have the processes of tests import torch in less time; see QUICK_START."""
    (packages / "tests.pth").write_text(QUICK_START)


def packages_of(environment: Path) -> Path:
    """Give the folder of a virtual environment's packages."""
    [packages] = environment.glob("lib/python*/site-packages")
    return packages


def import_once(python: Path, modules: tuple[str, ...]) -> None:
    """Import modules, so that their bytecode is there before many processes want it at once.

    All that is installed would be ten times as many, most of which no process ever imports.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run([python, "-c", f"import {', '.join(modules)}"], what=f"import {modules[0]}", env=environment)


def install_determined(bin_folder: Path) -> None:
    """Make build/determined with the unmodified `determined` package, for the detached tests."""
    folder = BUILD / "determined"
    stamp = folder / "requirements.stamp"
    sources = [REQUIREMENTS / "determined.txt", REQUIREMENTS / "torch.txt"]
    wanted = digest(sources, sys.version, QUICK_START, *DETERMINED_MODULES)
    if stamped(stamp, wanted):
        return
    step("determined", "installing determined's client into build/determined")
    environment = uv_environment()
    python = folder / "bin" / "python"
    say_lines(
        [bin_folder / "uv", "venv", "--quiet", "--allow-existing", "--python", sys.executable, folder], environment
    )
    say_lines([bin_folder / "uv", "pip", "install", "--python", python, "--requirement", sources[0]], environment)
    start_quickly(packages_of(folder))
    import_once(python, (*TORCH_MODULES, *DETERMINED_MODULES))
    stamp.write_text(wanted)


def install_frameworks(bin_folder: Path) -> None:
    """Make build/frameworks with what requirements/frameworks-lock.txt has; torch and instep are those of `.venv`."""
    folder = BUILD / "frameworks"
    stamp = folder / "requirements.stamp"
    wanted = digest([FRAMEWORKS_LOCK], sys.version, QUICK_START)
    if stamped(stamp, wanted):
        return
    step("frameworks", "installing Lightning and others into build/frameworks")
    environment = uv_environment()
    say_lines([bin_folder / "uv", "venv", "--quiet", "--clear", "--python", sys.executable, folder], environment)
    say_lines(
        [bin_folder / "uv", "pip", "install", "--no-deps", "--python", folder, "--requirement", FRAMEWORKS_LOCK],
        environment,
    )
    packages = packages_of(folder)
    start_quickly(packages)
    # Searched last: what is in both is the frameworks' own.
    (packages / "venv.pth").write_text(f"{VENV / packages.relative_to(folder)}\n")
    stamp.write_text(wanted)


def say_lines(command: list[str | Path], environment: dict[str, str]) -> None:
    """Run uv beside cargo, its lines marked so that the two can be told apart; RuntimeError when it fails."""
    with subprocess.Popen(
        [str(word) for word in command],
        cwd=ROOT,
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(" + "):
                continue  # the list of everything installed says no more than requirements/lock.txt
            say(colour(f"{'environment':>12}  {line.rstrip()}", DIM))
    if process.returncode != 0:
        raise RuntimeError(f"`uv {command[1]}` ended with status {process.returncode}, see its lines above")


def install_wheel(bin_folder: Path, wheel: Path) -> None:
    """Put the wheel into `.venv`, replacing an older one."""
    stamp = VENV / "instep.stamp"
    wanted = digest([wheel])
    if stamped(stamp, wanted) and (VENV / "bin" / "instep").is_file():
        return
    step("environment", f"installing {wheel.name}")
    run(
        [
            bin_folder / "uv",
            "pip",
            "install",
            "--quiet",
            "--offline",
            "--no-deps",
            "--reinstall",
            "--python",
            VENV_PYTHON,
            wheel,
        ],
        what="install the wheel into .venv",
        hint="`make clean build` starts afresh",
        env=uv_environment(),
    )
    stamp.write_text(wanted)


def build_all(bin_folder: Path, kind: Kind) -> None:
    """Build the wheel while `.venv` is being filled, then join the two."""
    errors: list[Exception] = []

    def environment() -> None:
        try:
            install_locked(bin_folder)
        except (OSError, RuntimeError) as error:
            errors.append(error)

    side = threading.Thread(target=environment, name="environment", daemon=True)
    side.start()
    try:
        wheel = build_wheel(bin_folder, kind)
    finally:
        side.join(timeout=0.5)
        if side.is_alive():
            step("environment", "waiting for uv to finish")
        side.join()
    fail_if_any(errors)
    install_wheel(bin_folder, wheel)


def fail_if_any(errors: list[Exception]) -> None:
    """End the script when filling `.venv` went wrong."""
    if errors:
        fail(
            "cannot install packages into .venv",
            cause=str(errors[0]),
            hint="check that PyPI can be reached, then run the command again",
        )


def lock(bin_folder: Path) -> None:
    """Resolve the requirements into versions of everything they pull in."""
    resolve(bin_folder, LOCK_SOURCES, LOCK)
    installed = [line.partition("==")[0] for line in LOCK.read_text().splitlines()]
    elsewhere = [word for name in installed for word in ("--no-emit-package", name)]
    resolve(bin_folder, [REQUIREMENTS / "frameworks.txt"], FRAMEWORKS_LOCK, *elsewhere)


def resolve(bin_folder: Path, sources: list[Path], result: Path, *options: str) -> None:
    """Write down the versions of everything that some requirements pull in."""
    run(
        [
            bin_folder / "uv",
            "pip",
            "compile",
            "--quiet",
            "--no-header",
            "--no-annotate",
            "--no-emit-index-url",
            "--upgrade",
            "--python-version",
            "3.11",
            "--output-file",
            result,
            *options,
            *sources,
        ],
        what="resolve the requirements",
        env=uv_environment(),
        quiet=True,
    )
    step("lock", f"{result.relative_to(ROOT)}: {len(result.read_text().splitlines())} packages")


def main(arguments: list[str]) -> None:
    """Run one of the commands of the module's description."""
    command = arguments[0] if arguments else "build"
    started = time.monotonic()
    system.require("build")
    with locked(BUILD / "build.lock", "another build is running in this clone"):
        bin_folder = tools()
        match command:
            case "build":
                build_all(bin_folder, QUICK)
                made = "target/quick/instep, build/quick, .venv"
            case "wheel":
                made = str(build_wheel(bin_folder, PORTABLE).relative_to(ROOT))
            case "release":
                build_all(bin_folder, PORTABLE)
                made = "target/release/instep, dist, .venv"
            case "pages":
                pages.build(bin_folder, step, uv_environment())
                made = "web/dist"
            case "check-pages":
                pages.check(bin_folder, step, uv_environment())
                made = "web/dist, checked"
            case "venv":
                try:
                    install_locked(bin_folder)
                except RuntimeError as error:
                    fail_if_any([error])
                made = ".venv"
            case "determined":
                try:
                    install_determined(bin_folder)
                except RuntimeError as error:
                    fail("cannot install determined's client", cause=str(error), hint="check that PyPI can be reached")
                made = "build/determined"
            case "frameworks":
                try:
                    install_frameworks(bin_folder)
                except RuntimeError as error:
                    fail("cannot install the frameworks", cause=str(error), hint="check that PyPI can be reached")
                made = "build/frameworks"
            case "lock":
                lock(bin_folder)
                made = "requirements/*lock.txt"
            case _:
                fail(
                    f"there is no build command `{command}`",
                    hint="one of: build, wheel, release, pages, check-pages, venv, determined, frameworks, lock",
                    status=2,
                )
    step("ready", f"{made} ({time.monotonic() - started:.1f} s)")


if __name__ == "__main__":
    main(sys.argv[1:])
