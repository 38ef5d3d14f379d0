"""What collectives raise: one class per thing a training script can act on.

All derive from `CollectiveError`, which is torch's `DistBackendError` where torch has it, and a `RuntimeError` in any
case, so that code written for other backends catches them too.

    try:
        dist.all_reduce(gradient)
    except instep.errors.PeerLost as lost:
        print(f"rank {lost.ranks[0]} on {lost.host} is gone")

Ranks are those of the group in which the operation ran; the message says which ranks of the job these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    DistBackendError = RuntimeError
else:
    try:
        from torch.distributed import DistBackendError
    except ImportError:  # no torch, or one without it
        DistBackendError = RuntimeError

__all__ = [
    "Aborted",
    "CollectiveError",
    "CollectiveTimeout",
    "ConnectFailed",
    "InvalidCall",
    "Mismatch",
    "NotConnected",
    "PeerLost",
    "SessionMisuse",
    "Unfinished",
]


class CollectiveError(DistBackendError):
    """Something went wrong in a group. The attributes are None or empty where they make no sense."""

    hint = ""

    def __init__(
        self,
        message: str = "",
        *,
        ranks: Sequence[int] = (),
        host: str | None = None,
        operation: str | tuple[str, str] | None = None,
        sequence: int | None = None,
    ) -> None:
        super().__init__(f"{message}\nhint: {self.hint}" if self.hint and "\nhint: " not in message else message)
        self.ranks = tuple(ranks)
        self.host = host
        self.operation = operation
        self.sequence = sequence


class PeerLost(CollectiveError):
    """A rank is gone: `ranks[0]`, which ran on `host`. The group is aborted on every rank."""

    hint = "its output shows the cause; to continue, rebuild the group with instep.backend.reconfigure"


class CollectiveTimeout(CollectiveError):
    """Not every rank took part in time: `ranks` had not even started. The group is aborted on every rank."""

    hint = "check what the missing ranks are doing; if they need longer, raise the timeout of init_process_group"


class Mismatch(CollectiveError):
    """Two ranks, `ranks`, called different things at the same point. The group is aborted on every rank."""

    hint = "every rank must call the same operations in the same order, with the same sizes and types"


class Aborted(CollectiveError):
    """A rank, `ranks[0]`, aborted the group."""


class NotConnected(CollectiveError):
    """The group was shut down, or could not be rebuilt."""


class ConnectFailed(CollectiveError):
    """The ranks could not connect in time."""


class InvalidCall(CollectiveError, ValueError):
    """The arguments contradict each other, or the operation is not defined for this type. Nothing was sent."""


class SessionMisuse(InvalidCall):
    """The script uses an `instep.elastic.Session` in a way that it refuses.

    Every rank does so, and each time: `instep run` knows this class by its name, and ends the job instead of replacing
    the rank.
    """


class Unfinished(CollectiveError):
    """`wait` was given less time than the operation takes; it goes on."""
