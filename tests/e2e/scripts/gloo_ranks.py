"""Adds the ranks up over gloo, and leaves each rank's environment in a folder: gloo_ranks.py FOLDER [RANK].

The rank that is named exits with 3 once all have met; the others then wait for it in vain.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    folder = Path(sys.argv[1])
    failing = int(sys.argv[2]) if len(sys.argv) > 2 else None
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    assert total.item() == world_size * (world_size - 1) / 2
    (folder / f"{rank}.json").write_text(json.dumps(dict(os.environ)))
    if rank == failing:
        sys.exit(3)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
