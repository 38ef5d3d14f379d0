"""What the memory of this machine leaves to be won: gloo's time against that of the bare reads and writes.

    .venv/bin/python bench/memory.py [--ranks 2,4] [--megabytes 25] [--rounds 15] [--json FILE]

Whatever a backend does, every rank's input has to be read and its output written. Here each rank does that with its own
tensors on its share of the cores, exchanging nothing, all ranks at once, in turns with the same operation on gloo. The
quotient is about the most that any backend can be faster than gloo on this machine, unless the tensors fit its caches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VENV = Path(sys.executable).parent
WARM_UP = 2
CALLS = 4


def rank_main(size_bytes: int, rounds: int, result: Path) -> None:
    """What each rank runs; rank 0 writes the result."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    world = dist.get_world_size()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
    whole = torch.zeros(size_bytes // 4 // world * world)
    other = torch.zeros_like(whole)
    part = torch.zeros(whole.numel() // world)
    # For each operation: gloo's, and the least that this rank's own memory has to do for it.
    operations: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "all_reduce": (lambda: dist.all_reduce(whole), lambda: whole.mul_(1.0)),
        "all_to_all": (lambda: dist.all_to_all_single(other, whole), lambda: other.copy_(whole)),
        "reduce_scatter": (
            lambda: dist.reduce_scatter_tensor(part, whole),
            lambda: torch.sum(whole.view(world, -1), 0, out=part),
        ),
    }

    def timed(call: Callable[[], object]) -> float:
        """From the first rank's begin to the last one's end: where cores are few, not all begin at once."""
        dist.barrier()
        begin = time.monotonic()
        for _ in range(CALLS):
            call()
        span = torch.tensor([-begin, time.monotonic()], dtype=torch.float64)
        dist.all_reduce(span, op=dist.ReduceOp.MAX)
        return float(span.sum().item()) / CALLS

    times: dict[str, dict[str, list[float]]] = {name: {"gloo": [], "memory": []} for name in operations}
    for number in range(WARM_UP + rounds):
        for name, calls in operations.items():
            for who, call in zip(("gloo", "memory"), calls, strict=True):
                seconds = timed(call)
                if number >= WARM_UP:
                    times[name][who].append(seconds)
    if dist.get_rank() == 0:
        result.write_text(json.dumps(times))
    dist.destroy_process_group()


def measure(ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    """Start so many ranks; give the medians of what they measured."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        launch = [str(VENV / "instep"), "run", "--standalone", f"--nproc-per-node={ranks}", "--no-status"]
        script = [str(Path(__file__).resolve()), "--megabytes", str(options.megabytes), "--rounds", str(options.rounds)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable}
        command = [*launch, *script, "--rank-result", str(result)]
        subprocess.run(command, check=True, timeout=1800, env=environment)
        times: dict[str, dict[str, list[float]]] = json.loads(result.read_text())
    return {
        name: {who: statistics.median(seconds) * 1000 for who, seconds in both.items()} for name, both in times.items()
    }


def main() -> int:
    """Measure, print the table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--megabytes", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank-result", type=Path, help=argparse.SUPPRESS)  # given to the ranks
    options = parser.parse_args()
    if options.rank_result is not None:
        rank_main(options.megabytes << 20, options.rounds, options.rank_result)
        return 0

    median_ms = {ranks: measure(ranks, options) for ranks in map(int, options.ranks.split(","))}
    print(f"{'ranks':>5} {'operation':<15}{'gloo':>12}{'memory':>12}{'at most':>10}")
    for ranks, operations in median_ms.items():
        for name, row in operations.items():
            gloo, memory = row["gloo"], row["memory"]
            print(f"{ranks:>5} {name:<15}{gloo:>9.1f} ms{memory:>9.1f} ms{gloo / memory:>9.1f}x")
    report = {"cores": len(os.sched_getaffinity(0)), "megabytes": options.megabytes, "median_ms": median_ms}
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
