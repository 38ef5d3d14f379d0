"""An interpreter that has torch imported already, so that programs start in milliseconds instead of seconds."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# What programs find imported; the compiler because DDP and optimizers import it.
PRELOADED = (
    "torch._dynamo",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.launcher.api",
    "torch.nn.parallel",
    "torch.utils.data",
    "instep.backend",
    "instep.elastic",
)


@contextlib.contextmanager
def forking(python: Path, folder: Path, modules: Sequence[str] = PRELOADED) -> Iterator[Path]:
    """Give an interpreter whose programs are forks of a process that has these imported."""
    with subprocess.Popen(
        [python, HERE / "process.py", folder / "socket", *modules],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            pytest.fail(f"the zygote ended with status {process.wait()}", pytrace=False)
        forked = folder / "python"
        forked.write_text(f"#!{sys.executable} -IS\n{(HERE / 'stand_in.py').read_text()}")
        forked.chmod(0o755)
        yield forked
        process.kill()
