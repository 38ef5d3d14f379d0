"""A job on gloo in which rank 1 does something else: `unrecorded.py FOLDER WAY`."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder, way = Path(sys.argv[1]), sys.argv[2]
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
dist.barrier()
(folder / f"ready-{rank}").touch()
if rank == 1 and way == "sleeps":
    time.sleep(600)
if rank == 1 and way == "broadcasts":
    dist.broadcast(torch.ones(1), 0)
dist.all_reduce(torch.ones(4))
