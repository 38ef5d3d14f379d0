"""What the shipped template starts: adds a number of each rank, and says who it was.

With PATIENT, without torch: says in which round it runs, and waits for the file that this names.
"""

import os
import time
from pathlib import Path

NAMES = ("JOB_COMPLETION_INDEX", "GROUP_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID")


def main() -> None:
    if go := os.environ.get("PATIENT"):
        size, number = os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RESTART_COUNT"]
        print(f"rank {os.environ['RANK']} of {size} runs in round {number}", flush=True)
        deadline = time.monotonic() + 300
        while not Path(go).exists():
            assert time.monotonic() < deadline, f"nobody made {go}"
            time.sleep(0.05)
        text = "done"
    else:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.tensor(dist.get_rank() + 1.0)
        dist.all_reduce(total)
        text = f"sum {total:g}"
        dist.destroy_process_group()
    said = (f"{name}={os.environ[name]}" for name in NAMES)
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: {text};", *said, flush=True)


if __name__ == "__main__":
    main()
