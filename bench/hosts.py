"""Collectives between hosts: instep against gloo in the same run, hosts being network namespaces of this machine.

    sudo .venv/bin/python bench/hosts.py [--hosts 2] [--each 1] [--rate 2.5gbit] [--rounds 9] [--json FILE]
    sudo .venv/bin/python bench/hosts.py --delay 1ms [--hosts 2,4]

Runs `instep bench collectives --hosts` and says where instep was slower. With `--delay` the messages are small, and
times are also given in one-way delays, beside the number that docs/concepts/collectives.md promises. Needs root and
iproute2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

VENV = Path(sys.executable).parent
SIZES = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20)
SMALL_SIZES = (8, 64, 512, 4 << 10)
SMALL_OPS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier")
# Messages that follow one another in each of these operations, while they are small.
PROMISED = 1
OURS, GLOO = "instep", "gloo"


def measure(hosts: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark; what it found."""
    sizes, ops = (SMALL_SIZES, ",".join(SMALL_OPS)) if options.delay else (SIZES, "all_reduce")
    words = ["--hosts", str(hosts), "--nproc", str(options.each), "--backends", f"{OURS},{GLOO}", "--json"]
    words += ["--sizes", options.sizes or ",".join(map(str, sizes)), "--ops", options.ops or ops]
    words += ["--rounds", str(options.rounds)]
    for option in ("rate", "delay"):
        if value := getattr(options, option):
            words += [f"--{option}", value]
    command = [os.environ.get("INSTEP", str(VENV / "instep")), "bench", "collectives", *words]
    environment = {**os.environ, "VIRTUAL_ENV": str(VENV.parent)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def show(found: dict[str, Any], *, delays: bool) -> list[str]:
    """Print a line for every operation and size; gives where instep was slower."""
    one_way = found["one_way_us"]
    print(
        f"{found['hosts']} hosts with {found['world_size'] // found['hosts']} ranks each, "
        f"{found['rate'] or 'no limit'}, a packet takes {one_way:.0f} µs; medians, best in brackets"
    )
    times = {(row["operation"], row["bytes"], row["backend"]): row for row in found["results"]}
    slower = []
    for operation, size, backend in times:
        if backend != OURS or (operation, size, GLOO) not in times:
            continue
        rows = ours, gloo = times[operation, size, OURS], times[operation, size, GLOO]
        cells = "".join(f"{row['time_us']:>12.1f} ({min(row['rounds_us']):>10.1f}) µs" for row in rows)
        line = f"{operation:<15}{size:>12}{cells}{gloo['time_us'] / ours['time_us']:>8.2f}x"
        if delays:
            counts = [f"{row['time_us'] / one_way:.2f} ({min(row['rounds_us']) / one_way:.2f})" for row in rows]
            line += f"   one-way delays: {counts[0]} of {PROMISED}, gloo {counts[1]}"
        print(line)
        if gloo["time_us"] < ours["time_us"]:
            slower.append(f"{operation} of {size}")
    print(f"slower than gloo: {', '.join(slower) or 'nowhere'}", flush=True)
    return slower


def main() -> int:
    """Measure, print the tables, and how often instep was slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", help="numbers of hosts [default: 2, with --delay 2,4]")
    parser.add_argument("--each", type=int, default=1, help="ranks on every host")
    parser.add_argument("--rate", help="what a host may send, as tc spells it: 2.5gbit")
    parser.add_argument("--delay", help="what a packet takes longer: 1ms")
    parser.add_argument("--ops")
    parser.add_argument("--sizes")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs = []
    for hosts in map(int, (options.hosts or ("2,4" if options.delay else "2")).split(",")):
        found = measure(hosts, options)
        slower = show(found, delays=bool(options.delay))
        runs.append({**found, "delay": options.delay, "slower_than_gloo": slower})
    if options.json:
        options.json.write_text(json.dumps({"cores": os.cpu_count(), "runs": runs}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
