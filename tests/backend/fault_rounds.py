"""The rounds of `faults.py`: what is drawn for each of them, and what ranks must have been told in the end."""

from __future__ import annotations

import random
from dataclasses import dataclass

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
MORTAL = ("kill", "exit", "exception")
KINDS = (*MORTAL, "stop", "mismatch")
# Between hosts the network can fail too.
KINDS_BETWEEN_HOSTS = (*KINDS, "cut")
# How a host is cut off: its cable is pulled out of the switch, its interface is taken down, or the switch's port.
MANNERS = ("unplugged", "interface down", "port down")
MOMENTS = {
    "kill": ("beginning", "busy", "idle"),
    "exit": ("beginning", "busy", "idle"),
    "exception": ("beginning", "idle"),
    "stop": ("beginning", "busy", "idle"),
    "mismatch": ("beginning",),
    "cut": ("busy", "idle"),
}
# Elements of a part. In a host: one exchange of flags, several steps through shared memory, read out of the peers'
# memory. Between hosts: one message, a few, many in every direction at once.
SIZES = (100, 1_000_000, 9_000_000)
SIZES_BETWEEN_HOSTS = (100, 20_000, 500_000)
HOSTS = 4
# What a wait would take by itself, and what ranks get to notice that a peer is gone. CI machines are slow.
PATIENCE_S = 60.0
STOPPED_S = 1.0
# While nobody calls anything: long enough for silence to be noticed.
IDLE_S = 1.2


@dataclass(frozen=True)
class Round:
    """What happens in one round."""

    number: int
    kind: str
    operation: str
    # When: at the beginning of an operation, while one follows the other, or while nobody calls anything.
    moment: str
    # How long after a stream of operations has begun.
    after_ms: float
    elements: int
    # Ranks on each host.
    layout: tuple[int, ...]
    manner: str = ""
    victim: int = -1
    # Which host every rank is on.
    hosts: tuple[int, ...] = ()

    @property
    def world(self) -> int:
        """All ranks."""
        return sum(self.layout)

    @property
    def mortal(self) -> bool:
        """The victim does not live through it."""
        return self.kind in MORTAL

    def describe(self) -> str:
        """One line for people."""
        when = f"after {self.after_ms:.1f} ms" if self.moment == "busy" else self.moment
        where = "+".join(map(str, self.layout))
        what = f"{self.operation:14} {self.elements:9,} elements"
        return f"{self.number:4} {self.manner or self.kind:14} rank {self.victim} of {where:8}{what}  {when:14}"


def draw(number: int, seed: int, *, between_hosts: bool) -> Round:
    """Draw the round with this number; the same seed gives the same rounds."""
    dice = random.Random(f"{seed}/{number}")
    # Every kind comes up as often as any other.
    kinds = KINDS_BETWEEN_HOSTS if between_hosts else KINDS
    kind = kinds[number % len(kinds)]
    moment = dice.choice(MOMENTS[kind])
    sizes = SIZES_BETWEEN_HOSTS if between_hosts else SIZES
    if kind == "stop" and moment == "busy":
        # What is short enough never to take as long as a stopped rank may.
        sizes = sizes[:1]
    return Round(
        number=number,
        kind=kind,
        operation=dice.choice([name for name in OPERATIONS if kind != "mismatch" or name not in ("barrier", "send")]),
        moment=moment,
        after_ms=dice.uniform(0, 60 if between_hosts else 8),
        elements=dice.choices(sizes, weights=(6, 3, 1)[: len(sizes)])[0],
        layout=tuple(dice.randint(1, 2) for _ in range(dice.randint(2, HOSTS)))
        if between_hosts
        else (dice.randint(2, 4),),
        manner=dice.choice(MANNERS) if kind == "cut" else "",
    )


@dataclass(frozen=True)
class Answer:
    """What a rank was told, and when; times are by the machine's clock, which all processes share."""

    rank: int
    error: str
    ranks: tuple[int, ...]
    message: str
    began: float
    ended: float


def lateness(case: Round, answer: Answer, fault_at: float) -> float:
    """How long a rank waited for its error since there was something to notice, beyond what it had to wait."""
    waited = answer.ended - max(fault_at, answer.began)
    return waited - STOPPED_S if case.kind == "stop" else waited


def mistakes(case: Round, answer: Answer, late_s: float, most_s: float) -> list[str]:
    """What is wrong with the error a rank got."""
    expected = {"stop": "CollectiveTimeout", "mismatch": "Mismatch"}.get(case.kind, "PeerLost")
    if answer.error != expected:
        return [f"rank {answer.rank} got {answer.error} instead of {expected}: {answer.message}"]
    found = []
    if case.kind == "cut":
        cut_off = case.hosts[case.victim]
        # A rank that was cut off itself has lost all other hosts, any other one that host.
        at_fault = [
            rank for rank, host in enumerate(case.hosts) if (host != cut_off) == (case.hosts[answer.rank] == cut_off)
        ]
    else:
        at_fault = [case.victim]
    # Of an operation that all had begun nobody can say who is late with the rest, and whoever is past it knows only
    # that others are not.
    begun = case.kind == "stop" and case.moment == "busy"
    if not begun and not set(at_fault) & set(answer.ranks):
        found.append(f"rank {answer.rank}: none of {at_fault} is named: {answer.message}")
    if late_s > most_s:
        found.append(f"rank {answer.rank} was told {late_s:.2f} s late: {answer.message}")
    return found
