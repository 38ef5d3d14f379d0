"""Adds ones up over and over on the instep backend: adder.py FOLDER RANK WORLD.

The ranks meet through a file. After the first sum a rank writes FOLDER/<rank>.ready; what ends it, and when, goes to
FOLDER/<rank>.error. While FOLDER/rest exists no rank calls anything; when FOLDER/stop exists all ranks end together.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

# Large enough to be under way when something happens.
ELEMENTS = 200_000
PAUSE_S = 0.02


def main() -> None:
    folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "instep", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    try:
        going_on = True
        while going_on:
            values = torch.ones(ELEMENTS)
            dist.all_reduce(values)
            assert values.eq(world).all(), values
            (folder / f"{rank}.ready").touch()
            # Rank 0 decides for all.
            words = torch.tensor([float((folder / name).exists()) for name in ("stop", "rest")])
            dist.broadcast(words, src=0)
            going_on = not words[0]
            while words[1] and (folder / "rest").exists():
                (folder / f"{rank}.resting").touch()
                time.sleep(PAUSE_S)
    except dist.DistBackendError as error:
        unfinished = folder / f"{rank}.partial"
        unfinished.write_text(json.dumps({"at": time.monotonic(), "text": str(error)}))
        unfinished.rename(folder / f"{rank}.error")


if __name__ == "__main__":
    main()
