"""Counts with a gloo all_reduce and keeps a snapshot, like a training loop: counting.py FOLDER STEPS.

Every step adds the ranks up, and rank 0 saves the number of steps done. A restarted job goes on from there. The step
at which a rank is killed is chosen by the test: it looks at FOLDER/snapshot.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

# Slow enough for a test to kill a rank between two steps, quick enough not to be waited for.
STEP_S = 0.01


def save(path: Path, steps: int) -> None:
    unfinished = path.with_suffix(".partial")
    unfinished.write_text(json.dumps({"steps": steps}))
    unfinished.replace(path)


def main() -> None:
    folder, total = Path(sys.argv[1]), int(sys.argv[2])
    snapshot = folder / "snapshot.json"
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    done = json.loads(snapshot.read_text())["steps"] if snapshot.exists() else 0
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    sys.stdout.write(f"rank {rank} attempt {attempt} from step {done}\n")
    for step in range(done, total):
        share = torch.tensor([float(rank)])
        dist.all_reduce(share)
        assert share.item() == world_size * (world_size - 1) / 2
        if rank == 0:
            save(snapshot, step + 1)
        time.sleep(STEP_S)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} done\n")


if __name__ == "__main__":
    main()
