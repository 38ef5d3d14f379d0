"""The barrier that says who has not come.

It goes through the store, not through the engine: nobody's absence aborts the group, so a script can look at the answer
and go on. Rank 0 counts the others and tells them the verdict, so that every rank names the same absentees.

    instep/monitored/<generation>/<number>/<rank>       has come
    instep/monitored/<generation>/<number>/verdict      empty, or the complaint
"""

from __future__ import annotations

import time
from datetime import timedelta

from instep.backend.link import Link
from instep.errors import CollectiveTimeout


def monitored_barrier(link: Link, seconds: float, wait_all_ranks: bool) -> None:
    """Return when every rank has come within the time, else raise on every rank that has."""
    number, link.monitored = link.monitored, link.monitored + 1
    prefix = f"instep/monitored/{link.generation}/{number}"
    deadline = time.monotonic() + seconds
    verdict = f"{prefix}/verdict"
    if link.rank != 0:
        link.store.set(f"{prefix}/{link.rank}", "")
        # Rank 0 may have come a moment before its time was over; it needs another to say so.
        complaint = _wait_for(link, verdict, seconds + 5)
        if complaint is None:
            raise CollectiveTimeout(
                f"Rank {link.rank} passed monitoredBarrier, but rank 0 did not say within {seconds:g} s that all have",
                ranks=[0],
                operation="monitored_barrier",
            )
    else:
        missing = []
        for rank in range(1, link.size):
            left = max(deadline - time.monotonic(), 0.001)
            if _wait_for(link, f"{prefix}/{rank}", left) is None:
                missing.append(rank)
                if not wait_all_ranks:
                    break
        complaint = ",".join(map(str, missing)).encode()
        link.store.set(verdict, complaint)
    if complaint:
        missing = [int(rank) for rank in complaint.decode().split(",")]
        who = f"Rank {missing[0]}" if len(missing) == 1 else f"Ranks {', '.join(map(str, missing))}"
        raise CollectiveTimeout(
            f"{who} failed to pass monitoredBarrier in {seconds * 1000:g} ms",
            ranks=missing,
            operation="monitored_barrier",
        )


def _wait_for(link: Link, key: str, seconds: float) -> bytes | None:
    """The value of a key, or None if it does not come in time."""
    try:
        link.store.wait([key], timedelta(seconds=seconds))
    except RuntimeError:
        if not link.store.check([key]):
            return None
    return bytes(link.store.get(key))
