"""Processes that ranks are forked from, so that a rank costs milliseconds instead of the seconds that torch takes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

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
        [python, HERE / "process.py", path, *modules],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            pytest.fail(f"the zygote ended with status {process.wait()}", pytrace=False)
        yield [sys.executable, "-I", "-S", str(HERE / "rank.py"), str(path)]
        process.kill()
