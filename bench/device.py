"""Collectives on CUDA tensors by ranks that share one GPU: instep on the device, instep through the host, gloo.

    python bench/device.py [--ranks 2] [--json FILE]

One process a rank and contender; the contenders take turns, round by round, so that they see the same machine. The
floor is a copy of as many bytes on the device, by all ranks at once. A DDP step is that of a model with 100 million
parameters.
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
from pathlib import Path

SIZES = [8, 4 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 25 << 20, 100 << 20]
# Not measured, before each size.
WARM_UP = 10
CONTENDERS = {"device": ("instep", "1"), "host": ("instep", "0"), "gloo": ("gloo", "1")}


def rank_main(options: argparse.Namespace) -> None:
    """What one rank does; rank 0 writes what it measured."""
    import torch
    import torch.distributed as dist

    if options.backend == "instep":
        import instep  # noqa: F401
    torch.cuda.set_device(0)
    dist.init_process_group(options.backend)
    results: dict[str, list[float]] = {}

    def measure(name: str, act: object, times: int) -> None:
        for _ in range(WARM_UP):
            act()  # type: ignore[operator]
        torch.cuda.synchronize()
        dist.barrier()
        samples = results.setdefault(name, [])
        for _ in range(times):
            began = time.perf_counter()
            act()  # type: ignore[operator]
            torch.cuda.synchronize()
            samples.append(time.perf_counter() - began)

    for size in SIZES:
        tensor = torch.ones(size // 4, device="cuda")
        measure(f"all_reduce {size}", lambda tensor=tensor: dist.all_reduce(tensor), options.times)
        other = torch.empty_like(tensor)
        measure(f"copy {size}", lambda tensor=tensor, other=other: other.copy_(tensor), options.times)
        tensor.zero_()
    if options.model:
        layers = [torch.nn.Linear(2500, 2500) for _ in range(16)]
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), device_ids=[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        batch = torch.randn(32, 2500, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

        measure("ddp step", step, max(3, options.times // 2))
    if dist.get_rank() == 0:
        Path(options.output).write_text(json.dumps(results))
    dist.destroy_process_group()


def run(name: str, ranks: int, times: int, output: Path) -> dict[str, list[float]]:
    """One round of one contender."""
    backend, device = CONTENDERS[name]
    environment = {**os.environ, "INSTEP_DEVICE_EXCHANGE": device, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    arguments = [__file__, "--backend", backend, "--times", str(times), "--output", str(output), "--model"]
    subprocess.run([*command, *arguments], check=True, env=environment, stdout=subprocess.DEVNULL)
    found: dict[str, list[float]] = json.loads(output.read_text())
    return found


def main() -> int:
    """Measure, print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--backend", help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    parser.add_argument("--model", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.backend:
        rank_main(options)
        return 0
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for name in CONTENDERS:
                for what, times in run(name, options.ranks, options.times, Path(folder, "found")).items():
                    samples[name].setdefault(what, []).extend(times)
    medians = {
        name: {what: statistics.median(times) for what, times in found.items()} for name, found in samples.items()
    }
    print(f"{'':22}" + "".join(f"{name:>12}" for name in CONTENDERS) + f"{'gloo / ours':>14}{'ours / copy':>14}")
    for what in medians["device"]:
        if what.startswith("copy"):
            continue
        row = "".join(f"{medians[name][what] * 1e6:9.0f} us" for name in CONTENDERS)
        ratio = medians["gloo"][what] / medians["device"][what]
        floor = medians["device"].get(what.replace("all_reduce", "copy"))
        beside = f"{medians['device'][what] / floor:13.1f}x" if floor else ""
        print(f"{what:22}{row}{ratio:13.1f}x{beside if what != 'ddp step' else ''}")
    result = {"ranks": options.ranks, "seconds": medians}
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
