"""Draws faults at random, lets real ranks suffer them through torch, and rebuilds the group in the survivors each time.

    .venv/bin/python tests/backend/faults.py [--count 40] [--seed 1] [--json FILE]

One round: 2 to 4 ranks do a few operations and compare results; then a victim is killed, exits, raises, is stopped, or
calls something else than its peers, at the beginning of an operation or in the middle of one; every other rank must get
an error that names the victim, long before a wait would have ended by itself. Then the group is rebuilt in the
processes that live, under new rank numbers, with new processes in place of the dead. One process, the elder, lives
through all rounds: what it holds at the end shows leaks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

OPERATIONS = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "send",
)
KINDS = ("kill", "exit", "exception", "stop", "mismatch")
# Elements of a part: one exchange of flags, several steps through shared memory, read out of the peers' memory.
SIZES = (100, 1_000_000, 9_000_000)
# What a wait would take by itself, and what ranks get to notice that a peer is gone. CI machines are slow.
PATIENCE_S = 60.0
IN_TIME_S = 15.0
STOPPED_S = 1.0
GENTLE_ROUNDS = 5


@dataclass(frozen=True)
class Round:
    """What happens in one round."""

    number: int
    kind: str
    operation: str
    # Where in the operation: at its beginning, or so many milliseconds after a stream of them has begun.
    after_ms: float | None
    elements: int
    victim: int
    world: int


def draw(number: int, seed: int) -> Round:
    """Draw the round with this number; the same seed gives the same rounds."""
    dice = random.Random(f"{seed}/{number}")
    # Every kind and operation comes up as often as any other.
    kind = KINDS[number % len(KINDS)]
    operation = dice.choice([name for name in OPERATIONS if kind != "mismatch" or name not in ("barrier", "send")])
    return Round(
        number=number,
        kind=kind,
        operation=operation,
        after_ms=dice.uniform(0, 8) if kind in ("kill", "exit") and dice.random() < 0.5 else None,
        elements=dice.choices(SIZES, weights=(6, 3, 1))[0],
        victim=-1,
        world=dice.randint(2, 4),
    )


# In the ranks.


class Rank:
    """One rank: a process that does what the driver tells it."""

    def __init__(self, orders: Connection, port: int) -> None:
        import torch.distributed as dist

        self.orders = orders
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False)
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

    def suffer(self, case: Round) -> tuple[str, list[int], str, float]:
        """Take part until something goes wrong; gives what, and how long that took."""
        from instep.errors import CollectiveError

        seconds = STOPPED_S if case.kind == "stop" else PATIENCE_S
        if self.rank == case.victim:
            self.prepare_fault(case)
        started = time.monotonic()
        try:
            while time.monotonic() - started < PATIENCE_S:
                self.perform(case.operation, case.elements, seconds, case=case)
        except CollectiveError as error:
            took = time.monotonic() - started
            return type(error).__name__, list(error.ranks), str(error), took
        return "nothing", [], "", time.monotonic() - started

    def prepare_fault(self, case: Round) -> None:
        """Be the victim: now, or a little later."""
        actions: dict[str, Callable[[], object]] = {
            "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "exit": lambda: os._exit(3),
            "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        }
        if case.kind == "exception":
            raise Deliberate("a script fails")
        if case.after_ms is not None:
            threading.Timer(case.after_ms / 1000, actions[case.kind]).start()
        elif case.kind in actions:
            actions[case.kind]()

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


def rank_main(orders: Connection, port: int) -> None:
    """Entry of a rank's process."""
    # A traceback of the deliberate exception helps nobody.
    sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    import torch

    torch.set_num_threads(1)
    Rank(orders, port).serve()


# In the driver.


class Member:
    """A rank as the driver sees it."""

    def __init__(self, port: int) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch", "instep.backend"])
        self.pipe, theirs = context.Pipe()
        self.process: ForkServerProcess = context.Process(target=rank_main, args=(theirs, port), daemon=True)
        self.process.start()
        theirs.close()

    def order(self, *order: object) -> None:
        """Tell it what to do."""
        self.pipe.send(order)

    def answer(self, seconds: float) -> Any:  # noqa: ANN401  # whatever was asked for
        """What it answers; an exception of its own is raised here."""
        if not self.pipe.poll(seconds):
            raise AssertionError(f"process {self.process.pid} has not answered for {seconds} s")
        answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def together(members: list[Member], *order: object) -> list[Any]:
    """Give the same order to all and collect the answers."""
    for member in members:
        member.order(*order)
    return [member.answer(2 * PATIENCE_S) for member in members]


class Driver:
    """Leads the ranks through the rounds."""

    def __init__(self, seed: int) -> None:
        from torch.distributed import TCPStore

        self.seed = seed
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.elder = Member(self.store.port)
        self.members = [self.elder]
        self.generation = 0
        self.noticed: list[float] = []

    def gather(self, world: int, dice: random.Random) -> None:
        """Bring so many ranks together in the next generation: survivors first, in any order."""
        others = self.members[1:]
        dice.shuffle(others)
        for superfluous in others[world - 1 :]:
            superfluous.order("end")
            superfluous.process.join(PATIENCE_S)
        others = others[: world - 1] + [Member(self.store.port) for _ in range(world - 1 - len(others))]
        self.members = [self.elder, *others]
        self.generation += 1
        ranked = list(self.members)
        dice.shuffle(ranked)
        self.members = [self.elder, *[member for member in ranked if member is not self.elder]]
        for rank, member in enumerate(ranked):
            member.order("join", rank, world, self.generation)
        for member in ranked:
            member.answer(2 * PATIENCE_S)
        self.ranked = ranked
        together(ranked, "work")

    def play(self, number: int) -> dict[str, Any]:
        """Play one round; gives what was seen."""
        case = draw(number, self.seed)
        dice = random.Random(f"{self.seed}/{number}/ranks")
        self.gather(case.world, dice)
        mortal = case.kind in ("kill", "exit", "exception")
        victims = [rank for rank, member in enumerate(self.ranked) if not mortal or member is not self.elder]
        case = Round(**{**asdict(case), "victim": dice.choice(victims)})
        victim = self.ranked[case.victim]
        for member in self.ranked:
            member.order("suffer", case)
        witnesses = [member for member in self.ranked if member is not victim]
        seen = [member.answer(2 * PATIENCE_S) for member in witnesses]
        if case.kind == "stop":
            os.kill(victim.process.pid or 0, signal.SIGCONT)
        if mortal:
            victim.process.join(PATIENCE_S)
            self.members.remove(victim)
        else:
            seen.append(victim.answer(2 * PATIENCE_S))
        complaints = [text for answer in seen for text in wrong(case, *answer)]
        if mortal:
            self.noticed += [answer[3] for answer in seen if case.after_ms is None]
        return {**asdict(case), "seen": seen, "complaints": complaints}


def wrong(case: Round, kind: str, ranks: list[int], message: str, took: float) -> list[str]:
    """What is wrong with the error a rank got."""
    expected = {"stop": "CollectiveTimeout", "mismatch": "Mismatch"}.get(case.kind, "PeerLost")
    complaints = []
    if kind != expected:
        complaints.append(f"{kind} instead of {expected}: {message}")
    elif case.victim not in ranks:
        complaints.append(f"rank {case.victim} is not named: {message}")
    if took > IN_TIME_S:
        complaints.append(f"raised only after {took:.1f} s")
    return complaints


def shared_files() -> set[str]:
    """What lies where programs leave shared memory and sockets behind."""
    return {str(path) for folder in ("/dev/shm", tempfile.gettempdir()) for path in Path(folder).glob("*instep*")}


def main() -> int:
    """Play the rounds and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="rounds to play")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="play only the round with this number")
    parser.add_argument("--json", type=Path, help="write what was seen to this file")
    arguments = parser.parse_args()
    before = shared_files()
    driver = Driver(arguments.seed)
    rounds, baseline = [], {}
    numbers = range(arguments.count) if arguments.only is None else [arguments.only]
    for number in numbers:
        played = driver.play(number)
        rounds.append(played)
        verdict = "; ".join(played["complaints"]) or "ok"
        where = "at its beginning" if played["after_ms"] is None else f"after {played['after_ms']:.1f} ms"
        print(
            f"{number:4} {played['kind']:9} rank {played['victim']} of {played['world']}  {played['operation']:14} "
            f"{played['elements']:9,} elements  {where:16}  {verdict}",
            flush=True,
        )
        if number == GENTLE_ROUNDS - 1:
            driver.gather(2, random.Random(0))
            baseline = together([driver.elder], "held")[0]
    complaints = [f"round {played['number']}: {text}" for played in rounds for text in played["complaints"]]
    if baseline:
        driver.gather(2, random.Random(0))
        held = together([driver.elder], "held")[0]
        print(f"held by the process that lived through it: {baseline} after {GENTLE_ROUNDS} rounds, {held} at the end")
        for name, allowed in (("descriptors", 2), ("threads", 1), ("mappings", 40), ("resident_kib", 150_000)):
            if held[name] > baseline[name] + allowed:
                complaints.append(f"{name} grew from {baseline[name]} to {held[name]}")
    for member in driver.members:
        member.order("end")
    for member in driver.members:
        member.process.join(PATIENCE_S)
    if left := shared_files() - before:
        complaints.append(f"left behind: {sorted(left)}")
    if driver.noticed:
        milliseconds = sorted(1000 * took for took in driver.noticed)
        median, worst = statistics.median(milliseconds), milliseconds[-1]
        print(f"a dead peer was noticed within {median:.0f} ms in the median, {worst:.0f} ms at worst")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rounds": rounds, "complaints": complaints}))
    print("\n".join(complaints) or f"{len(rounds)} faults, every survivor told the truth and went on")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
