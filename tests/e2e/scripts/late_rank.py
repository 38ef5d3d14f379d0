"""Two gloo ranks of which the second fails once, and after the restart comes late to init_process_group.

The first one then finds the store as the dead attempt left it, unless the launcher cleaned it.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

LATE_S = 3.0
TIMEOUT = timedelta(seconds=10)


def main() -> None:
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if (rank, attempt) == (1, 1):
        time.sleep(LATE_S)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    assert total.item() == 3
    if (rank, attempt) == (1, 0):
        sys.exit(3)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} attempt {attempt} done\n")


if __name__ == "__main__":
    main()
