"""This rank's connection with the other ranks of one group: how they are connected, and how the group is rebuilt.

The engine only knows addresses. They are exchanged through the c10d store that torch gives to every group, under keys
that name the attempt and the generation, so that what a dead attempt left behind in the store is never read:

    instep/<restarts>/<generation>/host/<rank>         where a rank listens inside its host
    instep/<restarts>/<generation>/network/<rank>      and on the network: only if they do not all share memory

Torch numbers groups as each rank counts them, so ranks that make different groups at the same time give them one name
and one store (`new_subgroups(group=...)` does). What a group writes there is therefore below its members' digest.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from instep._native import CollectiveGroup, stop_callbacks
from instep.backend import recorder
from instep.backend.device import Device, connect
from instep.errors import ConnectFailed, InvalidCall

# What a group's memory is laid out for.
MAX_CHANNELS = 8

# Connections that are open, to be closed before the interpreter ends: the engine's threads must not outlive it.
_open: weakref.WeakSet[Link] = weakref.WeakSet()


class Link:
    """The connection of one group."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        name: str,
        global_ranks: Sequence[int],
        interface: str | None = None,
        recorded: bool = True,
    ) -> None:
        self.store = members(store, global_ranks)
        self.rank = rank
        self.size = size
        # Which ranks of the job these are; empty for the default group, which has all.
        self.global_ranks = list(global_ranks)
        # How long an operation may take that does not say so itself.
        self.seconds = timeout.total_seconds()
        # Collectives called so far.
        self.sequence = 0
        self.generation = 0
        self.name = name
        # How CUDA tensors are exchanged on each GPU: None where torch copies them to the host.
        self._devices: dict[int, Device | None] = {}
        # Monitored barriers called so far.
        self.monitored = 0
        # The default group's ranks are the job's; elsewhere messages must say whom they mean.
        label = f"group {name!r}: ranks {', '.join(map(str, global_ranks))} of the job" if global_ranks else ""
        self.native = CollectiveGroup(
            timeout=self.seconds,
            label=label,
            single_copy=os.environ.get("INSTEP_SINGLE_COPY", "1") != "0",
            channels=_channels(),
            local_world=_number("LOCAL_WORLD_SIZE"),
            tcp=_transport() == "tcp",
            interface=os.environ.get("INSTEP_SOCKET_IFNAME") or interface or None,
            secret=os.environ.get("INSTEP_SECRET") or None,
            canonical=_order() == "canonical",
            recorder=recorder.of_this_process(None if global_ranks else (rank, size)) if recorded else None,
            name=name if global_ranks else "default",
            ranks=self.global_ranks,
        )
        self._bootstrap(self.seconds)
        _open.add(self)

    def _bootstrap(self, seconds: float) -> int | None:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        prefix = f"instep/{attempt}/{self.generation}"
        deadline = time.monotonic() + seconds

        def exchanged(where: str) -> list[bytes]:
            left = max(deadline - time.monotonic(), 0.001)
            return exchange(self.store, f"{prefix}/{where}", self.rank, self.size, self.native.address(), left)

        addresses = exchanged("host")
        # All ranks see the same list, so all come to the same conclusion.
        if self.native.needs_network(addresses):
            self.native.open_to_network()
            addresses = exchanged("network")
        seconds = max(deadline - time.monotonic(), 0.001)
        return self.native.connect(self.rank, addresses, self.generation, seconds)

    def reconfigure(self, store: Store, rank: int, size: int, generation: int, seconds: float) -> int | None:
        """Give the group other peers; see `instep.backend.reconfigure`."""
        self.abort()
        self._leave_devices()
        self.store, self.rank, self.size, self.generation = store, rank, size, generation
        self.sequence = 0
        return self._bootstrap(seconds)

    def device(self, device: torch.device) -> Device | None:
        """How CUDA tensors are exchanged on a GPU; None if torch must copy. Called by all ranks, the first time."""
        index = device.index
        if index not in self._devices:
            self._devices[index] = self._connect_device(device)
        return self._devices[index]

    def _connect_device(self, device: torch.device) -> Device | None:
        store = PrefixStore(f"instep/device/{self.generation}/{len(self._devices)}", self.store)
        timeout = timedelta(seconds=self.seconds)
        signals = Link(
            store, self.rank, self.size, timeout, name=self.name, global_ranks=self.global_ranks, recorded=False
        )
        return connect(signals, self, device)

    def _leave_devices(self) -> None:
        for device in self._devices.values():
            if device is not None:
                device.close()
        self._devices.clear()

    def abort(self) -> None:
        """Fail everything under way, here and on the peers, and return at once."""
        self.native.abort()
        for device in list(self._devices.values()):  # another thread may be adding one
            if device is not None:
                device.abort()

    def close(self) -> None:
        """Leave the group."""
        self._leave_devices()
        self.native.shutdown()
        _open.discard(self)


def members(store: Store, global_ranks: Sequence[int]) -> Store:
    """What groups of other ranks do not see of a group's store; all of it for the default group, which names none."""
    if not global_ranks:
        return store
    digest = hashlib.sha256(" ".join(map(str, global_ranks)).encode()).hexdigest()[:16]
    return PrefixStore(digest, store)


def _channels() -> int | None:
    """How many threads the user wants to share the work of a large operation."""
    channels, given = _number("INSTEP_LANES"), os.environ.get("INSTEP_LANES")
    if given and (channels is None or channels > MAX_CHANNELS):
        raise InvalidCall(f"INSTEP_LANES is {given!r}\nhint: use a number of threads, 1 to {MAX_CHANNELS}")
    return channels


def _number(variable: str) -> int | None:
    """A variable that says how many; None if it is not set, or says something else."""
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() and int(value) > 0 else None


def _transport() -> str:
    """What the user wants tensors to travel through."""
    transport = os.environ.get("INSTEP_TRANSPORT", "auto")
    if transport not in ("auto", "tcp"):
        raise InvalidCall(f"INSTEP_TRANSPORT is {transport!r}\nhint: use auto (shared memory where possible) or tcp")
    return transport


def _order() -> str:
    """In which order the user wants numbers to be added up."""
    order = os.environ.get("INSTEP_ORDER", "hosts")
    if order not in ("hosts", "canonical"):
        raise InvalidCall(f"INSTEP_ORDER is {order!r}\nhint: use hosts (fast) or canonical (same bits on any hosts)")
    return order


def exchange(store: Store, prefix: str, rank: int, size: int, value: bytes, seconds: float) -> list[bytes]:
    """Give every rank the values of all, through a store of any kind."""
    keys = [f"{prefix}/{peer}" for peer in range(size)]
    store.set(keys[rank], value)  # type: ignore[arg-type]  # bytes are fine, torch types text only
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except RuntimeError as error:
        missing = [peer for peer, key in enumerate(keys) if not store.check([key])]
        if not missing:
            raise
        who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        raise ConnectFailed(
            f"rank {rank} waited {seconds:.3g} s for {who} of {size} to join the group\n"
            "hint: look at the output of the missing ranks; every rank of a group must create it"
        ) from error
    if store.has_extended_api():  # type: ignore[attr-defined]  # torch does not type it
        return [bytes(found) for found in store.multi_get(keys)]
    return [bytes(store.get(key)) for key in keys]


@atexit.register
def _close_all() -> None:
    for link in list(_open):
        link.close()
    recorder.end()
    stop_callbacks()
