"""Times the decisions of a hyperparameter search: simulated adaptive searches of up to 10,000 trials on 500 slots.

    .venv/bin/python bench/search.py [--json FILE] [--repetitions 5]

Nothing runs but the search itself: `crates/policy/examples/search.rs` plays the cluster. A decision is one event in and
the actions that follow from it: each report of each trial, each start, each end. Beside decisions the table shows what
a snapshot takes (as JSON, in the second half of the search), because a master stores it; every run restores its search
fifty times and must come to the same end. There are no peers in this comparison: what matters is that a decision stays
far below the time between two reports, and that many more trials do not make it slower. Medians of the repetitions.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
SIZES = ((50, 16), (1_000, 100), (10_000, 500))
WANTED_US = 100.0
COLUMNS = (
    ("trials", "trials", "{:,.0f}"),
    ("slots", "slots", "{:,.0f}"),
    ("decisions", "decisions", "{:,.0f}"),
    ("mean_us", "mean µs", "{:,.2f}"),
    ("p99_us", "99 % µs", "{:,.2f}"),
    ("longest_us", "longest µs", "{:,.1f}"),
    ("snapshot_bytes", "snapshot KB", "{:,.1f}"),
    ("snapshot_us", "stored µs", "{:,.0f}"),
    ("restore_us", "restored µs", "{:,.0f}"),
)


def measure(trials: int, slots: int, repetitions: int) -> dict[str, float]:
    """Play one size of search several times; the median of every figure."""
    runs: list[dict[str, float]] = []
    for seed in range(repetitions):
        command = [str(TARGET / "examples" / "search"), str(trials), str(slots), str(seed)]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
        runs.append(json.loads(output))
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def show(rows: list[dict[str, float]]) -> None:
    """Print the table."""
    shown = [[title for _, title, _ in COLUMNS]]
    for row in rows:
        scaled = row | {"snapshot_bytes": row["snapshot_bytes"] / 1000}
        shown.append([form.format(scaled[name]) for name, _, form in COLUMNS])
    widths = [max(len(line[column]) for line in shown) for column in range(len(COLUMNS))]
    for line in shown:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print()


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description="how long a search takes to decide")
    parser.add_argument("--json", metavar="FILE", help="write the results there instead of to the end of the output")
    parser.add_argument("--repetitions", type=int, default=5, help="of each size (5)")
    options = parser.parse_args()
    build = ["cargo", "build", "--release", "--quiet", "--package", "instep-policy", "--example", "search"]
    subprocess.run(build, cwd=ROOT, check=True)
    rows = [measure(trials, slots, options.repetitions) for trials, slots in SIZES]
    show(rows)
    kept = rows[-1]["mean_us"] <= WANTED_US
    report = json.dumps({"rows": rows, "wanted_us": WANTED_US, "kept": kept}, indent=2)
    if options.json:
        Path(options.json).write_text(report + "\n")
    else:
        print(report)


if __name__ == "__main__":
    main()
