"""What communication adds to a training step: DDP with 25 million parameters on 2 CPU ranks, instep against gloo.

    .venv/bin/python bench/ddp_step.py [--ranks 2] [--rounds 15] [--json FILE]

A step is forward, backward and optimizer. Under `no_sync` DDP does the same but exchanges nothing: the difference is
the communication that computing did not hide. A round takes one step of each kind (instep, gloo, each with and without
`no_sync`), in turns, in the same processes; a step counts for the slowest rank, and the medians are compared. The row
`nothing` exchanges nothing: what DDP itself adds, dividing the gradients above all, whoever communicates.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VENV = Path(sys.executable).parent
BACKENDS = ("instep", "gloo")
NOTHING = "nothing"
# 6 layers of 2048 x 2048 and biases: 25.2 million parameters.
WIDTH, LAYERS, BATCH = 2048, 6, 32
WARM_UP = 3
LIMIT = 0.25


def rank_main(rounds: int, result: Path) -> None:
    """What each rank runs; rank 0 writes the result."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import instep.backend

    instep.backend.register()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    models = {}

    def finished(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(tensor)
        return future

    for backend in (*BACKENDS, NOTHING):
        layers: list[nn.Module] = []
        for _ in range(LAYERS):
            layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        net = nn.Sequential(*layers)
        group = dist.new_group(backend=backend if backend in BACKENDS else None)
        model = DistributedDataParallel(net, process_group=group, gradient_as_bucket_view=True)
        if backend == NOTHING:
            model.register_comm_hook(None, lambda _, bucket: finished(bucket.buffer().div_(dist.get_world_size())))
        models[backend] = (model, torch.optim.SGD(model.parameters(), lr=1e-3))
    parameters = sum(parameter.numel() for parameter in net.parameters())
    batch = torch.randn(BATCH, WIDTH)

    def step(backend: str, *, silent: bool) -> float:
        model, optimizer = models[backend]
        dist.barrier()
        begin = time.perf_counter()
        with model.no_sync() if silent else contextlib.nullcontext():
            model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        mean = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(mean, op=dist.ReduceOp.MAX)
        return float(mean.item())

    times: dict[str, list[float]] = {}
    for number in range(WARM_UP + rounds):
        for backend in models:
            for silent in (False, True):
                seconds = step(backend, silent=silent)
                if number >= WARM_UP:
                    times.setdefault(f"{backend}{' no_sync' if silent else ''}", []).append(seconds)
    if dist.get_rank() == 0:
        result.write_text(json.dumps({"parameters": parameters, "seconds": times, "torch": torch.__version__}))
    dist.destroy_process_group()


def main() -> int:
    """Start the ranks, print a table, the ratio and whether the limit holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank-result", type=Path, help=argparse.SUPPRESS)  # given to the ranks
    options = parser.parse_args()
    if options.rank_result is not None:
        rank_main(options.rounds, options.rank_result)
        return 0

    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        launch = [str(VENV / "instep"), "run", "--standalone", f"--nproc-per-node={options.ranks}", "--no-status"]
        script = [str(Path(__file__).resolve()), "--rounds", str(options.rounds), "--rank-result", str(result)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable}
        subprocess.run([*launch, *script], check=True, timeout=1800, env=environment)
        measured: dict[str, Any] = json.loads(result.read_text())

    median_ms = {name: statistics.median(values) * 1000 for name, values in measured["seconds"].items()}
    contenders = (*BACKENDS, NOTHING)
    unhidden_ms = {backend: median_ms[backend] - median_ms[f"{backend} no_sync"] for backend in contenders}
    ratio = unhidden_ms["instep"] / unhidden_ms["gloo"]
    print(f"{measured['parameters'] / 1e6:.1f} million parameters, {options.ranks} ranks, torch {measured['torch']}")
    print(f"{'':10} {'step':>12} {'no_sync':>12} {'unhidden':>12}")
    for backend in contenders:
        row = (median_ms[backend], median_ms[f"{backend} no_sync"], unhidden_ms[backend])
        print(f"{backend:10} {row[0]:9.1f} ms {row[1]:9.1f} ms {row[2]:9.1f} ms")
    floor = unhidden_ms[NOTHING] / unhidden_ms["gloo"]
    print(f"instep's unhidden communication is {ratio:.2f} of gloo's; with none at all it would be {floor:.2f}")

    report = {
        "cores": len(os.sched_getaffinity(0)),
        "ranks": options.ranks,
        "rounds": options.rounds,
        **measured,
        "unhidden_ms": unhidden_ms,
        "ratio": ratio,
        "floor": floor,
        "within": {f"ratio <= {LIMIT}": ratio <= LIMIT},
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({"within": report["within"]}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
