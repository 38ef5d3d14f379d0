"""This rank's connection with the other ranks of one group: how they are connected, and how the group is rebuilt.

The native library only knows addresses. They are exchanged through the c10d store that torch gives to every group,
under keys that name the attempt and the generation, so that what a dead attempt left behind in the store is never read:

    instep/<restarts>/<generation>/host/<rank>         where a rank listens inside its host
    instep/<restarts>/<generation>/network/<rank>      and on the network: only if they do not all share memory

A rank that replaces a lost one (`standby`) connects no group when the script makes it: its peers made theirs long ago.
Operations of such a group end at once, until `Link.rejoin` connects it with the peers, who rejoin at the same time.

torch's own `dist._reconfigure` gives a group peers that are named by handles, under a number that nobody has used
before. Where the ranks then meet is theirs alone: parts of a group may be reconfigured apart, and together again:

    instep/reconfigure/<restarts>/<uuid>/members/<rank>    whom a rank wants to meet, and its generation
    instep/reconfigure/<restarts>/<uuid>/instep/...        as above, in the generation after all of theirs

Torch numbers groups as each rank counts them, so ranks that make different groups at the same time give them one name
and one store (`new_subgroups(group=...)` does). What a group writes there is therefore below its members' digest.
"""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import itertools
import os
import secrets
import socket
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import NoReturn, cast

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from instep._native import CollectiveGroup, stop_callbacks
from instep.backend import recorder, standby
from instep.backend.device import Device, connect
from instep.errors import CollectiveError, ConnectFailed, InvalidCall, NotConnected

# What a group's memory is laid out for.
MAX_CHANNELS = 8

# How often a rank that waits for its peers looks whether it waits in vain: often at first.
_LOOK_S = (0.001, 0.05)

# Connections that are open, to be closed before the interpreter ends: the native library's threads must not outlive it.
_open: weakref.WeakSet[Link] = weakref.WeakSet()
_numbers = itertools.count()


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
        deferred: bool = False,
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
        # Groups are rebuilt in the order in which they were made, which is the same on every rank.
        self.number = next(_numbers)
        self._interface = interface
        self._recorded = recorded
        # Where ranks of this group, old and new, find each other when it is reconfigured.
        self._rendezvous_store = self.store
        self._handle = Handle.new(rank)
        self._uuids: set[int] = set()
        if deferred and not standby.is_waiting():
            self.native = _not_connected_yet()
        else:
            self._bind()
            if standby.is_waiting():
                self.native.stand_by(rank, size)
            else:
                self._bootstrap(self.seconds)
        _open.add(self)

    def _bind(self) -> None:
        # The default group's ranks are the job's; elsewhere messages must say whom they mean.
        ranks = self.global_ranks
        label = f"group {self.name!r}: ranks {', '.join(map(str, ranks))} of the job" if ranks else ""
        of_job = None if ranks else (self.rank, self.size)
        self.native = CollectiveGroup(
            timeout=self.seconds,
            label=label,
            single_copy=os.environ.get("INSTEP_SINGLE_COPY", "1") != "0",
            channels=_channels("INSTEP_LANES"),
            network_channels=_channels("INSTEP_NETWORK_LANES"),
            local_world=_number("LOCAL_WORLD_SIZE"),
            tcp=_transport() == "tcp",
            interface=os.environ.get("INSTEP_SOCKET_IFNAME") or self._interface or None,
            secret=os.environ.get("INSTEP_SECRET") or None,
            encrypt=_encrypts(),
            canonical=_order() == "canonical",
            recorder=recorder.of_this_process(of_job) if self._recorded else None,
            name=self.name if ranks else "default",
            ranks=ranks,
        )

    def _bootstrap(self, seconds: float, in_vain: Callable[[], bool] | None = None) -> int | None:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        prefix = f"instep/{attempt}/{self.generation}"
        deadline = time.monotonic() + seconds

        def exchanged(where: str) -> list[bytes]:
            left = max(deadline - time.monotonic(), 0.001)
            key, address = f"{prefix}/{where}", self.native.address()
            if in_vain is not None:
                self.store.set(f"{key}/{self.rank}", address)  # type: ignore[arg-type]  # as in `exchange`
                keys = [f"{key}/{peer}" for peer in range(self.size)]
                if not _wait_unless(in_vain, self.store, keys, left):
                    raise did_not_join(self.store, keys, self.rank, seconds)
            return exchange(self.store, key, self.rank, self.size, address, left)

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

    @property
    def handle(self) -> str:
        """What `regroup` calls this rank, on every rank; the same for as long as there is the group."""
        return str(self._handle)

    def regroup(self, uuid: int, handles: Collection[str], seconds: float) -> None:
        """Give the group other peers, of which each gave its handle: in the order of a list, or one of our own."""
        if standby.is_waiting():
            raise InvalidCall(
                "this process replaces a lost rank (--recover step), and its groups are connected by the session\n"
                "hint: use either instep.elastic.Session or dist._reconfigure"
            )
        peers = Handle.parse_all(handles)
        if self._handle not in peers:
            raise InvalidCall(
                f"the handle of this rank ({self._handle}) is not among the {len(peers)} given\n"
                "hint: only ranks whose handles are given call dist._reconfigure"
            )
        if uuid in self._uuids:
            raise InvalidCall(
                f"the group was reconfigured with uuid {uuid} before\nhint: give all ranks a uuid that is new each time"
            )
        self._uuids.add(uuid)
        self.abort()
        self._leave_devices()
        deadline = time.monotonic() + seconds
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.store = PrefixStore(f"instep/reconfigure/{attempt}/{uuid}", self._rendezvous_store)
        self.rank, self.size = peers.index(self._handle), len(peers)
        self.generation = 1 + self._newest_generation(peers, uuid, seconds)
        self.sequence = self.monitored = 0
        first = isinstance(self.native, _NotConnectedYet)
        if first:
            self._bind()
        try:
            self._bootstrap(max(deadline - time.monotonic(), 0.001))
        except BaseException:
            if first:  # what could not connect is closed; the next try needs one that can
                self.native.shutdown()
                self.native = _not_connected_yet()
            raise

    def _newest_generation(self, peers: list[Handle], uuid: int, seconds: float) -> int:
        """Agree with the peers that it is they who meet; give the newest generation in which any of them was."""
        digest = hashlib.sha256(" ".join(map(str, peers)).encode()).hexdigest()
        mine = f"{digest} {self.generation}".encode()
        said = [
            value.decode().split() for value in exchange(self.store, "members", self.rank, self.size, mine, seconds)
        ]
        for peer, (theirs, _) in zip(peers, said, strict=True):
            if theirs != digest:
                raise InvalidCall(
                    f"what was to be rank {peers.index(peer)} ({peer}) uses uuid {uuid} with other handles\n"
                    "hint: give all ranks the same handles in the same order, and a uuid that is new each time"
                )
        return max(int(generation) for _, generation in said)

    def rejoin(self, generation: int, in_vain: Callable[[], bool]) -> None:
        """Connect with the same ranks again, some of which are new processes, or as such a process for the first time.

        Given up early when `in_vain` says that it is; the group can then rejoin a later generation.
        """
        waiting = standby.is_waiting()
        if not waiting:
            self.abort()
            self._leave_devices()
        self.generation = generation
        self.sequence = self.monitored = 0
        try:
            self._bootstrap(self.seconds, in_vain)
        except CollectiveError:
            if waiting:
                # What could not connect is closed; the next try needs one that can.
                self.native.shutdown()
                self._bind()
                self.native.stand_by(self.rank, self.size)
            raise

    def give_up_before(self, generation: int) -> None:
        """A rank was lost, and this generation is what follows: whoever waits at an earlier one need not any more."""
        self.native.supersede(generation)
        if self.generation < generation:
            self.abort()

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


@dataclasses.dataclass(frozen=True, order=True)
class Handle:
    """What a rank is called where the number of a rank says nothing: its process and its group."""

    # The number with which the group was made: ranks whose order nobody gives keep this one.
    rank: int
    token: str
    host: str
    process: int

    @staticmethod
    def new(rank: int) -> Handle:
        """For a group that this process makes."""
        return Handle(rank, secrets.token_hex(8), socket.gethostname(), os.getpid())

    def __str__(self) -> str:
        """What other processes are given."""
        return f"instep:{self.rank}:{self.token}:{self.process}:{self.host}"

    @staticmethod
    def parse_all(handles: Collection[str]) -> list[Handle]:
        """In the order of ranks."""
        found = [Handle._parse(text) for text in handles]
        if len(set(found)) < len(found):
            twice = next(handle for handle in found if found.count(handle) > 1)
            raise InvalidCall(f"{twice} is among the handles twice\nhint: give the handle of each rank once")
        return found if isinstance(handles, Sequence) else sorted(found)

    @staticmethod
    def _parse(text: str) -> Handle:
        match text.split(":", 4):
            case ["instep", rank, token, process, host] if rank.isdecimal() and process.isdecimal():
                return Handle(int(rank), token, host, int(process))
        raise InvalidCall(
            f"{text!r} is no handle of the backend instep\n"
            "hint: give what dist._get_reconfigure_handle() says on each rank"
        )


class _NotConnectedYet:
    """What a group has in place of a connection that was made with `enable_reconfigure=True`."""

    def abort(self) -> None:
        """Nothing is under way."""

    def shutdown(self) -> None:
        """Nobody waits for this rank."""

    def supersede(self, generation: int) -> None:
        """This rank waits for nobody."""

    def failure(self) -> None:
        """It has not failed."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NotConnected(
            "the group has no peers yet: it was made with enable_reconfigure=True\n"
            "hint: call dist._reconfigure on every rank first"
        )


def _not_connected_yet() -> CollectiveGroup:
    return cast("CollectiveGroup", _NotConnectedYet())


def of_this_process() -> list[Link]:
    """The connections of all groups, in the order in which they were made."""
    return sorted((link for link in _open if link._recorded), key=lambda link: link.number)


def members(store: Store, global_ranks: Sequence[int]) -> Store:
    """What groups of other ranks do not see of a group's store; all of it for the default group, which names none."""
    if not global_ranks:
        return store
    digest = hashlib.sha256(" ".join(map(str, global_ranks)).encode()).hexdigest()[:16]
    return PrefixStore(digest, store)


def _channels(variable: str) -> int | None:
    """How many threads the user wants to share the work of a large operation."""
    channels, given = _number(variable), os.environ.get(variable)
    if given and (channels is None or channels > MAX_CHANNELS):
        raise InvalidCall(f"{variable} is {given!r}\nhint: use a number of threads, 1 to {MAX_CHANNELS}")
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


def _encrypts() -> bool:
    """Whether the user wants what goes to other hosts to be encrypted."""
    given = os.environ.get("INSTEP_ENCRYPT", "")
    if given not in ("", "0", "1"):
        raise InvalidCall(f"INSTEP_ENCRYPT is {given!r}\nhint: use 1 to encrypt what ranks send to other hosts, or 0")
    return given == "1"


def exchange(store: Store, prefix: str, rank: int, size: int, value: bytes, seconds: float) -> list[bytes]:
    """Give every rank the values of all, through a store of any kind."""
    keys = [f"{prefix}/{peer}" for peer in range(size)]
    store.set(keys[rank], value)  # type: ignore[arg-type]  # bytes are fine, torch types text only
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except RuntimeError as error:
        if store.check(keys):
            raise
        raise did_not_join(store, keys, rank, seconds) from error
    if store.has_extended_api():  # type: ignore[attr-defined]  # torch does not type it
        return [bytes(found) for found in store.multi_get(keys)]
    return [bytes(store.get(key)) for key in keys]


def did_not_join(store: Store, keys: list[str], rank: int, seconds: float) -> ConnectFailed:
    """Who was missing when a rank had waited for so long: those whose keys are not there."""
    missing = [peer for peer, key in enumerate(keys) if not store.check([key])]
    who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
    return ConnectFailed(
        f"rank {rank} waited {seconds:.3g} s for {who} of {len(keys)} to join the group\n"
        "hint: look at the output of the missing ranks; every rank of a group must create it",
        ranks=missing,
    )


def _wait_unless(in_vain: Callable[[], bool], store: Store, keys: list[str], seconds: float) -> bool:
    """Wait until a store has all these keys, or so long; not with its own `wait`, which nothing interrupts."""
    look, most = _LOOK_S
    deadline = time.monotonic() + seconds
    while not store.check(keys):
        if time.monotonic() > deadline:
            return False
        if in_vain():
            raise ConnectFailed("another rank was lost while the ranks connected again")
        time.sleep(look)
        look = min(look * 1.5, most)
    return True


@atexit.register
def _close_all() -> None:
    for link in list(_open):
        link.close()
    recorder.end()
    stop_callbacks()
