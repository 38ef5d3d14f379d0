"""How the ranks of the demo report progress: one JSON object a line, appended to one file.

A line is written with a single `write` on a file opened for appending, so ranks never mix their lines and a killed rank
leaves at most one unfinished line at the end, which the reader leaves alone. Times are `time.monotonic()`, which all
processes of one machine share.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

EVENTS_FILE = "events.jsonl"
# RANK:EPOCH. The first process of that rank waits there for the demo to kill it.
WAIT_TO_BE_KILLED = "INSTEP_DEMO_WAIT_TO_BE_KILLED"
WAIT_S = 300.0

Kind = Literal[
    "started",  # the process runs; `pid` is its process id
    "resumed",  # a snapshot was loaded; `epoch` is the next epoch to run
    "epoch",  # `epoch` begins
    "step",  # the first optimizer step of this process is done
    "loss",  # `epoch` epochs are done, with this `loss`
    "finished",  # training is over; `loss` is the final loss
]


@dataclass(frozen=True)
class Event:
    """One report of one rank."""

    kind: Kind
    rank: int
    attempt: int
    at: float
    pid: int = 0
    epoch: int = 0
    loss: float = 0.0
    # How many processes the rank has had before in this attempt.
    incarnation: int = 0


@dataclass(frozen=True)
class Reporter:
    """The writing end, one in each rank."""

    rank: int
    world_size: int
    attempt: int

    @property
    def incarnation(self) -> int:
        """How many processes have been this rank before in this attempt; a spare learns it when it takes over."""
        return int(os.environ.get("INSTEP_INCARNATION", "0"))

    @classmethod
    def from_environment(cls) -> "Reporter":
        """Learn who this process is from the launcher, and report that it runs."""
        reporter = cls(
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            attempt=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        )
        reporter.report("started")
        return reporter

    def report(self, kind: Kind, *, epoch: int = 0, loss: float = 0.0) -> None:
        """Append one event."""
        event = Event(kind, self.rank, self.attempt, time.monotonic(), os.getpid(), epoch, loss, self.incarnation)
        with Path(EVENTS_FILE).open("ab", buffering=0) as file:
            file.write(json.dumps(asdict(event)).encode() + b"\n")

    def begin(self, epoch: int) -> None:
        """Report that an epoch begins; the rank that the demo kills goes no further, however late the kill comes."""
        self.report("epoch", epoch=epoch)
        first = (self.attempt, self.incarnation) == (0, 0)
        if first and os.environ.get(WAIT_TO_BE_KILLED) == f"{self.rank}:{epoch}":
            time.sleep(WAIT_S)


class EventReader:
    """The reading end: hands out each complete line once."""

    def __init__(self, path: Path) -> None:
        """Read `path` from its start, once it exists."""
        self._path = path
        self._offset = 0

    def new_events(self) -> list[Event]:
        """Events written since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            complete = file.read().rpartition(b"\n")[0]
        if not complete:
            return []
        self._offset += len(complete) + 1
        return [Event(**json.loads(line)) for line in complete.splitlines()]
