"""An interpreter that has torch imported already, so that programs start in milliseconds instead of seconds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KEEP = b"keep"  # as in process.py
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
def forking(
    python: Path, name: str, temporary: pytest.TempPathFactory, modules: Sequence[str] = PRELOADED
) -> Iterator[Path]:
    """Give an interpreter whose programs are forks of a process that has these imported, one for all test processes."""
    root = temporary.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / f"zygote-{name}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = keep(folder / "socket")
        if kept is None:
            start(python, folder, modules)
            kept = keep(folder / "socket")
    assert kept is not None
    with kept:
        yield folder / "python"


def keep(path: Path) -> socket.socket | None:
    """Connect to a zygote, which lives as long as somebody is connected; `None` if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(str(path))
        connection.send(KEEP)
        if connection.recv(len(KEEP)) == KEEP:
            return connection
    except (FileNotFoundError, ConnectionError):
        pass
    connection.close()
    return None


def start(python: Path, folder: Path, modules: Sequence[str]) -> None:
    """Start a zygote, and wait until it has imported what it is to import."""
    (folder / "socket").unlink(missing_ok=True)
    process = subprocess.Popen(
        [python, HERE / "process.py", folder / "socket", *modules],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout as words:
        if words.readline() != "ready\n":
            pytest.fail(f"the zygote ended with status {process.wait()}", pytrace=False)
    # It may outlive this process, if others use it still.
    process.returncode = 0
    (folder / "interpreter").unlink(missing_ok=True)
    (folder / "interpreter").symlink_to(python)
    forked = folder / "python"
    forked.write_text(f"#!{sys.executable} -IS\n{(HERE / 'stand_in.py').read_text()}")
    forked.chmod(0o755)
    (folder / "python3").unlink(missing_ok=True)
    (folder / "python3").symlink_to("python")
