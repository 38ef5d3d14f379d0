"""A rank of `faults.py`: a process that does what the driver tells it, until something goes wrong."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fault_rounds import KINDS, OPERATIONS, PATIENCE_S, STOPPED_S, Answer, Round
from torch_suite import enter


class Rank:
    """One rank: a process that does what the driver tells it."""

    def __init__(self, orders: Connection, port: int, namespace: str) -> None:
        import torch.distributed as dist

        self.orders = orders
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False)
        if namespace:
            # The way to the store stays what it is, whatever happens to the network there.
            enter(namespace)
        dist.init_process_group("instep", store=dist.HashStore(), rank=0, world_size=1)
        self.group: Any = dist.group.WORLD
        self.rank = 0
        self.world = 1

    def serve(self) -> None:
        """Obey until the driver has had enough."""
        while True:
            order, *arguments = self.orders.recv()
            if order == "end":
                return
            try:
                answer = getattr(self, order)(*arguments)
            except Exception as error:
                if order == "suffer" and isinstance(error, Deliberate):
                    raise
                answer = error
            self.orders.send(answer)

    def join(self, rank: int, world: int, generation: int) -> int | None:
        """Become a member of the next generation."""
        from instep.backend import reconfigure

        self.rank, self.world = rank, world
        timeout = timedelta(seconds=PATIENCE_S)
        return reconfigure(self.group, self.store, rank, world, generation, timeout=timeout)

    def work(self) -> None:
        """Do every operation once, on few elements, and compare results."""
        for operation in OPERATIONS:
            self.perform(operation, 10, PATIENCE_S, check=True)

    def suffer(self, case: Round) -> Answer:
        """Take part until something goes wrong; gives what, and when."""
        from instep.errors import CollectiveError

        seconds = STOPPED_S if case.kind == "stop" else PATIENCE_S
        if self.rank == case.victim and case.kind != "cut":
            self.prepare_fault(case)
        elif case.moment == "idle":
            # Nobody calls anything until the driver says so.
            self.orders.recv()
        began = time.monotonic()
        try:
            while time.monotonic() - began < PATIENCE_S:
                self.perform(case.operation, case.elements, seconds, case=case)
        except CollectiveError as error:
            ended = time.monotonic()
            return Answer(self.rank, type(error).__name__, tuple(error.ranks), str(error), began, ended)
        return Answer(self.rank, "nothing", (), "", began, time.monotonic())

    def prepare_fault(self, case: Round) -> None:
        """Be the victim: now, or a little later. The driver learns when."""
        actions: dict[str, Callable[[], object]] = {
            "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "exit": lambda: os._exit(3),
            "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
            "mismatch": lambda: None,
        }

        def happen() -> None:
            self.orders.send(time.monotonic())
            if case.kind == "exception":
                raise Deliberate("a script fails")
            actions[case.kind]()

        if case.moment == "busy":
            threading.Timer(case.after_ms / 1000, happen).start()
        else:
            happen()

    def perform(
        self, operation: str, elements: int, seconds: float, *, case: Round | None = None, check: bool = False
    ) -> None:
        """Do an operation; the victim of a mismatch does another."""
        import torch
        from torch.distributed import AllreduceOptions, BarrierOptions, BroadcastOptions, ReduceOptions

        limit = timedelta(seconds=seconds)
        root = 0
        dtype = torch.float32
        if case is not None and case.kind == "mismatch" and self.rank == case.victim:
            # Another operation, size, type, or root, in turn.
            match case.number // len(KINDS) % 4:
                case 0:
                    operation = "barrier"
                case 1:
                    elements += 1
                case 2:
                    dtype = torch.int32
                case _ if operation in ("reduce", "broadcast", "gather", "scatter"):
                    root = 1
                case _:
                    operation = "broadcast" if operation == "all_reduce" else "all_reduce"

        def one(value: float = 0) -> torch.Tensor:
            return torch.full((elements,), value, dtype=dtype)

        mine, total = one(self.rank + 1), self.world * (self.world + 1) / 2
        every = [one() for _ in range(self.world)]
        expected: list[tuple[torch.Tensor, float]] = []
        group = self.group
        match operation:
            case "all_reduce":
                options = AllreduceOptions()
                options.timeout = limit
                group.allreduce([mine], options).wait()
                expected = [(mine, total)]
            case "reduce":
                options = ReduceOptions()
                options.timeout, options.rootRank = limit, root
                group.reduce([mine], options).wait()
                expected = [(mine, total)] if self.rank == root else []
            case "broadcast":
                options = BroadcastOptions()
                options.timeout, options.rootRank = limit, root
                group.broadcast([mine], options).wait()
                expected = [(mine, root + 1)]
            case "all_gather":
                group.allgather([every], [mine], timeout=limit).wait()
                expected = [(part, rank + 1) for rank, part in enumerate(every)]
            case "gather":
                outputs = [every] if self.rank == root else []
                group.gather(outputs, [mine], root, limit).wait()
                expected = [(part, rank + 1) for rank, part in enumerate(every)] if self.rank == root else []
            case "scatter":
                result = one()
                inputs = [[one(rank + 5) for rank in range(self.world)]] if self.rank == root else []
                group.scatter([result], inputs, root, limit).wait()
                expected = [(result, self.rank + 5)]
            case "reduce_scatter":
                result = one()
                group.reduce_scatter([result], [[mine] * self.world], timeout=limit).wait()
                expected = [(result, total)]
            case "all_to_all":
                from torch.distributed import AllToAllOptions

                options = AllToAllOptions()
                options.timeout = limit
                group.alltoall(every, [mine] * self.world, options).wait()
                expected = [(part, rank + 1) for rank, part in enumerate(every)]
            case "barrier":
                options = BarrierOptions()
                options.timeout = limit
                group.barrier(opts=options).wait()
            case "send":
                # From the victim to all others, or from rank 0 when nothing is wrong.
                source = case.victim if case is not None else 0
                previous = group._link.seconds
                group.set_timeout(limit)
                if self.rank == source:
                    sends = [group.send([mine], rank, 7) for rank in range(self.world) if rank != source]
                    for send in sends:
                        send.wait()
                else:
                    result = one()
                    group.recv([result], source, 7).wait()
                    expected = [(result, source + 1)]
                group.set_timeout(timedelta(seconds=previous))
            case other:
                raise AssertionError(f"unknown operation {other}")
        if check:
            for tensor, value in expected:
                if not bool((tensor == value).all()):
                    raise AssertionError(f"{operation}: {tensor[:3].tolist()}… is not {value}")

    def held(self) -> dict[str, int]:
        """What this process holds of the system."""
        status = Path("/proc/self/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in status)
        return {
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "threads": int(fields["Threads"]),
            "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
            "resident_kib": int(fields["VmRSS"].split()[0]),
        }


class Deliberate(Exception):
    """What the victim of an `exception` raises."""


def rank_main(orders: Connection, port: int, namespace: str) -> None:
    """Entry of a rank's process."""
    # A traceback of the deliberate exception helps nobody.
    sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    import torch

    torch.set_num_threads(1)
    Rank(orders, port, namespace).serve()
