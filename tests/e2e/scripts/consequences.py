"""Ranks of which one ends and the others end because of it: `consequences.py FOLDER BACKEND WAY`.

Rank 1 is the cause, and stays until rank 0 has ended: the launcher sees the consequence first.
"""

import atexit
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def outlive(process: int, code: int) -> None:
    """Leave the group, wait until the process of another rank has ended, and end at once: torch takes its time."""
    dist.destroy_process_group()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            break
        if state in "ZX":
            break
        time.sleep(0.01)
    os._exit(code)


folder, backend, way = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
rank = int(os.environ["RANK"])
(folder / f"pid-{rank}").write_text(str(os.getpid()))
dist.init_process_group(backend, timeout=timedelta(seconds=30 if way != "late" else 3))
for step in range(20):
    if step == 5 and rank == 1:
        if way != "late":
            atexit.register(outlive, int((folder / "pid-0").read_text()), int(way == "raises"))
        if way == "raises":
            raise ValueError("boom")
        if way == "leaves":
            sys.exit(0)
        time.sleep(600)
    dist.all_reduce(torch.ones(4))
