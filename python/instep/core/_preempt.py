"""Whether somebody wants this training to make room."""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING

from instep._native import Preemption
from instep.core._tracking import on_chief

if TYPE_CHECKING:
    from instep.core._distributed import DistributedContext
    from instep.core._tracking import Tracking

logger = logging.getLogger("instep.core")
# How long the first question waits for a master that does not answer.
FIRST_ANSWER_S = 30.0


class PreemptMode(enum.Enum):
    """Who asks the master, and who may ask; a detached script has nobody to ask, and all three answer alike."""

    # Every rank asks, together; rank 0 alone listens to the master.
    WorkersAskChief = "WORKERS_ASK_CHIEF"
    # Rank 0 asks alone, and tells the others in its own way.
    ChiefOnly = "CHIEF_ONLY"
    # Every rank asks, together, and listens to the master itself: what any of them has heard, all answer.
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class PreemptContext:
    """Tells a script when to save and stop, all ranks in the same step.

    A detached script has its resources from elsewhere, so nobody preempts it: the answer is False.
    """

    def __init__(self, mode: PreemptMode, distributed: DistributedContext, tracking: Tracking | None) -> None:
        self._mode, self._distributed = mode, distributed
        self._tracking = tracking if tracking is not None and tracking.managed else None
        self._chief = distributed.rank == 0
        self._acknowledged = False
        self._watch: Preemption | None = None
        if self._tracking is not None and (self._chief or mode is PreemptMode.WorkersAskMaster):
            self._watch = self._tracking.watch_preemption()

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Whether to save a checkpoint and exit now.

        But for ChiefOnly, all ranks call this, equally often, and get the same answer. Rank 0 tells the master that the
        script will stop before it is done, unless `auto_ack` is False.
        """
        if self._mode is PreemptMode.ChiefOnly and not self._chief:
            raise RuntimeError(
                f"should_preempt() with PreemptMode.ChiefOnly is for rank 0, this is rank {self._distributed.rank}\n"
                "hint: init(preempt_mode=PreemptMode.WorkersAskChief) lets all ranks ask together"
            )
        if self._tracking is None:
            return False
        preempt = self._decided()
        if preempt and auto_ack:
            self.acknowledge_preemption_signal()
        return preempt

    def acknowledge_preemption_signal(self) -> None:
        """Say that the script is about to save and exit; needed only with `should_preempt(auto_ack=False)`."""
        if self._tracking is None or not self._chief or self._acknowledged:
            return
        self._tracking.acknowledge_preemption()
        self._acknowledged = True

    def close(self) -> None:
        """Stop to listen."""
        self._watch = None

    def _decided(self) -> bool:
        if self._mode is PreemptMode.ChiefOnly:
            return self._heard()
        if self._mode is PreemptMode.WorkersAskChief:
            return on_chief(self._distributed, self._heard)
        return any(self._distributed.allgather(self._heard()))

    def _heard(self) -> bool:
        if self._watch is None:
            return False
        preempt = self._watch.preempt(FIRST_ANSWER_S)
        for sentence in self._watch.news():
            logger.warning("%s", sentence)
        return preempt
