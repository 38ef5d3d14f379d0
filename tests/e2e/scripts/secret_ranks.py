"""Meets the other ranks on the backend instep: secret_ranks.py FOLDER SECONDS.

Writes FOLDER/<rank>.json: the secret it was given, and the error if they have not met within SECONDS.
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
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    error = None
    try:
        dist.init_process_group("instep", timeout=timedelta(seconds=seconds))
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.eq(dist.get_world_size()).all(), total
        dist.destroy_process_group()
    except dist.DistBackendError as caught:
        error = str(caught)
    found = {"secret": os.environ.get("INSTEP_SECRET"), "error": error}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
