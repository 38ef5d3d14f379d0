"""Ranks that exchange small values: who is there, and gather, allgather and broadcast between them.

The values go through a key-value store: torch's own if `torch.distributed` is set up, else that of the launcher, else
one that rank 0 serves. They travel as JSON. For tensors there is `torch.distributed`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from instep.core._encoding import decode, encode
from instep.core._information import get_cluster_info

if TYPE_CHECKING:
    from instep.store import Client, Server

# Determined's variable and port for the same purpose, so that what avoids a collision there does so here.
PORT_VARIABLE = "INTER_TRAIN_PROCESS_COMM_PORT_1"
DEFAULT_PORT = 12360
# Ranks may be apart by a long step, or by one that writes a large checkpoint.
DEFAULT_TIMEOUT_S = 1800.0
# After so many gathers and broadcasts, which need not wait for each other, the ranks meet and delete what they wrote.
EXCHANGES_KEPT = 256
# How long rank 0 serves after its own last exchange, for ranks that still have to read it.
SHUTDOWN_GRACE_S = 5.0


class _Store(Protocol):
    """What a store must do; `get` waits."""

    def set(self, key: str, value: bytes) -> None: ...
    def get(self, key: str) -> bytes: ...
    def delete(self, key: str) -> None: ...
    def close(self) -> None: ...


class _TorchStore:
    """The store that torch's process group met through."""

    # How many contexts were made in this process: all ranks make them in the same order, each has keys of its own.
    made = 0

    def __init__(self, timeout: float) -> None:
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        _TorchStore.made += 1
        self._store = PrefixStore(f"instep.core/{_TorchStore.made}", _get_default_store())
        self._timeout = timedelta(seconds=timeout)

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value.decode())

    def get(self, key: str) -> bytes:
        try:
            self._store.wait([key], self._timeout)
        except RuntimeError as error:  # torch's DistStoreError, which older versions do not have
            raise TimeoutError(str(error)) from error
        return bytes(self._store.get(key))

    def delete(self, key: str) -> None:
        self._store.delete_key(key)

    def close(self) -> None:
        """Leave it to torch, whose it is."""


class _OwnStore:
    """A store that rank 0 serves for as long as its context lives."""

    def __init__(self, rank: int, size: int, host: str, port: int, loopback: bool, timeout: float) -> None:
        from instep.store import Client, Server

        self._rank, self._size = rank, size
        self._server: Server | None = None
        if rank == 0:
            try:
                self._server = Server(port, loopback=loopback)
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"rank 0 cannot serve the other ranks on port {port}: {error.strerror}\n"
                    f"hint: set {PORT_VARIABLE} to a free port for all ranks of this job",
                ) from error
        self._client: Client = Client("127.0.0.1" if rank == 0 else host, port, timeout=timeout)

    def set(self, key: str, value: bytes) -> None:
        self._client.set(key, value)

    def get(self, key: str) -> bytes:
        return self._client.get(key)

    def delete(self, key: str) -> None:
        self._client.delete(key)

    def close(self) -> None:
        """Disconnect; rank 0 serves until all ranks have, or for a few seconds."""
        try:
            gone = self._client.add("instep.core/gone", 1)
            deadline = time.monotonic() + SHUTDOWN_GRACE_S
            while self._server is not None and gone < self._size and time.monotonic() < deadline:
                time.sleep(0.01)
                gone = self._client.add("instep.core/gone", 0)
        except (ConnectionError, TimeoutError):
            pass  # rank 0 is gone, and its store with it
        self._client.close()
        if self._server is not None:
            self._server.shutdown()


class _LauncherStore(_OwnStore):
    """The store that the launcher serves for its ranks; keys of this attempt of the job, and of this context."""

    # See `_TorchStore.made`.
    made = 0

    def __init__(self, host: str, port: int, timeout: float) -> None:
        from instep.store import Client

        _LauncherStore.made += 1
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0"
        self._prefix = f"instep.core/ranks/{attempt}/{_LauncherStore.made}/"
        self._client = Client(host, port, timeout=timeout)

    def set(self, key: str, value: bytes) -> None:
        self._client.set(self._prefix + key, value)

    def get(self, key: str) -> bytes:
        return self._client.get(self._prefix + key)

    def delete(self, key: str) -> None:
        self._client.delete(self._prefix + key)

    def close(self) -> None:
        """Leave; the launcher serves on."""
        self._client.close()


def _launcher_store(rank: int, size: int, timeout: float) -> _LauncherStore | None:
    """Find the store of the launcher that started this job, if these are its ranks."""
    environment = os.environ
    ours = environment.get("RANK") == str(rank) and environment.get("WORLD_SIZE") == str(size)
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT") or ""
    if not ours or environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or not host or not port.isdigit():
        return None
    return _LauncherStore(host, int(port), timeout)


class _Channel:
    """Exchanges between some ranks, numbered; the first of them collects and hands out."""

    def __init__(self, store: _Store | None, name: str, place: int, ranks: list[int]) -> None:
        self._store, self._name, self._place, self._ranks = store, name, place, ranks
        self._sequence = 0
        self._meet_at = EXCHANGES_KEPT
        self._written: list[str] = []

    def allgather(self, value: object) -> list[Any]:
        """Give everybody everybody's value, in the order of ranks."""
        result = self._hand_out(self._collect(value))
        # Whoever handed this out had read what all wrote before: nobody needs it any more.
        for key in self._written[:-1]:
            if self._store is not None:
                self._store.delete(key)
        del self._written[:-1]
        self._meet_at = self._sequence + EXCHANGES_KEPT
        assert isinstance(result, list)
        return result

    def gather(self, value: object) -> list[Any] | None:
        """Give the first rank everybody's value, the others None."""
        self._meet_if_due()
        return self._collect(value)

    def broadcast(self, value: object) -> Any:  # noqa: ANN401
        """Give everybody the first rank's value."""
        self._meet_if_due()
        return self._hand_out(value)

    def _meet_if_due(self) -> None:
        """Meet now and then: only then is it known that what was written has been read and can go."""
        if self._store is not None and self._sequence >= self._meet_at:
            self.allgather(None)

    def _collect(self, value: object) -> list[Any] | None:
        if self._store is None:
            return [value]
        self._sequence += 1
        if self._place != 0:
            self._write(self._place, value)
            return None
        return [value, *(self._read(place) for place in range(1, len(self._ranks)))]

    def _hand_out(self, value: object) -> Any:  # noqa: ANN401
        if self._store is None:
            return value
        self._sequence += 1
        if self._place == 0:
            self._write(0, value)
            return value
        return self._read(0)

    def _write(self, place: int, value: object) -> None:
        assert self._store is not None
        key = f"{self._name}/{self._sequence}/{place}"
        self._store.set(key, encode(value))
        self._written.append(key)

    def _read(self, place: int) -> Any:  # noqa: ANN401
        assert self._store is not None
        try:
            return decode(self._store.get(f"{self._name}/{self._sequence}/{place}"))
        except TimeoutError as error:
            raise TimeoutError(
                f"rank {self._ranks[place]} did not take part in an exchange of {len(self._ranks)} ranks in time\n"
                "hint: every rank must make the same calls in the same order; check the output of that rank"
            ) from error
        except ConnectionError as error:
            raise ConnectionError(f"rank {self._ranks[0]} is gone, which ends the exchange between ranks") from error


class DistributedContext:
    """The ranks of a job, and small exchanges between them.

    `rank` counts all processes of the job, `local_rank` those of a machine, `cross_rank` the machines; the sizes say
    how many there are. With several machines `chief_ip` is where rank 0 is.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        local_rank: int,
        local_size: int,
        cross_rank: int,
        cross_size: int,
        chief_ip: str | None = None,
        port: int | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        for name, value, limit in (
            ("rank", rank, size),
            ("local_rank", local_rank, local_size),
            ("cross_rank", cross_rank, cross_size),
        ):
            if not 0 <= value < limit:
                raise ValueError(f"{name} is {value}, of {limit}")
        chief_ip = chief_ip or _chief_ip()
        if cross_size > 1 and chief_ip is None:
            raise ValueError("with several machines, chief_ip must be the address of rank 0")
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self.cross_rank, self.cross_size = cross_rank, cross_size

        def open_store() -> _Store:
            chosen = port if port is not None else os.environ.get(PORT_VARIABLE)
            if not chosen:
                launcher = _launcher_store(rank, size, timeout)
                if launcher is not None:
                    return launcher
            number = int(chosen or DEFAULT_PORT)
            host = chief_ip if cross_size > 1 and chief_ip is not None else "127.0.0.1"
            return _OwnStore(rank, size, host, number, cross_size == 1, timeout)

        self._connect(open_store)

    def _connect(self, open_store: Callable[[], _Store]) -> None:
        self._store = open_store() if self.size > 1 else None
        self._all = _Channel(self._store, "all", self.rank, list(range(self.size)))
        self._local = _Channel(None, "local", 0, [self.rank])
        if self.local_size > 1:
            places = self._all.allgather((self.cross_rank, self.local_rank))
            here = sorted((local, rank) for rank, (cross, local) in enumerate(places) if cross == self.cross_rank)
            if [local for local, _ in here] != list(range(self.local_size)):
                raise ValueError(f"machine {self.cross_rank} has local ranks {here}, not 0 to {self.local_size - 1}")
            ranks = [rank for _, rank in here]
            self._local = _Channel(self._store, f"local{self.cross_rank}", self.local_rank, ranks)
        elif self.size > 1:
            self._all.allgather((self.cross_rank, self.local_rank))

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Take the ranks from the environment that `instep run` and torchrun set.

        If `torch.distributed` is set up, its store is used and nothing else is needed; else `chief_ip`, or
        DET_CHIEF_IP, must say where rank 0 is when there are several machines.
        """
        ranks = _ranks("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
        if "torch" in sys.modules:
            import torch.distributed as dist

            if dist.is_available() and dist.is_initialized():
                context = cls.__new__(cls)
                for name, value in ranks.items():
                    setattr(context, name, value)
                context._connect(lambda: _TorchStore(DEFAULT_TIMEOUT_S))
                return context
        return cls(**ranks, chief_ip=chief_ip)

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Take the ranks from the environment that DeepSpeed's launcher sets."""
        ranks = _ranks("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        return cls(**ranks, chief_ip=chief_ip)

    @classmethod
    def from_horovod(cls, hvd: Any, chief_ip: str | None = None) -> DistributedContext:  # noqa: ANN401
        """Take the ranks from a module of Horovod that is set up."""
        return cls(
            rank=hvd.rank(),
            size=hvd.size(),
            local_rank=hvd.local_rank(),
            local_size=hvd.local_size(),
            cross_rank=hvd.cross_rank(),
            cross_size=hvd.cross_size(),
            chief_ip=chief_ip,
        )

    @classmethod
    def alone(cls) -> DistributedContext:
        """A job of one process."""
        return cls(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)

    def close(self) -> None:
        """End the exchange; the ranks should close at about the same time."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def get_rank(self) -> int:
        """Which of all processes this is."""
        return self.rank

    def get_size(self) -> int:
        """How many processes there are."""
        return self.size

    def get_local_rank(self) -> int:
        """Which of this machine's processes this is."""
        return self.local_rank

    def get_num_agents(self) -> int:
        """How many machines there are."""
        return self.cross_size

    def allgather(self, stuff: object) -> list[Any]:
        """Give every rank the values of all, in the order of ranks."""
        return self._all.allgather(stuff)

    def allgather_local(self, stuff: object) -> list[Any]:
        """Give every rank of this machine the values of its ranks."""
        return self._local.allgather(stuff)

    def gather(self, stuff: object) -> list[Any] | None:
        """Give rank 0 the values of all ranks; the others get None."""
        return self._all.gather(stuff)

    def gather_local(self, stuff: object) -> list[Any] | None:
        """Give the first rank of this machine the values of its ranks; the others get None."""
        return self._local.gather(stuff)

    def broadcast(self, stuff: object) -> Any:  # noqa: ANN401
        """Give every rank the value of rank 0."""
        return self._all.broadcast(stuff)

    def broadcast_local(self, stuff: object = None) -> Any:  # noqa: ANN401
        """Give every rank of this machine the value of its first."""
        return self._local.broadcast(stuff)


def _chief_ip() -> str | None:
    """Where the environment says that rank 0 is: a launcher's word, or the first machine of a cluster's task."""
    told = os.environ.get("DET_CHIEF_IP")
    if told:
        return told
    info = get_cluster_info()
    return info.container_addrs[0] if info is not None and info._rendezvous_info is not None else None


def _ranks(rank: str, size: str, local_rank: str, local_size: str, cross_rank: str, cross_size: str) -> dict[str, int]:
    """Read the ranks from the environment, saying which variable is missing or wrong."""
    variables = {
        "rank": rank,
        "size": size,
        "local_rank": local_rank,
        "local_size": local_size,
        "cross_rank": cross_rank,
        "cross_size": cross_size,
    }
    found = {}
    for name, variable in variables.items():
        value = os.environ.get(variable)
        if value is None or not value.isdigit():
            raise RuntimeError(
                f"{variable} is {'not set' if value is None else repr(value)}, so the ranks of this job are unknown\n"
                "hint: start the script with `instep run`, torchrun or DeepSpeed's launcher"
            )
        found[name] = int(value)
    return found
