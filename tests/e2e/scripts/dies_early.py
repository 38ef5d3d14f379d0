"""Rank 1 raises before init_process_group, where the others wait for it."""

from __future__ import annotations

import os

import torch.distributed as dist


def main() -> None:
    if os.environ["RANK"] == "1":
        raise FileNotFoundError("no such data set: /data/train")
    dist.init_process_group("gloo")


if __name__ == "__main__":
    main()
