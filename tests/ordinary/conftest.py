"""What the suite shares: the processes that ranks are forked from."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from conftest import ROOT, built

HERE = Path(__file__).parent
# What ranks find imported; the compiler because DDP and optimizers import it.
PRELOADED = (
    "torch._dynamo",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "instep.backend",
)


@contextlib.contextmanager
def forking(python: Path, folder: Path, modules: Sequence[str]) -> Iterator[list[str]]:
    """Give the command that has a script run in a fork of a process with these imported: put the script behind it."""
    path = folder / "socket"
    with subprocess.Popen(
        [python, HERE / "zygote.py", path, *modules],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            pytest.fail(f"the zygote ended with status {process.wait()}", pytrace=False)
        yield [sys.executable, "-I", "-S", str(HERE / "zygote_rank.py"), str(path)]
        process.kill()


@pytest.fixture(scope="session")
def zygote(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The command of a rank that finds torch imported."""
    with forking(python, tmp_path_factory.mktemp("zygote"), PRELOADED) as command:
        yield command


@pytest.fixture(scope="session")
def zygote_with_lightning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The same with Lightning, in the environment that `scripts/build.py frameworks` makes."""
    python = built(ROOT / "build" / "frameworks" / "bin" / "python")
    with forking(python, tmp_path_factory.mktemp("zygote"), (*PRELOADED, "lightning")) as command:
        yield command
