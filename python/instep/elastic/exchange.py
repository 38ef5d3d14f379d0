"""A few numbers of every rank, for every rank: what a vote is made of.

It happens in every step, so it takes the shortest way: memory and operation are made once, and torch is not asked.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from instep._native import DTYPES, Operation
from instep.backend.link import Link


class Exchange:
    """The memory in which the ranks of a group exchange their numbers."""

    def __init__(self, link: Link, count: int) -> None:
        """Each rank has so many numbers, of 64 bits each."""
        self._link = link
        self._count = count
        length = 8 * count
        self._own = array("q", bytes(length))
        self._all = array("q", bytes(length * link.size))
        (mine, _), (first, _) = self._own.buffer_info(), self._all.buffer_info()
        places = [(first + rank * length, length) for rank in range(link.size)]
        self._operation = Operation.all_gather((mine, length), places, DTYPES.index("i64"))

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Give this rank's numbers, and get those of all ranks in their order."""
        link = self._link
        # Not by slices, which may move the memory.
        for place, number in enumerate(numbers):
            self._own[place] = number
        link.sequence += 1
        link.native.run(self._operation, link.seconds)
        found = self._all.tolist()
        return [found[rank * self._count : (rank + 1) * self._count] for rank in range(link.size)]
