"""Whether somebody wants this training to make room."""

from __future__ import annotations

import enum


class PreemptMode(enum.Enum):
    """Who asks and who is told; in detached mode there is nobody to ask, and all three answer alike."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class PreemptContext:
    """Tells a script when to save and stop.

    A detached script has its resources from elsewhere, so nobody preempts it: the answer is False.
    """

    def __init__(self, mode: PreemptMode) -> None:
        self._mode = mode

    def should_preempt(self, auto_ack: bool = True) -> bool:  # noqa: ARG002
        """Whether to save a checkpoint and exit now."""
        return False

    def acknowledge_preemption_signal(self) -> None:
        """Say that the script is about to save and exit; needed only with `should_preempt(auto_ack=False)`."""
