"""Ranks on one GPU that wait for one of them: the launcher's report must name it, and the operation.

    instep run --nproc-per-node 2 --hang-after 3 tests/gpu/hang.py 2>&1 | tee said
    grep 'all_reduce' said

Needs a GPU, so that it is run by hand. Rank 1 is late for the last of three operations, of small tensors and of large.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import instep  # noqa: F401  # torch before 2.14 does not find the backend by itself

LATE_S = 8


def main() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("instep")
    for count in (100, 5_000_000):
        tensor = torch.ones(count, device="cuda")
        for turn in range(3):
            if turn == 2 and dist.get_rank() == 1:
                time.sleep(LATE_S)
            dist.all_reduce(tensor)
        assert tensor[0] == dist.get_world_size() ** 3
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
