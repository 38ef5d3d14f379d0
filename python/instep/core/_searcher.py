"""The searcher's wishes, for scripts with a loop over its operations.

The search itself learns from validation metrics, and stops a trial through `preempt`. What is left of the loop is one
operation: train up to the length that the configuration names as `searcher.max_length`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from instep.core._distributed import DistributedContext
    from instep.core._train import TrainContext


class SearcherMode(enum.Enum):
    """Who iterates over operations; all ranks see the same one either way."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"


class Unit(enum.Enum):
    """What lengths in the configuration count."""

    EPOCHS = "UNIT_EPOCHS"
    RECORDS = "UNIT_RECORDS"
    BATCHES = "UNIT_BATCHES"


def length_and_unit(searcher: dict[str, Any]) -> tuple[int | None, Unit | None]:
    """Read `max_length`: a number, or a number under the name of a unit."""
    length = searcher.get("max_length")
    unit = None
    if isinstance(length, dict):
        if len(length) != 1:
            raise ValueError(f"searcher.max_length has one unit, not {sorted(length)}")
        [(name, length)] = length.items()
        units = {each.name.lower(): each for each in Unit}
        if name not in units:
            raise ValueError(f"searcher.max_length counts {' or '.join(units)}, not {name}")
        unit = units[name]
    if length is None:
        return None, None
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise ValueError(f"searcher.max_length is a whole number from 1, not {length!r}")
    return length, unit


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
            raise RuntimeError(f"{what} is for rank 0\nhint: if context.distributed.rank == 0: operation.{what}(...)")
        if self._completed:
            raise RuntimeError(f"{what}: this operation is already completed")


class SearcherContext:
    """Gives the one operation of a trial."""

    def __init__(
        self, distributed: DistributedContext, train: TrainContext, length: int | None, unit: Unit | None = None
    ) -> None:
        self._distributed, self._train, self._length, self._unit = distributed, train, length, unit

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
        if self._length is None:
            raise RuntimeError(
                "the experiment's configuration does not say how long an operation is\n"
                "hint: set searcher.max_length there, or leave this loop out: validation metrics tell the searcher "
                "all that it needs, and preempt.should_preempt() says when to stop"
            )
        operation = SearcherOperation(self._train, self._length, chief)
        yield operation
        if chief and not operation._completed:
            raise RuntimeError("the operation was not reported as completed before the next one was asked for")

    def acknowledge_out_of_ops(self) -> None:
        """Say that the script ends because there are no more operations."""

    def get_configured_units(self) -> Unit | None:
        """The unit of lengths in the configuration, if it names one."""
        return self._unit
