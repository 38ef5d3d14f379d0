"""Groups that ask for gloo and get instep: see `instep._replacement`.

All ranks of a group must come to the same decision, or they wait for each other on two backends. So they vote, through
the group's store: first whether each of them can be on instep at all, then whether each of them has connected. One vote
against it is enough for all to make gloo's group instead.

A rank without the variable knows nothing of this and connects with gloo; the others see what gloo wrote into the store.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping

from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import DebugLevel, PrefixStore, ProcessGroup, Store, get_debug_level

from instep._registration import DEVICES
from instep._replacement import VARIABLE, say
from instep.backend import groups
from instep.backend.groups import CreationOptions, Group
from instep.backend.link import Link, exchange, members
from instep.errors import CollectiveError, ConnectFailed, InvalidCall

NAME = "gloo"
# What torch takes; None where this rank is not in the group.
Made = c10d.Backend | ProcessGroup | None
# How long to wait for a peer's vote before looking whether gloo has it.
_LOOK_S = 2.0
# How often each group was made.
_made: Counter[tuple[str, tuple[int, ...]]] = Counter()
# What has been said already: once is enough.
_said: set[str] = set()


def create(opts: CreationOptions, backends: Mapping[str, str], make_gloo: Callable[[], Made]) -> Made:
    """Make a group that has these backends, by device, or its part for gloo: ours, or gloo's where a rank cannot."""
    chosen = os.environ.get(VARIABLE)
    if chosen != NAME:
        raise InvalidCall(f"{VARIABLE} is {chosen!r}\nhint: {NAME} is the only backend that can be replaced")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    # Keys of its own for a group that is made again: those of the first one are still in the store.
    identity = (opts.group_id, tuple(opts.global_ranks_in_group))
    _made[identity] += 1
    store = PrefixStore(f"instep/replace/{attempt}/{_made[identity]}", opts.store)
    ballot = members(store, opts.global_ranks_in_group)
    link: Link | None = None
    against = _vote(ballot, opts, "able", _objection(opts.process_group, backends))
    if against is None:
        link, failure = _connect(opts, store)
        against = _vote(ballot, opts, "connected", failure)
    if link is None or against is not None:
        if link is not None:
            link.close()
        _announce(f"a group stays on gloo: {against}", first=opts.group_rank == 0)
        return make_gloo()
    first = opts.group_rank == 0 and (not opts.global_ranks_in_group or opts.global_ranks_in_group[0] == 0)
    _announce(f"groups that request gloo use instep ({VARIABLE}={NAME})", first=first and attempt == "0")
    return Group(link, NAME) if set(backends.values()) == {NAME} else groups.GroupBackend(link, NAME)


def _objection(group: ProcessGroup, backends: Mapping[str, str]) -> str:
    """Why this rank cannot be on instep; empty if it can."""
    devices = {device for device, backend in backends.items() if backend == NAME}
    if not devices or not devices.issubset(DEVICES):
        return f"instep serves {' and '.join(DEVICES)}, not {', '.join(sorted(devices)) or 'an unknown device'}"
    if set(backends.values()) == {NAME}:
        return ""
    # Then the group is torch's own object, over several backends.
    if group.name() == NAME:
        return "DDP takes the first of several backends that is called gloo for an object of its own"
    if get_debug_level() == DebugLevel.DETAIL:
        return "TORCH_DISTRIBUTED_DEBUG=DETAIL cannot watch a backend written in Python beside others"
    return ""


def _connect(opts: CreationOptions, store: Store) -> tuple[Link | None, str]:
    """Connect, or say why not."""
    try:
        link = Link(
            store,
            opts.group_rank,
            opts.group_size,
            opts.timeout,
            name=opts.group_id,
            global_ranks=opts.global_ranks_in_group,
            interface=os.environ.get("GLOO_SOCKET_IFNAME"),
        )
    except InvalidCall:
        raise  # a setting of ours that makes no sense
    except CollectiveError as error:
        return None, str(error).partition("\n")[0]
    return link, ""


def _vote(ballot: Store, opts: CreationOptions, question: str, objection: str) -> str | None:
    """Tell the peers whether this rank has an objection; give the first one that any rank has."""
    deadline = time.monotonic() + opts.timeout.total_seconds()
    while True:
        left = deadline - time.monotonic()
        try:
            # A value must not be empty for stores that take that as missing.
            votes = exchange(
                ballot, question, opts.group_rank, opts.group_size, f":{objection}".encode(), min(left, _LOOK_S)
            )
        except ConnectFailed:
            silent = [peer for peer in range(opts.group_size) if not ballot.check([f"{question}/{peer}"])]
            # Where gloo writes how a rank is reached.
            strays = [peer for peer in silent if opts.store.check([f"0/{peer}"])]
            if strays:
                raise ConnectFailed(_disagreement(opts, strays[0])) from None
            if left <= _LOOK_S:
                raise
            continue
        objections = [f"{text} (rank {peer})" for peer, vote in enumerate(votes) if (text := vote[1:].decode())]
        return objections[0] if objections else None


def _disagreement(opts: CreationOptions, peer: int) -> str:
    ranks = opts.global_ranks_in_group or range(opts.group_size)
    return (
        f"rank {ranks[peer]} has made this group with gloo, rank {ranks[opts.group_rank]} with instep: "
        f"{VARIABLE}={NAME} is not set for rank {ranks[peer]}, or instep is not installed there\n"
        f"hint: set {VARIABLE} for all ranks or for none; on several nodes, give every `instep run` --replace-gloo"
    )


def _announce(text: str, *, first: bool) -> None:
    if first and text not in _said:
        _said.add(text)
        say(text)
