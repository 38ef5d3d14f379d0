"""A worker without torch that says who it is and stays.

member.py FOLDER

Writes FOLDER/<process id>.member with its ranks, ends with 0 once FOLDER/end exists, and at SIGTERM writes
FOLDER/<rank>.SIGTERM before it ends.

Meanwhile rank 0 works at the one result of the job: a chain of numbers in FOLDER/chain, each made from the one before.
If there is ever another rank 0 at the same time, both make the same link: then FOLDER/collision says who.
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


def add_to_chain(folder: Path) -> None:
    """Take one step from the newest number; in one piece, and never in the place of another."""
    chain = folder / "chain"
    chain.mkdir(exist_ok=True)
    newest = max((int(path.name) for path in chain.iterdir() if path.name.isdigit()), default=0)
    value = int((chain / str(newest)).read_text()) if newest else 0
    value = (value * 6364136223846793005 + 1442695040888963407) % 2**64
    unfinished = chain / f".{os.getpid()}"
    unfinished.write_text(str(value))
    try:
        os.link(unfinished, chain / str(newest + 1))
    except FileExistsError:
        (folder / "collision").write_text(f"process {os.getpid()} is not the only rank 0 at {newest + 1}")
        sys.exit(98)
    # Else the next number would be written over this one.
    unfinished.unlink()
    (chain / str(newest - 5)).unlink(missing_ok=True)


def main() -> None:
    folder = Path(sys.argv[1])
    rank = os.environ["RANK"]

    def save(_number: int, _frame: object) -> None:
        (folder / f"{rank}.SIGTERM").touch()
        sys.exit(1)

    signal.signal(signal.SIGTERM, save)
    # The number alone may be another's by the time it is looked at.
    began = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    facts = {name: os.environ[name] for name in NAMES}
    facts["INSTEP_MASTER_ADDR"] = os.environ.get("INSTEP_MASTER_ADDR", "")
    facts |= {"pid": str(os.getpid()), "began": began}
    unfinished = folder / f".{os.getpid()}"
    unfinished.write_text(json.dumps(facts))
    unfinished.replace(folder / f"{os.getpid()}.member")
    deadline = time.monotonic() + FOR_EVER_S
    while not (folder / "end").exists():
        if time.monotonic() > deadline:
            sys.exit(99)
        if rank == "0":
            add_to_chain(folder)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
