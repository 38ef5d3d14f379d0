"""What the launcher says about lost ranks, in the job's store.

Each loss begins a *generation*: the launcher names the ranks that it replaces, and every rank of the job, old or new,
connects again under the generation's number. Keys, written by the launcher:

    instep/recovery/latest             the newest generation, as JSON
    instep/recovery/generation/<g>     each generation, as JSON; with "abandoned" if all workers start again instead

and by the ranks:

    instep/recovery/session/<rank>     this rank can recover: its incarnation
    instep/recovery/connecting/<g>/<rank>  this rank knows of a generation, and connects with the others
    instep/recovery/resumed/<g>        that generation goes on with this step: {"step": 17}
    instep/recovery/impossible         why a rank cannot recover
    instep/recovery/waiting            who waits for the next generation: {"rank": 0, "generation": 2}
    instep/recovery/failed/<rank>      an error of its own ended this rank in this step: {"incarnation": 0, "step": 17}
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from instep.store import Client

_PREFIX = "instep/recovery"
# How long the thread that watches waits at a time, and may take to end: also on a machine that has more to do.
_WATCH_S = 0.5
_END_S = 10.0


@dataclass(frozen=True)
class Generation:
    """One answer of the launcher to a loss."""

    number: int
    # How many processes each rank has had before, where any.
    incarnations: dict[int, int]
    # Why the others are to go on, or why not.
    reason: str
    abandoned: bool

    @classmethod
    def parse(cls, text: bytes) -> Generation:
        """Read what the launcher wrote."""
        found = json.loads(text)
        abandoned = found.get("abandoned")
        return cls(
            int(found["generation"]),
            {int(rank): int(incarnation) for rank, incarnation in found.get("incarnations", {}).items()},
            str(abandoned if abandoned is not None else found.get("reason", "")),
            abandoned is not None,
        )


class Generations:
    """This rank's view of the job's generations."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self._client = Client(*self._where)

    def ready(self, incarnation: int) -> None:
        """Say that this rank can recover."""
        self._client.set(f"{_PREFIX}/session/{self._rank}", str(incarnation))

    def all_ready(self, size: int) -> bool:
        """Whether every rank of so many can recover."""
        return all(self._client.try_get(f"{_PREFIX}/session/{rank}") is not None for rank in range(size))

    def connecting(self, generation: int) -> None:
        """Say that this rank connects with the others."""
        self._client.set(f"{_PREFIX}/connecting/{generation}/{self._rank}", b"1")

    def resumed(self, generation: int, step: int) -> None:
        """Say that the ranks go on with this step."""
        self._client.set(f"{_PREFIX}/resumed/{generation}", json.dumps({"step": step}))

    def impossible(self, why: str) -> None:
        """Say that this rank cannot recover, so that all workers start again."""
        self._client.set(f"{_PREFIX}/impossible", why)

    def awaits(self, number: int) -> None:
        """Say that this rank has lost a peer, and waits for this generation."""
        self._client.set(f"{_PREFIX}/waiting", json.dumps({"rank": self._rank, "generation": number}))

    def failed(self, incarnation: int, step: int) -> None:
        """Say in which step this rank fails. What it fails with is more important than to say so."""
        with contextlib.suppress(OSError):
            self._client.set(f"{_PREFIX}/failed/{self._rank}", json.dumps({"incarnation": incarnation, "step": step}))

    def latest(self) -> Generation | None:
        """The newest generation, None if no rank was lost yet."""
        found = self._client.try_get(f"{_PREFIX}/latest")
        return None if found is None else Generation.parse(found)

    def after(self, number: int, seconds: float) -> Generation | None:
        """The newest generation, once there is one after this; None if there is none in time."""
        try:
            first = self._client.get(f"{_PREFIX}/generation/{number + 1}", timeout=seconds)
        except TimeoutError:
            return None
        newest = self.latest()
        found = Generation.parse(first)
        return found if newest is None or newest.number < found.number else newest

    def watch(self, number: int, lost: Callable[[int], None]) -> None:
        """From now on, have `lost` called with every generation after this one, on a thread, as soon as it begins."""

        ended = threading.Event()

        def follow() -> None:
            following = number + 1
            while not ended.is_set():
                try:
                    with Client(*self._where) as client:
                        while not ended.is_set():
                            try:
                                client.wait([f"{_PREFIX}/generation/{following}"], timeout=_WATCH_S)
                            except TimeoutError:
                                continue
                            lost(following)
                            following += 1
                except ConnectionError:
                    ended.wait(_WATCH_S)  # the job ends, or the store could not be reached for a moment

        thread = threading.Thread(target=follow, name="instep-generations", daemon=True)
        thread.start()

        def end() -> None:
            ended.set()
            thread.join(_END_S)

        # A thread that waits outside of the interpreter must not come back when that has ended.
        atexit.register(end)
