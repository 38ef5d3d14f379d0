"""Draws faults at random, lets real ranks suffer them through torch, and rebuilds the group in the survivors each time.

    .venv/bin/python tests/backend/faults.py [--hosts] [--count 40] [--seed 1] [--only ROUND] [--json FILE]

One round: a few ranks do every operation and compare results; then a victim is killed, exits, raises, is stopped, or
calls something else than its peers: at the beginning of an operation, amid a stream of them, or while nobody calls
anything. Every other rank must get an error that names the victim, long before a wait would have ended by itself. Then
the group is rebuilt in the processes that live, under new rank numbers, with new processes in place of the dead. One
process, the elder, lives through all rounds: what it holds at the end shows leaks.

The ranks share a host, 2 to 4 of them. With `--hosts` they are on 2 to 4 hosts with 1 or 2 each, which are network
namespaces (it needs root), and hosts are cut off as well: then those on both sides must say whom they have lost.
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
import time
from dataclasses import asdict, replace
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fault_ranks import rank_main
from fault_rounds import HOSTS, IDLE_S, PATIENCE_S, Answer, Round, draw, lateness, mistakes

if TYPE_CHECKING:
    from e2e.namespaces import Network

# What the engine promises, and what a machine with other things to do gets.
PROMISED_S = 1.0
IN_TIME_S = 15.0
GENTLE_ROUNDS = 6
# What a process may hold more of in the end than after the first rounds.
ALLOWED = {"descriptors": 2, "threads": 1, "mappings": 40, "resident_kib": 150_000}


class Member:
    """A rank as the driver sees it."""

    def __init__(self, port: int, host: int, namespace: str) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch", "instep.backend"])
        self.host = host
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, port, namespace)
        self.process: ForkServerProcess = context.Process(target=rank_main, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def order(self, *order: object) -> None:
        """Tell it what to do."""
        self.pipe.send(order)

    def answer(self, seconds: float = 2 * PATIENCE_S) -> Any:  # noqa: ANN401  # whatever was asked for
        """What it answers; an exception of its own is raised here."""
        if not self.pipe.poll(seconds):
            raise AssertionError(f"process {self.process.pid} has not answered for {seconds} s")
        answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        """Let it go."""
        self.order("end")
        self.process.join(PATIENCE_S)


def together(members: list[Member], *order: object) -> list[Any]:
    """Give the same order to all and collect the answers."""
    for member in members:
        member.order(*order)
    return [member.answer() for member in members]


class Driver:
    """Leads the ranks through the rounds."""

    def __init__(self, seed: int, network: Network | None) -> None:
        from torch.distributed import TCPStore

        self.seed = seed
        self.network = network
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.elder = self.start(0)
        # In the order of their ranks.
        self.ranked = [self.elder]
        self.generation = 0
        # How late ranks were told, by the kind of fault.
        self.late: dict[str, list[float]] = {}

    def start(self, host: int) -> Member:
        """Start a process on a host."""
        return Member(self.store.port, host, self.network.nodes[host].namespace if self.network else "")

    def gather(self, layout: tuple[int, ...], number: int) -> None:
        """Bring so many ranks of each host together in the next generation: those who live first, in any order."""
        dice = random.Random(f"{self.seed}/{number}/members")
        gathered = [self.elder]
        for host in range(HOSTS):
            wanted = (layout[host] if host < len(layout) else 0) - (host == self.elder.host)
            there = [member for member in self.ranked if member.host == host and member is not self.elder]
            dice.shuffle(there)
            for superfluous in there[wanted:]:
                superfluous.end()
            gathered += there[:wanted] + [self.start(host) for _ in range(wanted - len(there))]
        # Other dice: how often those were thrown depends on who lives.
        random.Random(f"{self.seed}/{number}/ranks").shuffle(gathered)
        self.ranked = gathered
        self.generation += 1
        for rank, member in enumerate(gathered):
            member.order("join", rank, len(gathered), self.generation)
        for member in gathered:
            member.answer()
        together(gathered, "work")

    def play(self, number: int) -> tuple[Round, list[Answer], list[str]]:
        """Play one round; gives what it was, what was seen, and what was wrong with that."""
        case = draw(number, self.seed, between_hosts=self.network is not None)
        self.gather(case.layout, number)
        victims = [rank for rank, member in enumerate(self.ranked) if not case.mortal or member is not self.elder]
        hosts = tuple(member.host for member in self.ranked)
        case = replace(case, victim=random.Random(f"{self.seed}/{number}/victim").choice(victims), hosts=hosts)
        victim = self.ranked[case.victim]
        witnesses = [member for member in self.ranked if case.kind == "cut" or member is not victim]
        for member in self.ranked:
            member.order("suffer", case)
        if case.kind == "cut":
            time.sleep(case.after_ms / 1000)
            fault_at = time.monotonic()
            self.cut(victim.host, case.manner)
        else:
            fault_at = victim.answer()
        if case.moment == "idle":
            time.sleep(max(fault_at + IDLE_S - time.monotonic(), 0))
            for member in witnesses:
                member.order("go")
        seen: list[Answer] = [member.answer() for member in witnesses]
        found = []
        for answer in seen:
            late_s = lateness(case, answer, fault_at)
            self.late.setdefault(case.kind, []).append(late_s)
            found += mistakes(case, answer, late_s, IN_TIME_S)
        if case.kind == "cut":
            self.mend(victim.host, case.manner)
        elif case.mortal:
            victim.process.join(PATIENCE_S)
            self.ranked.remove(victim)
        else:
            os.kill(victim.process.pid or 0, signal.SIGCONT)
            seen.append(victim.answer())
            found += mistakes(case, seen[-1], 0, IN_TIME_S)
        return case, seen, found

    def cut(self, host: int, manner: str) -> None:
        """Cut a host off."""
        assert self.network is not None
        node = self.network.nodes[host]
        match manner:
            case "unplugged":
                self.network.cut_link(node)
            case "interface down":
                self.network.take_down(node)
            case _:
                self.network.take_port_down(node)

    def mend(self, host: int, manner: str) -> None:
        """Connect it again."""
        assert self.network is not None
        node = self.network.nodes[host]
        match manner:
            case "unplugged":
                self.network.mend_link(node)
            case "interface down":
                self.network.bring_up(node)
            case _:
                self.network.bring_port_up(node)

    def held(self) -> dict[str, int]:
        """What the elder holds of the system, in a group of the same shape every time."""
        self.gather((2, 2) if self.network else (2,), -1)
        found: dict[str, int] = together([self.elder], "held")[0]
        return found


def shared_files() -> set[str]:
    """What lies where programs leave shared memory and sockets behind."""
    return {str(path) for folder in ("/dev/shm", tempfile.gettempdir()) for path in Path(folder).glob("*instep*")}


def play(arguments: argparse.Namespace, network: Network | None) -> int:
    """Play the rounds and report."""
    before = shared_files()
    driver = Driver(arguments.seed, network)
    rounds, complaints, baseline = [], [], {}
    print(f"seed {arguments.seed}", flush=True)
    numbers = range(arguments.count) if arguments.only is None else [arguments.only]
    for number in numbers:
        case, seen, found = driver.play(number)
        rounds.append({**asdict(case), "seen": [asdict(answer) for answer in seen], "complaints": found})
        complaints += [f"round {number}: {text}" for text in found]
        print(f"{case.describe()}  {'; '.join(found) or 'ok'}", flush=True)
        if number == GENTLE_ROUNDS - 1:
            baseline = driver.held()
    if baseline:
        held = driver.held()
        print(f"held by the process that lived through it: {baseline} after {GENTLE_ROUNDS} rounds, {held} at the end")
        for name, allowed in ALLOWED.items():
            if held[name] > baseline[name] + allowed:
                complaints.append(f"{name} grew from {baseline[name]} to {held[name]}")
    for member in driver.ranked:
        member.end()
    if left := shared_files() - before:
        complaints.append(f"left behind: {sorted(left)}")
    for kind, late in driver.late.items():
        over = sum(seconds > PROMISED_S for seconds in late)
        print(
            f"{kind:9}: {len(late)} ranks were told, after {1000 * statistics.median(late):.0f} ms in the median, "
            f"{1000 * max(late):.0f} ms at worst, {over} later than {PROMISED_S:.0f} s"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rounds": rounds, "complaints": complaints}))
    print("\n".join(complaints) or f"{len(rounds)} faults, every survivor told the truth and went on")
    return 1 if complaints else 0


def main() -> int:
    """Make the hosts if there are to be some, and play."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", action="store_true", help="on several hosts")
    parser.add_argument("--count", type=int, default=40, help="rounds to play")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", "1")), help="draws the same rounds")
    parser.add_argument("--only", type=int, help="play only the round with this number")
    parser.add_argument("--json", type=Path, help="write what was seen to this file")
    arguments = parser.parse_args()
    if not arguments.hosts:
        return play(arguments, None)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from e2e.namespaces import Network

    network = Network(nodes=HOSTS)
    try:
        network.create()
        return play(arguments, network)
    finally:
        network.remove()


if __name__ == "__main__":
    sys.exit(main())
