"""The collectives through the Rust API against OpenMPI: the same buffers in the same processes, call for call.

    .venv/bin/python bench/openmpi.py [--ranks 2 4] [--operation all_reduce] [--rounds 31] [--json FILE]

The work is done by crates/collectives/examples/versus_mpi, a program that speaks to both libraries and lets them take
turns; it runs here under `mpirun`. A ratio above 1 says that instep is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
LIMIT = 1.0


def measure(ranks: int, operation: str, rounds: int) -> list[dict[str, Any]]:
    """One run; a row for every size."""
    # Root may start processes, and there may be more of them than cores.
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
    program = [str(TARGET / "examples" / "versus_mpi"), "--operation", operation, "--rounds", str(rounds), "--json"]
    done = subprocess.run([*launcher, *program], check=True, stdout=subprocess.PIPE, text=True, timeout=1800)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [{**row, "ratio": row["openmpi_s"] / row["instep_s"]} for row in rows]


def main() -> int:
    """Build, run, print tables, ratios and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--operation", choices=OPERATIONS, default="all_reduce")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    options = parser.parse_args()
    if shutil.which("mpirun") is None:
        raise SystemExit("error: there is no `mpirun`\n  hint: install Debian's openmpi-bin")
    build = ["cargo", "build", "--release", "--quiet", "--package", "instep-collectives", "--example", "versus_mpi"]
    subprocess.run(build, cwd=ROOT, check=True)

    rows = []
    for ranks in options.ranks:
        print(f"\n{options.operation}, f32, {ranks} ranks: microseconds")
        print(f"{'bytes':>12} {'instep':>12} {'OpenMPI':>12} {'ratio':>8}")
        for row in measure(ranks, options.operation, options.rounds):
            rows.append(row)
            ours, theirs = row["instep_s"] * 1e6, row["openmpi_s"] * 1e6
            print(f"{row['bytes']:>12} {ours:>12.2f} {theirs:>12.2f} {row['ratio']:>8.2f}", flush=True)
    least = min(row["ratio"] for row in rows)
    report = {
        "cores": len(os.sched_getaffinity(0)),
        "rows": rows,
        "within": {f"ratio >= {LIMIT} at every size": least >= LIMIT},
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({"least_ratio": least, "within": report["within"]}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
