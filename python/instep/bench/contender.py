"""The backends under test: each turns a case and its buffers into one call that can be repeated."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist

from instep.bench.case import PATTERN_LENGTH, ROOT, Case
from instep.bench.mpi import OpenMpi

# For a call that never comes back: far beyond what any size takes.
TIMEOUT = timedelta(seconds=120)


@dataclass
class Buffers:
    """A rank's memory for one case on one device, shared by the backends that compute there."""

    case: Case
    rank: int
    source: torch.Tensor
    result: torch.Tensor
    pattern: torch.Tensor

    @classmethod
    def make(cls, case: Case, rank: int, device: torch.device) -> Buffers:
        """Allocate and touch: the first write to fresh memory is the kernel's time, not the backend's."""
        pattern = (torch.arange(case.count, dtype=torch.int32, device=device) % PATTERN_LENGTH).to(torch.float32)
        source = torch.full((case.input_count,), 0.0, device=device)
        result = torch.full((case.output_count,), 0.0, device=device) if case.output_count else source
        return cls(case, rank, source, result, pattern)

    def fill(self) -> None:
        """Put this rank's own numbers into its input, and into the output what no operation leaves there."""
        if self.result is not self.source:
            self.result.fill_(-1.0)
        torch.add(self.pattern[: self.case.input_count], self.rank + 1, out=self.source)

    def clear(self) -> None:
        """Zeros: however often they are summed, they stay what they are."""
        self.source.fill_(0.0)
        self.result.fill_(0.0)

    def mistake(self) -> str | None:
        """Compare the result with what must be there; say where it first differs."""
        for part in self.case.result_parts(self.rank):
            stretch = self.result[part.first : part.first + part.length]
            wanted = self.pattern[part.pattern_from : part.pattern_from + part.length] * part.factor + part.plus
            if not torch.equal(stretch, wanted):
                at = int((stretch != wanted).nonzero()[0])
                return f"element {part.first + at} is {stretch[at].item()}, not {wanted[at].item()}"
        return None


class Contender(Protocol):
    """A backend that takes part."""

    name: str
    device: torch.device

    def prepare(self, buffers: Buffers) -> Callable[[], object]:
        """Give what makes one call on these buffers."""

    def settle(self) -> None:
        """Wait until what was called is done, for devices that compute on their own."""

    def close(self) -> None:
        """Leave the group."""


class TorchContender:
    """A backend of torch.distributed, in a group of its own."""

    def __init__(self, name: str) -> None:
        """Make the group; every rank does so in the same order."""
        self.name = name
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if name == "nccl" else torch.device("cpu")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if name == "instep":
            from instep.backend import register

            register()  # older versions of torch do not find it by themselves
        group = dist.new_group(backend=name, timeout=TIMEOUT)
        assert isinstance(group, dist.ProcessGroup), "every rank is a member"
        self._group = group
        # Some backends connect at the first use: here, where nobody holds a watch.
        dist.all_reduce(torch.zeros(1, device=self.device), group=self._group)

    def prepare(self, buffers: Buffers) -> Callable[[], object]:
        """Give what makes one call on these buffers."""
        case, group = buffers.case, self._group
        source, result = buffers.source, buffers.result
        at_root = buffers.rank == ROOT
        match case.operation:
            case "barrier":
                return partial(dist.barrier, group=group)
            case "all_reduce":
                return partial(dist.all_reduce, source, group=group)
            case "broadcast":
                return partial(dist.broadcast, source, ROOT, group=group)
            case "reduce":
                return partial(dist.reduce, source, ROOT, group=group)
            case "reduce_scatter":
                return partial(dist.reduce_scatter_tensor, result, source, group=group)
            case "all_gather":
                return partial(dist.all_gather_into_tensor, result, source, group=group)
            case "all_to_all":
                return partial(dist.all_to_all_single, result, source, group=group)
            case "gather":
                into = list(result.chunk(case.world_size)) if at_root else None
                return partial(dist.gather, source, into, ROOT, group=group)
            case "scatter":
                parts = list(source.chunk(case.world_size)) if at_root else None
                return partial(dist.scatter, result, parts, ROOT, group=group)
        raise ValueError(f"unknown operation {case.operation!r}")

    def settle(self) -> None:
        """Wait until what was called is done, for devices that compute on their own."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group(self._group)


class MpiContender:
    """Open MPI, called directly."""

    def __init__(self, mpi: OpenMpi) -> None:
        """Use what the process joined when it started."""
        self.name = "mpi"
        self.device = torch.device("cpu")
        self._mpi = mpi

    def prepare(self, buffers: Buffers) -> Callable[[], object]:
        """Give what makes one call on these buffers, which must outlive it."""
        in_place = buffers.result is buffers.source
        return self._mpi.call(buffers.case, buffers.source.data_ptr(), 0 if in_place else buffers.result.data_ptr())

    def settle(self) -> None:
        """Nothing to wait for: every call blocks."""

    def close(self) -> None:
        """Left to the owner of the library: it must be the last thing a process does with it."""
