"""What each rank of a benchmark runs: every case, all backends in turns, round by round.

In turns, so that whatever else the machine does disturbs all backends alike. Of each batch the slowest rank's mean
counts, of all rounds the median. The first and the last round compute real numbers once, untimed, and compare every
element with what must come out.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from instep.bench.case import Case, calls_per_batch
from instep.bench.contender import TIMEOUT, Buffers, Contender, MpiContender, TorchContender
from instep.bench.mpi import MpiError, OpenMpi
from instep.bench.reports import Refusal, Writer

STORE = "store"
CHECK = "run `instep doctor` to check this machine"


class Bench:
    """One rank's part in the whole run."""

    def __init__(self, options: argparse.Namespace, reports: Writer) -> None:
        """Join the others; `self.rank` and `self.world_size` are known from here on."""
        self._options = options
        self._reports = reports
        self._backends: list[str] = options.backends.split(",")
        self._mpi = OpenMpi() if "mpi" in self._backends else None
        if self._mpi is None:
            dist.init_process_group("gloo", timeout=TIMEOUT)
        else:
            # mpirun has no store; LOCAL_RANK is what the torch backends beside it expect.
            os.environ["LOCAL_RANK"] = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", str(self._mpi.rank))
            rendezvous = f"file://{Path(options.folder, STORE)}"
            dist.init_process_group(
                "gloo", init_method=rendezvous, rank=self._mpi.rank, world_size=self._mpi.size, timeout=TIMEOUT
            )
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def run(self) -> None:
        """Measure everything that was asked for."""
        contenders = [self._join(name) for name in self._backends]
        if self.rank == 0:
            self._reports.send("start", torch=torch.__version__, world_size=self.world_size)
        for operation in self._options.ops.split(","):
            # A barrier has no size.
            sizes = ["0"] if operation == "barrier" else self._options.sizes.split(",")
            for size in map(int, sizes):
                self._measure(Case.of(operation, size, self.world_size), contenders)
        dist.barrier()
        for contender in contenders:
            contender.close()
        dist.destroy_process_group()
        if self._mpi is not None:
            self._mpi.close()

    def _join(self, name: str) -> Contender:
        if name == "mpi":
            assert self._mpi is not None
            return MpiContender(self._mpi)
        if name == "nccl":
            refuse_without_gpus(self.world_size)
        return TorchContender(name)

    def _measure(self, case: Case, contenders: list[Contender]) -> None:
        buffers = {
            device: Buffers.make(case, self.rank, device) for device in {contender.device for contender in contenders}
        }
        able = []
        for contender in contenders:
            call = contender.prepare(buffers[contender.device])
            if self._works(contender, call, buffers[contender.device]):
                able.append((contender, call))
        calls: dict[str, int] = {}
        for contender, call in able:
            buffers[contender.device].clear()
            calls[contender.name] = calls_per_batch(partial(self._batch, contender, call))
        rounds: dict[str, list[float]] = {contender.name: [] for contender, _ in able}
        for number in range(self._options.rounds):
            if self.rank == 0:
                self._reports.send("round", operation=case.operation, bytes=case.size_bytes, number=number)
            for contender, call in able:
                buffers[contender.device].clear()
                rounds[contender.name].append(self._batch(contender, call, calls[contender.name]))
        for contender, call in able:
            self._check(contender, call, buffers[contender.device])
        if self.rank == 0:
            self._reports.send(
                "case",
                operation=case.operation,
                count=case.count,
                backends=[contender.name for contender, _ in able],
                calls=calls,
            )
            for name, seconds in rounds.items():
                self._reports.send("times", backend=name, rounds_s=seconds)
            self._reports.send("done")

    def _works(self, contender: Contender, call: Callable[[], object], buffers: Buffers) -> bool:
        """Try once. A backend that has no such operation says so on every rank; it is left out of this case."""
        try:
            self._check(contender, call, buffers)
            reason = ""
        except (RuntimeError, NotImplementedError, ValueError) as error:
            reason = str(error).splitlines()[0][:300] or type(error).__name__
        reasons: list[str] = [""] * self.world_size
        dist.all_gather_object(reasons, reason)
        failed = [rank for rank, text in enumerate(reasons) if text]
        if 0 < len(failed) < self.world_size:
            what = f"{contender.name}: {buffers.case.operation} fails on rank {failed[0]} only: {reasons[failed[0]]}"
            raise Refusal(what, CHECK)
        if reason and self.rank == 0:
            self._reports.send("unable", operation=buffers.case.operation, backend=contender.name, reason=reason)
        return not reason

    def _check(self, contender: Contender, call: Callable[[], object], buffers: Buffers) -> None:
        """Compute real numbers once and compare them."""
        buffers.fill()
        call()
        contender.settle()
        if mistake := buffers.mistake():
            raise Refusal(
                f"{contender.name} computes a wrong {buffers.case.operation} of {buffers.case.size_bytes} bytes: "
                f"on rank {self.rank}, {mistake}",
                "this is a bug, in the backend or in the machine's memory; please report it with this line",
            )

    def _batch(self, contender: Contender, call: Callable[[], object], count: int) -> float:
        """Call `count` times; give the slowest rank's mean, which all ranks learn."""
        dist.barrier()
        # The ranks leave a barrier one after the other. After one call all but the last are in step, after two all.
        call()
        call()
        contender.settle()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        contender.settle()
        mean = torch.tensor([(time.perf_counter() - begin) / count], dtype=torch.float64)
        dist.all_reduce(mean, op=dist.ReduceOp.MAX)
        return float(mean.item())


def refuse_without_gpus(world_size: int) -> None:
    """NCCL needs its own GPU for every rank."""
    if not dist.is_nccl_available():
        raise Refusal(f"this torch ({torch.__version__}) is built without NCCL", "leave nccl out of --backends")
    if (gpus := torch.cuda.device_count()) < world_size:
        raise Refusal(
            f"nccl needs a GPU for every rank: {world_size} ranks, torch sees {gpus} GPUs",
            f"--nproc {gpus}" if gpus >= 2 else "leave nccl out of --backends",
        )


def main() -> int:
    """Take part; return the exit status."""
    parser = argparse.ArgumentParser()
    for name in ("--folder", "--backends", "--ops", "--sizes"):
        parser.add_argument(name, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    reports = Writer(Path(options.folder))
    try:
        Bench(options, reports).run()
    except (Refusal, MpiError) as error:
        reports.send("error", message=str(error), hint=error.hint if isinstance(error, Refusal) else CHECK)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
