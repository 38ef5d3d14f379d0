"""Collectives through torch: instep against gloo, 2 and 4 ranks, in the same runs.

    .venv/bin/python bench/collectives.py [--rounds 15] [--json FILE] [--markdown]

Everything is measured by `instep bench collectives`, which lets the backends take turns; this script asks for what the
project promises, and says of each promise whether it holds here. A speed-up is gloo's time over instep's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VENV = Path(sys.executable).parent
WORLDS = (2, 4)
SMALL = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20)
LARGE = (4 << 20, 25 << 20, 100 << 20)
OTHERS = ("all_gather", "reduce_scatter", "broadcast", "all_to_all")
OTHERS_BYTES = 25 << 20
OURS, GLOO = "instep", "gloo"

Speedups = dict[tuple[int, str, int], float]


@dataclass(frozen=True)
class Promise:
    """One line of what the project promises: a speed-up over gloo, the lowest or the mean of some figures."""

    text: str
    least: float
    world_size: int
    operation: str
    sizes: tuple[int, ...]
    mean: bool = False

    def value(self, speedups: Speedups) -> float:
        """What was measured."""
        values = [speedups[self.world_size, self.operation, size] for size in self.sizes]
        return statistics.geometric_mean(values) if self.mean else min(values)


def promises() -> list[Promise]:
    """All of them, in the order of the table."""
    everything = (*SMALL, *LARGE)
    found = []
    for world in WORLDS:
        ranks = f"{world} ranks, all_reduce"
        found.append(Promise(f"{ranks}: never slower than gloo", 1.0, world, "all_reduce", everything))
        least = {2: 15.0, 4: 25.0}[world]
        found.append(Promise(f"{ranks}: geometric mean up to 1 MB", least, world, "all_reduce", SMALL, mean=True))
        found.append(Promise(f"{ranks}: 25 MB", 4.0, world, "all_reduce", (25 << 20,)))
    hundred = (100 << 20,)
    found += [
        Promise("2 ranks, all_reduce: 100 MB", 4.0, 2, "all_reduce", hundred),
        Promise("4 ranks, all_reduce: 100 MB", 3.0, 4, "all_reduce", hundred),
    ]
    for world in WORLDS:
        for operation in OTHERS:
            words = f"{world} ranks, {operation}: 25 MB"
            found.append(Promise(words, 3.0, world, operation, (OTHERS_BYTES,)))
    return found


def measure(world: int, operations: tuple[str, ...], sizes: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """One run of `instep bench collectives`; where it is, it says on stderr."""
    words = ["--nproc", str(world), "--backends", f"{OURS},{GLOO}", "--rounds", str(rounds), "--json"]
    words += ["--ops", ",".join(operations), "--sizes", ",".join(map(str, sizes))]
    command = [str(VENV / "instep"), "bench", "collectives", *words]
    print(f"measuring {', '.join(operations)} on {world} ranks", file=sys.stderr, flush=True)
    environment = {**os.environ, "VIRTUAL_ENV": str(VENV.parent)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1800, env=environment)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def times_of(reports: list[dict[str, Any]]) -> dict[tuple[int, str, int, str], float]:
    """Microseconds by world size, operation, size and backend."""
    return {
        (report["world_size"], row["operation"], row["bytes"], row["backend"]): row["time_us"]
        for report in reports
        for row in report["results"]
    }


def markdown(times: dict[tuple[int, str, int, str], float]) -> str:
    """The tables of docs/guides/which-backend.md."""
    lines = ["| size | " + " | ".join(f"{world} ranks: instep | gloo | speed-up" for world in WORLDS) + " |"]
    lines.append("|---" * (1 + 3 * len(WORLDS)) + "|")
    for operation, sizes in (("", (*SMALL, *LARGE)), *((f"{name}, ", (OTHERS_BYTES,)) for name in OTHERS)):
        for size in sizes:
            cells = []
            for world in WORLDS:
                name = operation.removesuffix(", ") or "all_reduce"
                ours, gloo = (times[world, name, size, backend] for backend in (OURS, GLOO))
                cells += [spell_time(ours), spell_time(gloo), f"{gloo / ours:.1f}"]
            lines.append(f"| {operation}{spell_size(size)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spell_time(time_us: float) -> str:
    """Three digits or so, in the unit that fits."""
    return f"{time_us:.3g} µs" if time_us < 1000 else f"{time_us / 1000:.3g} ms"


def spell_size(size_bytes: int) -> str:
    """25 MB, counted in powers of 1024 as everybody does."""
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if size_bytes >= unit:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


def main() -> int:
    """Measure, print the table, and which promises hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true", help="also print the table of the guide")
    options = parser.parse_args()

    reports = []
    for world in WORLDS:
        reports.append(measure(world, ("all_reduce",), (*SMALL, *LARGE), options.rounds))
        reports.append(measure(world, OTHERS, (OTHERS_BYTES,), options.rounds))
    times = times_of(reports)

    print(f"{'ranks':>5} {'operation':<15}{'bytes':>12}{OURS:>14}{GLOO:>14}{'speed-up':>10}")
    speedups: Speedups = {}
    for (world, operation, size, backend), time_us in times.items():
        if backend != OURS:
            continue
        gloo_us = times[world, operation, size, GLOO]
        speedups[world, operation, size] = gloo_us / time_us
        print(f"{world:>5} {operation:<15}{size:>12}{time_us:>11.1f} µs{gloo_us:>11.1f} µs{gloo_us / time_us:>9.1f}x")

    if options.markdown:
        print(f"\n{markdown(times)}")
    print()
    verdicts = []
    for promise in promises():
        value = promise.value(speedups)
        holds = not math.isnan(value) and value >= promise.least
        verdicts.append({"promise": promise.text, "least": promise.least, "measured": value, "holds": holds})
        print(f"{'yes' if holds else 'NO':>4}  {promise.text}: {value:.1f}x, promised {promise.least:g}x")

    result = {"cores": len(os.sched_getaffinity(0)), "rounds": options.rounds, "reports": reports, "promises": verdicts}
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({"promises": {verdict["promise"]: verdict["holds"] for verdict in verdicts}}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
