"""The wheel as users get it: installed alone, without torch, into an environment made for this test."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT, Runner


@pytest.fixture(scope="module")
def installed(uv: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment that holds nothing but the wheel."""
    folder = tmp_path_factory.mktemp("wheel") / "venv"
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, folder],
        [uv, "pip", "install", "--quiet", "--offline", "--python", folder / "bin" / "python", wheel],
    ):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    return folder / "bin"


def clean(**more: str) -> dict[str, str | None]:
    """An environment in which neither the project's own `.venv` nor a choice of interpreter can help."""
    return {"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": None, "PYTHONPATH": None, "PYTHON_EXEC": None, **more}


@pytest.mark.soak  # compiling it takes ten minutes
def test_one_wheel_serves_every_python_and_runs_on_glibc_2_28(portable_wheel: Path, run: Runner) -> None:
    assert portable_wheel.name.split("-", 2)[2] == "cp310-abi3-manylinux_2_28_x86_64.whl"
    audited = run("python3", ROOT / "scripts" / "audit.py", portable_wheel).expect(0)
    assert "instep/_native.abi3.so: glibc 2." in audited.stdout
    assert ".data/scripts/instep: glibc 2." in audited.stdout
    holds_the_typed_package_and_asks_for_nothing(portable_wheel)


def test_wheel_holds_the_typed_package_and_asks_for_nothing(wheel: Path) -> None:
    holds_the_typed_package_and_asks_for_nothing(wheel)


def holds_the_typed_package_and_asks_for_nothing(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    assert "instep/py.typed" in names
    assert not [name for name in names if "__pycache__" in name]
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    assert all("extra ==" in line for line in required), required
    assert "Requires-Python: >=3.10" in metadata


def test_the_binary_in_the_wheel_is_the_one_in_target(wheel: Path, instep: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".data/scripts/instep")]
        assert archive.read(name) == instep.read_bytes()


def test_command_and_package_tell_the_same_version(installed: Path, wheel: Path, run: Runner) -> None:
    version = wheel.name.split("-")[1]
    assert run(installed / "instep", "--version", env=clean()).expect(0).stdout == f"instep {version}\n"
    assert run(installed / "python", "-m", "instep", "--version", env=clean()).expect(0).stdout == f"instep {version}\n"
    code = "import instep; print(instep.__version__)"
    assert run(installed / "python", "-c", code, env=clean()).expect(0).stdout == f"{version}\n"


@pytest.mark.parametrize("module", ["instep.run", "instep.launch"])
def test_module_shows_the_launcher_help(installed: Path, run: Runner, module: str) -> None:
    shown = run(installed / "python", "-m", module, "--help", env=clean()).expect(0)
    assert "--nproc-per-node" in shown.stdout


@pytest.mark.parametrize("module", ["instep.run", "instep.launch"])
def test_workers_run_under_the_interpreter_of_the_module(
    installed: Path, run: Runner, tmp_path: Path, module: str
) -> None:
    script = tmp_path / "show.py"
    script.write_text("import sys; print('worker runs', sys.executable)\n")
    shown = run(installed / "python", "-m", module, script, env=clean()).expect(0)
    assert f"worker runs {installed / 'python'}" in shown.stdout


def test_missing_binary_is_explained(installed: Path, run: Runner, tmp_path: Path) -> None:
    copied = tmp_path / "instep"
    copied.mkdir()
    [package] = installed.parent.glob("lib/python*/site-packages/instep")
    for file in package.glob("*.py"):
        (copied / file.name).write_bytes(file.read_bytes())
    # An interpreter with no binary beside it: the one this environment was made from.
    base = Path(sys.base_prefix) / "bin" / "python3"
    if (base.parent / "instep").exists():
        pytest.skip("the base interpreter has its own instep")
    shown = run(base, "-m", "instep.run", "--help", cwd=tmp_path, env=clean(HOME=str(tmp_path))).expect(127)
    assert "error: cannot find the native binary `instep`" in shown.stderr
    assert "hint: reinstall with" in shown.stderr


def test_import_loads_next_to_nothing(installed: Path, run: Runner) -> None:
    code = (
        "import sys, instep, instep.run; print([m for m in ('torch', 'numpy', 'instep._native') if m in sys.modules])"
    )
    assert run(installed / "python", "-c", code, env=clean()).expect(0).stdout == "[]\n"

    # Every interpreter with our file of paths pays for what this imports.
    code = "import sys; before = set(sys.modules); import instep; print(*sorted(set(sys.modules) - before))"
    imported = run(installed / "python", "-c", code, env=clean()).expect(0).stdout.split()
    assert imported == ["__future__", "instep", "instep._registration"]


def test_native_extension_loads(installed: Path, run: Runner) -> None:
    run(installed / "python", "-c", "import instep._native", env=clean()).expect(0)


def test_demo_runs_without_torch(installed: Path, run: Runner, tmp_path: Path) -> None:
    shown = run(installed / "instep", "demo", env=clean(HOME=str(tmp_path)), cwd=tmp_path).expect(0)
    assert shown.stdout.strip()


def test_bench_without_torch_says_what_to_install(installed: Path, run: Runner) -> None:
    shown = run(installed / "instep", "bench", "collectives", env=clean()).expect(1)
    python = installed / "python"
    assert shown.stderr == f"error: torch is not installed for {python}\nhint: {python} -m pip install torch\n"
