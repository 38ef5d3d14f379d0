"""A worker without torch that says who it is and stays.

member.py FOLDER

Writes FOLDER/<process id>.member with its ranks, ends with 0 once FOLDER/end exists, and at SIGTERM writes
FOLDER/<rank>.SIGTERM before it ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

NAMES = ("RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
# So that nothing is left if a test goes wrong.
FOR_EVER_S = 300.0


def main() -> None:
    folder = Path(sys.argv[1])
    rank = os.environ["RANK"]

    def save(_number: int, _frame: object) -> None:
        (folder / f"{rank}.SIGTERM").touch()
        sys.exit(1)

    signal.signal(signal.SIGTERM, save)
    facts = {name: os.environ[name] for name in NAMES} | {"pid": str(os.getpid())}
    unfinished = folder / f".{os.getpid()}"
    unfinished.write_text(json.dumps(facts))
    unfinished.replace(folder / f"{os.getpid()}.member")
    deadline = time.monotonic() + FOR_EVER_S
    while not (folder / "end").exists():
        if time.monotonic() > deadline:
            sys.exit(99)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
