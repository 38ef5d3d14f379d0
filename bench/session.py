"""What a session adds to a training step: DDP on 2 CPU ranks under `instep run --recover step`, with and without it.

    .venv/bin/python bench/session.py [--ranks 2] [--rounds 12] [--json FILE]

A round takes so many steps with a session and as many of the same without, in turns, in the same processes; a round
counts for the slowest rank, and the medians are compared. The script sleeps for what is left of a step's length, in
place of computing. A session makes the ranks meet once more in each step: on a machine with other work the time
measures the kernel's scheduler, so the processor time of the rank's thread is shown beside it. The ledger's share is
what its calls take, measured alone in the same processes, times the calls of a step. Needs the optimised build.
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
# Lengths of a step without a session.
LENGTHS_MS = (20, 50, 200)
STEPS = 12
# 4 layers of 256 x 256 and biases: 0.26 million parameters.
WIDTH, LAYERS, BATCH = 256, 4, 16
LIMIT, LEDGER_LIMIT = 0.02, 0.001
CALLS = 100_000


def rank_main(rounds: int, result: Path) -> None:
    """What each rank runs; rank 0 writes the result."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import instep.elastic
    from instep import _ledger

    torch.set_num_threads(1)
    dist.init_process_group("instep")

    def trained() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for _ in range(LAYERS):
            layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        model = DistributedDataParallel(nn.Sequential(*layers))
        return model, torch.optim.SGD(model.parameters(), lr=1e-3)

    plain, kept = trained(), trained()
    session = instep.elastic.Session(*kept)
    batch = torch.randn(BATCH, WIDTH)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, seconds: float) -> None:
        until = time.perf_counter() + seconds
        loss = model(batch).square().mean()
        time.sleep(max(0.0, until - time.perf_counter()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def now() -> torch.Tensor:
        return torch.tensor([time.perf_counter(), time.thread_time()], dtype=torch.float64)

    def slowest(begin: torch.Tensor) -> list[float]:
        took = (now() - begin) / STEPS
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        return took.tolist()

    def without(seconds: float) -> list[float]:
        dist.barrier()
        begin = now()
        for _ in range(STEPS):
            step(*plain, seconds)
        return slowest(begin)

    times: dict[str, list[tuple[list[float], list[float]]]] = {str(length): [] for length in LENGTHS_MS}
    # One loop over all steps: a session has one. The first round of each length warms up.
    plan = [length for _ in range(rounds + 1) for length in LENGTHS_MS]
    batches = iter(session.batches([batch] * (len(plan) * STEPS)))
    for number, length in enumerate(plan):
        alone = without(length / 1000)
        dist.barrier()
        begin = now()
        for _ in range(STEPS):
            next(batches)
            with session.step():
                step(*kept, length / 1000)
        together = slowest(begin)
        if number >= len(LENGTHS_MS):
            times[str(length)].append((alone, together))

    def cost(call: Callable[[], object]) -> float:
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        return (time.perf_counter() - begin) / CALLS

    ledger = {
        "switch": cost(lambda: _ledger.switch(_ledger.COMPUTE)),
        "wait": cost(lambda: _ledger.begin_wait() and _ledger.end_wait()),
        "attempt": cost(lambda: (_ledger.begin_attempt(), _ledger.commit(0))),
    }
    if dist.get_rank() == 0:
        result.write_text(json.dumps({"seconds": times, "ledger": ledger, "torch": torch.__version__}))
    dist.barrier()
    os._exit(0)  # in the middle of the session's loop, which needs no end here


def main() -> int:
    """Start the ranks, print a table, the ratios and whether the limits hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank-result", type=Path, help=argparse.SUPPRESS)  # given to the ranks
    options = parser.parse_args()
    if options.rank_result is not None:
        rank_main(options.rounds, options.rank_result)
        return 0

    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        launch = [str(VENV / "instep"), "run", "--standalone", f"--nproc-per-node={options.ranks}", "--no-status"]
        launch += ["--recover", "step", "--spares", "0"]
        script = [str(Path(__file__).resolve()), "--rounds", str(options.rounds), "--rank-result", str(result)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable}
        subprocess.run([*launch, *script], check=True, timeout=1800, env=environment)
        measured: dict[str, Any] = json.loads(result.read_text())

    print(f"{options.ranks} ranks, {options.rounds} rounds of {STEPS} steps, torch {measured['torch']}")
    print(f"{'step':>8} {'without':>12} {'session adds':>13} {'ratio':>8} {'of that CPU':>12} {'ledger':>9}")
    # A step of this script: a batch, an attempt, the backward pass's buckets and futures, the vote.
    calls = measured["ledger"]
    ledger_s = 2 * calls["switch"] + calls["attempt"] + 4 * calls["wait"]
    rows = {}
    for length, pairs in measured["seconds"].items():
        alone = statistics.median(without[0] for without, _ in pairs)
        adds, cpu = (statistics.median(kept[at] - without[at] for without, kept in pairs) for at in (0, 1))
        rows[length] = {"without_s": alone, "adds_s": adds, "adds_cpu_s": cpu, "ratio": adds / alone}
        rows[length]["ledger"] = ledger_s / alone
        print(
            f"{length:>5} ms {alone * 1e3:9.2f} ms {adds * 1e6:10.0f} us {adds / alone:8.2%} {cpu * 1e6:9.0f} us "
            f"{ledger_s / alone:9.4%}"
        )
    print("ledger: " + ", ".join(f"{name} {seconds * 1e9:.0f} ns" for name, seconds in calls.items()))
    report = {
        "cores": len(os.sched_getaffinity(0)),
        "ranks": options.ranks,
        "rounds": options.rounds,
        **measured,
        "steps": rows,
        "within": {
            f"session <= {LIMIT:.0%}": all(row["ratio"] <= LIMIT for row in rows.values()),
            f"ledger <= {LEDGER_LIMIT:.1%}": all(row["ledger"] <= LEDGER_LIMIT for row in rows.values()),
        },
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({"within": report["within"]}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
