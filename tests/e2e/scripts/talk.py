"""A worker that writes in one of the ways programs write: talk.py FOLDER MODE [ARGUMENT].

lines COUNT     lines of 3000 letters with `print`, which needs two writes for each
both COUNT      one line on standard output, one on standard error, in turn
prompt          a question, then its answer once FOLDER/go exists
progress        a bar redrawn with carriage returns, its second half once FOLDER/go exists
terminal        whether its streams are terminals, and how wide
flood COUNT     COUNT lines of 100 bytes, as fast as they go
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

RANK = int(os.environ["RANK"])
LIMIT_S = 60.0


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def pause(folder: Path) -> None:
    """Say that the first half is written, and wait for the word to go on."""
    (folder / f"{RANK}.written").touch()
    deadline = time.monotonic() + LIMIT_S
    while not (folder / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.005)


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    if mode == "lines":
        for number in range(count):
            print(f"rank {RANK} line {number} ".ljust(3000, str(RANK)))
    elif mode == "both":
        for number in range(count):
            sys.stdout.write(f"{number} out\n")
            sys.stderr.write(f"{number} err\n")
    elif mode == "prompt":
        write("name? ")
        pause(folder)
        write("instep\n")
    elif mode == "progress":
        write("step 1/4\rstep 2/4\r")
        pause(folder)
        write("step 3/4\rstep 4/4\n")
    elif mode == "terminal":
        streams = (sys.stdout, sys.stderr)
        write(f"rank {RANK} terminals {[stream.isatty() for stream in streams]} {shutil.get_terminal_size().columns}\n")
    elif mode == "flood":
        block = "".join(f"{RANK} {number:05} ".ljust(99, ".") + "\n" for number in range(10_000))
        for _ in range(count // 10_000):
            write(block)


if __name__ == "__main__":
    main()
