"""Partners: each rank has a peer that keeps what only it has, on another node where there is one.

Ranks move to other nodes when theirs is lost, so this is found out anew in every generation.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from instep.elastic.ballot import NOBODY, RankState


def own_node() -> int:
    """The node that this process runs on: after a move it is another than the one which its rank began on."""
    value = os.environ.get("INSTEP_NODE", "0")
    return int(value) if value.isdecimal() else 0


def partners(nodes: Sequence[int]) -> list[int]:
    """By rank, who keeps its private state, where the ranks are on these nodes. Every rank keeps that of one.

    The ranks in the order of their nodes, moved on by as many as the largest node has: so none stays within its own
    unless that has more than half of all.
    """
    order = sorted(range(len(nodes)), key=lambda rank: (nodes[rank], rank))
    largest = max(Counter(nodes).values())
    step = largest if largest < len(nodes) else 1
    found = [0] * len(nodes)
    for place, rank in enumerate(order):
        found[rank] = order[(place + step) % len(order)]
    return found


def partner_of(rank: int, vote: int, states: Sequence[RankState]) -> int | None:
    """Which survivor has what a lost rank began this vote with; None if none has."""
    has = (partner for partner, state in enumerate(states) if (state.keeps, state.kept_at) == (rank, vote))
    return next((partner for partner in has if rank != NOBODY and not states[partner].standby), None)
