"""What the suite shares: the process that ranks are forked from, and the interpreter with Lightning."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def zygote(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The command that has a script run in a fork of a process with torch imported: put the script behind it."""
    path = tmp_path_factory.mktemp("zygote") / "socket"
    with subprocess.Popen(
        [python, HERE / "zygote.py", path, *PRELOADED],
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
def python_with_lightning() -> Path:
    """The interpreter that sees Lightning, torch and instep: `scripts/build.py frameworks` makes it."""
    return built(ROOT / "build" / "frameworks" / "bin" / "python")
