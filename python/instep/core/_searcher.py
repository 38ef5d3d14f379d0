"""The searcher's wishes, for scripts with a loop over its operations: a detached trial trains once, to its own end."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from instep.core._distributed import DistributedContext
    from instep.core._train import TrainContext


class SearcherMode(enum.Enum):
    """Who iterates over operations; all ranks see the same one either way."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"


class SearcherOperation:
    """Train up to a length, then report the searcher's metric."""

    def __init__(self, train: TrainContext, length: int, chief: bool) -> None:
        self._train, self._length, self._chief = train, length, chief
        self._completed = False

    @property
    def length(self) -> int:
        """How long to train, in the script's own unit."""
        return self._length

    def report_progress(self, length: float) -> None:
        """Say how much of the length is done."""
        self._check("report_progress")
        self._train.report_progress(min(1.0, max(0.0, length / self._length)))

    def report_completed(self, searcher_metric: object) -> None:  # noqa: ARG002
        """Say that the operation is done. The metric is that of the last validation report."""
        self._check("report_completed")
        self._completed = True

    def _check(self, what: str) -> None:
        if not self._chief:
            raise RuntimeError(f"{what} is for rank 0")
        if self._completed:
            raise RuntimeError(f"{what}: this operation is completed")


class SearcherContext:
    """Gives the one operation of a detached trial."""

    def __init__(self, distributed: DistributedContext, train: TrainContext, length: int) -> None:
        self._distributed, self._train, self._length = distributed, train, length

    def operations(
        self,
        searcher_mode: SearcherMode = SearcherMode.WorkersAskChief,
        auto_ack: bool = True,  # noqa: ARG002
    ) -> Iterator[SearcherOperation]:
        """Give the operation; rank 0 must report it completed before it asks for the next."""
        searcher_mode = SearcherMode(searcher_mode)
        chief = self._distributed.rank == 0
        if searcher_mode is SearcherMode.ChiefOnly and not chief:
            raise RuntimeError("operations(ChiefOnly) is for rank 0")
        operation = SearcherOperation(self._train, self._length, chief)
        yield operation
        if chief and not operation._completed:
            raise RuntimeError("the operation was not reported as completed before the next one was asked for")

    def acknowledge_out_of_ops(self) -> None:
        """Say that the script ends because there are no more operations."""

    def get_configured_units(self) -> None:
        """The unit of lengths in the configuration; a detached trial has none."""
