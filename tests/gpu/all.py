"""Everything in this folder, one after the other: `make gpu`.

    python tests/gpu/all.py [--kills 200]

Skips, and says so, where there is no GPU that torch can use. Ends with 0 if all passed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent


def instep_run(ranks: int, *command: str | Path) -> list[str | Path]:
    """Give the command that runs a script on some ranks."""
    return [sys.executable, "-m", "instep", "run", "--nproc-per-node", str(ranks), *command]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("SKIPPED: tests of CUDA tensors: torch finds no GPU here", flush=True)
        return 0
    commands: list[list[str | Path]] = [
        *(instep_run(ranks, HERE / "correctness.py") for ranks in (2, 4)),
        *(instep_run(ranks, HERE / "training.py") for ranks in (2, 4)),
        [sys.executable, HERE / "kills.py", "--kills", str(arguments.kills)],
        instep_run(2, "--hang-after", "3", HERE / "hang.py"),
    ]
    failed = 0
    for command in commands:
        words = " ".join(str(word) for word in command[1:])
        print(f"== {words}", flush=True)
        done = subprocess.run(command, check=False)
        if done.returncode:
            print(f"FAILED with status {done.returncode}: {words}", flush=True)
            failed += 1
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
