"""A rank that takes steps of a steady length until FOLDER/end exists, and writes how long each took.

steady.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

# What computes in a real step; the rest is what the strangers could disturb.
COMPUTE_S = 0.03
FOR_EVER_S = 1800.0


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("instep")
    rank = dist.get_rank()
    tensor, steps = torch.ones(64 << 10), []
    deadline = time.monotonic() + FOR_EVER_S
    ending = torch.zeros(1)
    while not ending.item() and time.monotonic() < deadline:
        began = time.monotonic()
        time.sleep(COMPUTE_S)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        steps.append((began, time.monotonic() - began))
        ending.fill_(float(rank == 0 and (folder / "end").exists()))
        dist.broadcast(ending, 0)
        if len(steps) == 20:
            (folder / f"{rank}.ready").write_text(str(os.getpid()))
    (folder / f"{rank}.steps").write_text(json.dumps(steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
