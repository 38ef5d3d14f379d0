"""A hot spare: a process that has run the script up to its loop as a rank that is alive, in case that one is lost.

It runs in a spare interpreter of `instep run --recover step --spares hot`, which holds the other end: `sessions_begin`
says when the script may run, `wait_until_needed` stops it where its loop begins.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable

from instep import _ledger
from instep.elastic.generations import Generations

# How long to wait at a time for sessions, between checks whether the launcher calls.
_LOOK_S = 0.25

_wait: Callable[[], None] | None = None


def sessions_begin(channel: int) -> bool:
    """Wait until every rank of the job has a session; False if the launcher calls before that.

    A script without one would train on by itself, alone.
    """
    generations = None
    while not select.select([channel], [], [], 0 if generations is None else _LOOK_S)[0]:
        try:
            if generations is None:
                generations = Generations(int(os.environ["RANK"]))
            elif generations.all_ready(int(os.environ["WORLD_SIZE"])):
                return True
        except ConnectionError:
            return False  # the job ends
    return False


def wait_with(wait: Callable[[], None]) -> None:
    """Have `wait_until_needed` wait with this."""
    global _wait
    _wait = wait


def wait_until_needed() -> None:
    """Wait until this process is to take a lost rank's place, if it is a hot spare."""
    global _wait
    wait, _wait = _wait, None
    if wait is not None:
        # What the script has printed so far, the rank's first process has printed, too.
        sys.stdout.flush()
        sys.stderr.flush()
        wait()
        _ledger.take_over()
