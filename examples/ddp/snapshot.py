"""Snapshot files that survive a kill at any moment.

A snapshot is a dictionary of tensors and plain values. It is written beside its final name and renamed into place, so
a reader finds the previous one or the new one and never half of either. torch.save writes a zip archive, which has a
checksum of every tensor: a file that was changed later is not trained from.
"""

import os
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from toy import say

Snapshot = dict[str, Any]
# How long a rank waits for the launcher after another rank has failed.
SECONDS_TO_BE_ENDED = 30


def save(snapshot: Snapshot, path: str) -> None:
    """Replace `path` in one step, after the bytes have reached the disk."""
    unfinished = Path(f"{path}.tmp")
    with unfinished.open("wb") as file:
        torch.save(snapshot, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(unfinished.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # makes the rename itself durable
    finally:
        os.close(folder)


def load(path: str, keys: tuple[str, ...]) -> Snapshot | None:
    """Read `path` on rank 0 and hand it to every rank; None when there is no such file.

    One reader keeps the ranks in agreement also where the nodes share no file system. A file that cannot be used ends
    the job: rank 0 says why and ends first, so that launchers report it and end the others.
    """
    snapshot, problem = _read(Path(path), keys) if dist.get_rank() == 0 else (None, None)
    if problem:
        sys.stderr.write(
            f"error: cannot resume from {path}: {problem}\n"
            "hint: remove the file to train from the start, or put a good copy in its place\n"
        )
    shared = [snapshot, problem]
    dist.broadcast_object_list(shared, src=0)
    snapshot, problem = shared
    if problem:
        if dist.get_rank() > 0:
            time.sleep(SECONDS_TO_BE_ENDED)
        sys.exit(1)
    return snapshot


def _read(path: Path, keys: tuple[str, ...]) -> tuple[Snapshot | None, str | None]:
    """The snapshot, or why there is none to be had."""
    if not path.exists():
        return None, None
    say(f"Loading snapshot from {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch.load itself compares no checksums
        if damaged:
            return None, f"it is damaged: {damaged} does not have the checksum that was saved with it"
        snapshot = torch.load(path, map_location="cpu", weights_only=True)
    except zipfile.BadZipFile:
        return None, f"it is incomplete or was not written by torch.save ({path.stat().st_size} bytes)"
    except Exception as error:  # whatever torch makes of such a file: none of it is a reason to train from it
        return None, f"{type(error).__name__}: {str(error).partition(chr(10))[0].partition('. ')[0]}"
    missing = [key for key in keys if not isinstance(snapshot, dict) or key not in snapshot]
    if missing:
        return None, f"it has no {', '.join(missing)}: another program wrote it"
    return snapshot, None
