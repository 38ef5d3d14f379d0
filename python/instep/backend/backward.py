"""Failures of collectives inside a backward pass, raised there as what they are.

At the end of a backward pass torch's C++ code waits for the futures that DDP's reducer or a communication hook has
asked for. A future of torch keeps only the text of an exception, so the caller of `backward()` would get a
`RuntimeError`. Therefore a collective whose future is asked for during a backward pass is watched: when all gradients
are computed, torch calls `Pass.end`, and the first failure is raised with its class. DDP's own callback comes after it,
because DDP queues it last.

DDP waits for the same operations next. Sends and receives are not watched, because a peer may do its part after its own
backward pass.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch


class Watched(Protocol):
    """What is waited for."""

    def settled(self) -> BaseException | None:
        """Wait until the future and what was chained to it have run; give the failure."""


class Pass:
    """A backward pass, and the collectives that it waits for when it ends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._watched: list[Watched] = []

    def add(self, watched: Watched) -> None:
        """Also wait for this one."""
        self._watched.append(watched)

    def end(self) -> None:
        """Wait for all, and raise the first failure; called by torch."""
        for watched in self._watched:  # grows meanwhile if hooks begin further operations in callbacks
            error = watched.settled()
            if error is not None:
                raise error


class _Current(threading.local):
    # The last pass of this thread, which lives as long as torch has it to call back.
    last: weakref.ref[Pass] | None = None
    # The pass on whose behalf this thread runs callbacks.
    behalf: Pass | None = None


_current = _Current()


def current() -> Pass | None:
    """The backward pass that this thread is in, or runs a callback for."""
    number = torch._C._current_graph_task_id()
    if number < 0:
        return _current.behalf
    found = _current.last() if _current.last is not None else None
    if found is None or found.number != number:
        found = Pass(number)
        torch.autograd.Variable._execution_engine.queue_callback(found.end)
        _current.last = weakref.ref(found)
    return found


@contextmanager
def on_behalf_of(found: Pass | None) -> Iterator[None]:
    """Have what callbacks begin watched by the pass that waits for them."""
    before, _current.behalf = _current.behalf, found
    try:
        yield
    finally:
        _current.behalf = before
