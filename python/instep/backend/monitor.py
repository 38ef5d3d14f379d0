"""The barrier that says who has not come.

It goes through the store, not through the native library, so an absent rank does not abort the group: a script can look
at the answer and continue. Rank 0 counts the others and tells them the verdict, so that every rank names the same
absentees.

    instep/monitored/<generation>/<number>/<rank>       has come
    instep/monitored/<generation>/<number>/verdict      empty, or the complaint
"""

from __future__ import annotations

import time
from datetime import timedelta

from instep.backend import standby
from instep.backend.link import Link
from instep.errors import CollectiveTimeout

_GRACE = 5.0
_LOOK = 0.001


def monitored_barrier(link: Link, seconds: float, wait_all_ranks: bool) -> None:
    """Return when every rank has come within the time, else raise on every rank that has."""
    if standby.is_waiting():
        return
    number, link.monitored = link.monitored, link.monitored + 1
    prefix = f"instep/monitored/{link.generation}/{number}"
    outcome = f"{prefix}/verdict"
    limit = f"{seconds * 1000:g} ms"
    if link.rank != 0:
        link.store.set(f"{prefix}/{link.rank}", "")
        # Rank 0 may need all of its own time, and come a little later.
        complaint = _wait_for(link, outcome, seconds + _GRACE)
        if complaint == b"":
            return
        # The words before the colon are those of gloo, which scripts may look for.
        begin = (
            f"Rank {link.rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
            "from rank 0"
        )
        if complaint is None:
            raise _error(f"{begin}: it did not answer within {limit}", [0])
        missing = [int(rank) for rank in complaint.decode().split(",")]
        raise _error(f"{begin}: {_who(missing)} failed to pass monitoredBarrier in {limit}", missing)
    if seconds <= 0:
        raise _error("Rank 0 timed out in monitoredBarrier: it was given no time", [0])
    deadline = time.monotonic() + seconds
    missing = []
    for rank in range(1, link.size):
        # One that is late is no reason not to look at the others.
        left = max(deadline - time.monotonic(), _LOOK)
        if _wait_for(link, f"{prefix}/{rank}", left) is None:
            missing.append(rank)
            if not wait_all_ranks:
                break
    link.store.set(outcome, ",".join(map(str, missing)))
    if missing:
        raise _error(f"{_who(missing)} failed to pass monitoredBarrier in {limit}", missing)


def _who(ranks: list[int]) -> str:
    return f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {', '.join(map(str, ranks))}"


def _error(message: str, ranks: list[int]) -> CollectiveTimeout:
    return CollectiveTimeout(message, ranks=ranks, operation="monitored_barrier")


def _wait_for(link: Link, key: str, seconds: float) -> bytes | None:
    """The value of a key, or None if it does not come in time."""
    try:
        link.store.wait([key], timedelta(seconds=seconds))
    except RuntimeError:
        if not link.store.check([key]):
            return None
    return bytes(link.store.get(key))
