"""A rank without torch that keeps its step when a peer is lost: what `instep run --recover step` expects of a script.

session.py FOLDER STEPS [FAULT ...]

All ranks meet in each step, under keys of their generation; a step that all have reached is committed. When a
generation is published they meet again, and all take over the newest step and state. A fault is
`RANK.INCARNATION@STEP:WHAT`, where `*` stands for any number and the step may be `start` (before the session) or
`recovery`. After a restart of all workers there are no faults:

    kill          SIGKILL to itself
    raise         ValueError
    exit0         end with 0
    see NAME      wait until FOLDER/NAME exists
    vanish NAME   rename FOLDER/NAME, so that nothing of this name can be started
    lost          from here on fail as a rank without a session does when a peer is lost
    mute          have no session at all

Each incarnation leaves FOLDER/RANK.INCARNATION.json with its process and environment, one line for each committed
step in FOLDER/RANK.INCARNATION.steps, and FOLDER/RANK.result with the state after the last step.
"""

from __future__ import annotations

import fnmatch
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from instep.store import Client

NAMES = (
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "ROLE_RANK",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "INSTEP_RECOVER",
    "INSTEP_INCARNATION",
    "INSTEP_RECOVERY_GENERATION",
    "INSTEP_SECRET",
)
# So that nothing is left if a test goes wrong.
FOR_EVER_S = 120.0
BEFORE_THE_FIRST = -1


class PeerLost(Exception):
    """What the backend raises where a peer is lost."""


class Rank:
    """One incarnation of one rank."""

    def __init__(self, folder: Path, steps: int, faults: list[str]) -> None:
        self.folder = folder
        self.steps = steps
        self.faults = faults if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else []
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.incarnation = int(os.environ.get("INSTEP_INCARNATION", "0"))
        self.generation = 0
        self.recovers = True
        self.store = Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=FOR_EVER_S)
        self.step, self.state = (0, 1) if self.incarnation == 0 else (BEFORE_THE_FIRST, 0)
        self.deadline = time.monotonic() + FOR_EVER_S

    def write(self, name: str, text: str) -> None:
        """Leave a file that appears with all of its content."""
        unfinished = self.folder / f".{name}"
        unfinished.write_text(text)
        unfinished.replace(self.folder / name)

    def suffer(self, moment: str) -> None:
        """Do what faults say for this moment."""
        for fault in self.faults:
            where, _, what = fault.partition(":")
            if fnmatch.fnmatchcase(f"{self.rank}.{self.incarnation}@{moment}", where):
                verb, _, rest = what.partition(" ")
                getattr(self, f"do_{verb}")(rest)

    def do_kill(self, _: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    def do_raise(self, _: str) -> None:
        failed = {"incarnation": self.incarnation, "step": self.step}
        self.store.set(f"instep/recovery/failed/{self.rank}", json.dumps(failed))
        raise ValueError(f"no such thing in step {self.step}")

    def do_exit0(self, _: str) -> None:
        sys.exit(0)

    def do_see(self, name: str) -> None:
        while not (self.folder / name).exists():
            self.pause()

    def do_vanish(self, name: str) -> None:
        (self.folder / name).rename(self.folder / f"{name}.gone")

    def do_lost(self, _: str) -> None:
        self.recovers = False

    def do_mute(self, _: str) -> None:
        while True:
            self.pause()

    def pause(self) -> None:
        if time.monotonic() > self.deadline:
            sys.exit(99)
        time.sleep(0.002)

    def published(self) -> dict[str, Any] | None:
        """The newest generation, if it is newer than ours; the one after it may be abandoned."""
        value = self.store.try_get("instep/recovery/latest")
        latest: dict[str, Any] = json.loads(value) if value else {"generation": 0}
        following = self.store.try_get(f"instep/recovery/generation/{latest['generation'] + 1}")
        if following and "abandoned" in (next_one := json.loads(following)):
            return dict(next_one)
        return latest if latest["generation"] > self.generation else None

    def meet(self, name: str, value: object) -> list[Any] | None:
        """Show a value to all ranks of the generation, and take theirs; nothing if there is a newer generation."""
        self.store.set(f"{name}/{self.rank}", json.dumps(value))
        keys = [f"{name}/{rank}" for rank in range(self.world_size)]
        while not self.store.check(keys):
            if self.published():
                return None
            self.pause()
        return [json.loads(value) for value in self.store.multi_get(keys)]

    def recover(self) -> None:
        """Meet the others in the newest generation: all go on from the newest step that one of them has."""
        latest = self.published()
        while latest:
            if "abandoned" in latest:
                self.write(f"{self.rank}.abandoned", latest["abandoned"])
                self.do_mute("")
            if not self.recovers:
                raise PeerLost(f"lost rank {latest['lost'][0]} on a during barrier (operation 2): its process ended")
            self.generation = latest["generation"]
            self.suffer("recovery")
            found = self.meet(f"recovery/{self.generation}", [self.step, self.state])
            if found is not None:
                self.step, self.state = max(found)
                self.store.set(f"instep/recovery/resumed/{self.generation}", json.dumps({"step": self.step}))
            latest = self.published()

    def run(self) -> None:
        own = {name: os.environ.get(name) for name in NAMES} | {"pid": os.getpid(), "time": time.time()}
        sys.stdout.write(f"rank {self.rank} incarnation {self.incarnation}\n")
        sys.stdout.flush()
        self.write(f"{self.rank}.{self.incarnation}.json", json.dumps(own))
        self.suffer("start")
        self.store.set(f"instep/recovery/session/{self.rank}", str(self.incarnation))
        with (self.folder / f"{self.rank}.{self.incarnation}.steps").open("w") as log:
            self.recover()
            while self.step < self.steps:
                # A step begins when all are there: then all have their sessions.
                if self.meet(f"begin/{self.generation}/{self.step}", None) is not None:
                    self.suffer(str(self.step))
                    if self.meet(f"step/{self.generation}/{self.step}", None) is not None:
                        log.write(f"{self.step}\n")
                        log.flush()
                        self.state = self.state * 6364136223846793005 % 2**64 + self.step
                        self.step += 1
                        continue
                self.recover()
        self.write(f"{self.rank}.result", str(self.state))


if __name__ == "__main__":
    Rank(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]).run()
