"""What is measured, as plain numbers: operations, their buffers, expected results and bandwidth factors. No torch here.

A size is the size of the larger of an operation's two buffers, as nccl-tests counts it: what a rank ends up with in an
all_gather, what it starts with in a reduce_scatter. Then, with t the time of one call,

    algorithm bandwidth = size / t
    bus bandwidth       = size / t * factor

where the factor is the share of the size that each rank's link has to carry at least: bus bandwidth can be compared
with what the hardware does, and between numbers of ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

OPERATIONS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
)
ITEM_BYTES = 4  # float32
ROOT = 0
# Input, output, the pattern they are filled from, what is expected, and what comparing them takes.
BUFFERS = 6
# Small enough that float32 adds it up exactly over any number of ranks that fit on a machine.
PATTERN_LENGTH = 97

# One batch of calls takes about this long: enough to drown the ranks' uneven start, little enough to end before the
# kernel gives the core to somebody else. On a busy machine the median batch else tells of the neighbours.
BATCH_S = 0.005
MOST_CALLS = 2_000
FEWEST_CALLS = 4


@dataclass(frozen=True)
class Case:
    """One operation at one size."""

    operation: str
    world_size: int
    # Elements in the larger buffer: at least one for every rank, and the same number for each.
    count: int

    @classmethod
    def of(cls, operation: str, asked_bytes: int, world_size: int) -> Case:
        """Round a size down to what can be shared out evenly; at least one element a rank, and none for a barrier."""
        if operation == "barrier":
            return cls(operation, world_size, 0)
        whole = operation in ("all_reduce", "broadcast", "reduce")
        step = 1 if whole else world_size
        return cls(operation, world_size, max(asked_bytes // ITEM_BYTES // step, 1) * step)

    @property
    def size_bytes(self) -> int:
        """The size in the table."""
        return self.count * ITEM_BYTES

    @property
    def share(self) -> int:
        """Elements of one rank's part."""
        return self.count // self.world_size

    @property
    def input_count(self) -> int:
        """Elements a rank puts in."""
        return self.share if self.operation in ("all_gather", "gather") else self.count

    @property
    def output_count(self) -> int:
        """Elements a rank gets; 0 where the operation works in place."""
        if self.operation in ("all_reduce", "broadcast", "reduce"):
            return 0
        return self.share if self.operation in ("reduce_scatter", "scatter") else self.count

    @property
    def bus_factor(self) -> float:
        """The part of the size that crosses each rank's link at least."""
        others = (self.world_size - 1) / self.world_size
        if self.operation == "all_reduce":
            return 2 * others
        if self.operation == "barrier":
            return 0.0
        return 1.0 if self.operation in ("broadcast", "reduce") else others

    def result_parts(self, rank: int) -> list[Part]:
        """What `rank` must find in its result buffer, part by part; empty where the operation leaves it undefined.

        Every rank fills its input with `rank + 1 + position % PATTERN_LENGTH`.
        """
        ranks = range(self.world_size)
        total = sum(other + 1 for other in ranks)
        everything = Part(first=0, length=self.count, pattern_from=0, factor=self.world_size, plus=total)
        mine = rank * self.share
        match self.operation:
            case "all_reduce":
                return [everything]
            case "reduce":
                return [everything] if rank == ROOT else []
            case "broadcast":
                return [Part(0, self.count, 0, 1, ROOT + 1)]
            case "reduce_scatter":
                return [Part(0, self.share, mine, self.world_size, total)]
            case "scatter":
                return [Part(0, self.share, mine, 1, ROOT + 1)]
            case "all_gather":
                return [Part(other * self.share, self.share, 0, 1, other + 1) for other in ranks]
            case "gather":
                return [Part(other * self.share, self.share, 0, 1, other + 1) for other in ranks if rank == ROOT]
            case "barrier":
                return []
            case "all_to_all":
                return [Part(other * self.share, self.share, mine, 1, other + 1) for other in ranks]
        raise ValueError(f"unknown operation {self.operation!r}")


@dataclass(frozen=True)
class Part:
    """A stretch of a result: element `first + i` is `factor * ((pattern_from + i) % PATTERN_LENGTH) + plus`."""

    first: int
    length: int
    pattern_from: int
    factor: int
    plus: int


@dataclass(frozen=True)
class Figure:
    """One backend at one case."""

    case: Case
    backend: str
    # Of each round: the slowest rank's mean time of one call.
    rounds_s: tuple[float, ...]
    calls: int

    @property
    def time_s(self) -> float:
        """The median round."""
        return statistics.median(self.rounds_s)

    @property
    def algorithm_gb_s(self) -> float:
        """Size over time, in 10⁹ bytes a second."""
        return self.case.size_bytes / self.time_s / 1e9

    @property
    def bus_gb_s(self) -> float:
        """The same, in terms of what a link carries."""
        return self.algorithm_gb_s * self.case.bus_factor

    def as_json(self) -> dict[str, object]:
        """For programs."""
        return {
            "operation": self.case.operation,
            "bytes": self.case.size_bytes,
            "backend": self.backend,
            "time_us": self.time_s * 1e6,
            "algorithm_gb_s": self.algorithm_gb_s,
            "bus_gb_s": self.bus_gb_s,
            "calls_per_round": self.calls,
            "rounds_us": [seconds * 1e6 for seconds in self.rounds_s],
        }


def calls_per_batch(measure: Callable[[int], float]) -> int:
    """Find how many calls make a batch, given what measures the mean of some calls (the same on every rank).

    An even number: of two ranks that are out of step by less than a message takes, each waits for the other in turn,
    and an odd number of calls would charge that to one of them.
    """
    calls = 1
    while True:
        mean_s = measure(calls)
        if mean_s * calls >= BATCH_S / 8 or calls >= MOST_CALLS:
            return max(FEWEST_CALLS, min(MOST_CALLS, 2 * round(BATCH_S / mean_s / 2)))
        calls *= 4


def geometric_mean(values: Sequence[float]) -> float:
    """The mean for ratios."""
    return statistics.geometric_mean(values)


def spell_size(size_bytes: int) -> str:
    """4096 as 4K, as the option takes it; numbers that are no round power as they are."""
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit}{name}"
    return str(size_bytes)
