"""What callers hold while their operation is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import torch
from torch.distributed import Work as TorchWork

from instep import _ledger
from instep._native import Ticket
from instep.backend import backward
from instep.errors import CollectiveError, Unfinished

_NO_LIMIT = timedelta(0)


class Work(TorchWork):
    """An operation under way, or one that has ended if it has no ticket.

    `after` brings results to where the caller wants them; it is called once, on a thread of its own, when the native
    library is done. Results are there when `wait` returns, when `is_completed()` says so, and in the future.

    The future is two: one that is completed here, and what callers get, which fails where the operation has failed.
    Torch offers Python no other way to a future that C++ sees fail: `Future.set_exception` stores the exception as a
    result, which DDP's reducer takes for tensors.
    """

    # Whether a backward pass that asks for the future waits for it.
    _watched = True

    def __init__(
        self, ticket: Ticket | None, outputs: list[torch.Tensor], after: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self._ticket = ticket
        self._outputs = outputs
        self._completed: torch.futures.Future[list[torch.Tensor]] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._after = after
        self._error: BaseException | None = None
        self._lock = threading.Lock() if after is not None else None
        if after is not None and ticket is not None:
            self._over = threading.Event()
            ticket.when_finished(self._conclude)

    def _conclude(self) -> None:
        """Run what comes after the operation; on a thread for callbacks."""
        assert self._ticket is not None
        assert self._after is not None
        self._error = self._ticket.failure()
        if self._error is None:
            try:
                self._after()
            except Exception as error:  # whoever waits gets it
                self._error = error
        assert self._lock is not None
        with self._lock:  # either this or get_future sees the other's step
            self._over.set()
            completed = self._completed
        if completed is not None:
            self._settle()

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Wait for the end, and raise what went wrong; a timeout of zero is none."""
        if self._ticket is None:
            return True
        seconds = timeout.total_seconds() or None
        if self._after is None:
            self._ticket.wait(seconds)
            return True
        if not _waited(self._over, seconds):
            raise Unfinished(f"the operation is not finished after {seconds} s")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """Order what follows after the operation: for memory of the host that is to wait."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        if self._ticket is None:
            return True
        return self._over.is_set() if self._after is not None else self._ticket.is_finished()

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """What it ended with, None if well or under way."""
        if self._ticket is None:
            return None
        return self._error if self._after is not None else self._ticket.failure()

    def result(self) -> list[torch.Tensor]:
        """The tensors with the results, once it has ended."""
        if not self.is_completed():
            raise CollectiveError("the operation has no result yet: it is still running\nhint: call wait() first")
        self.wait()
        return self._outputs

    def source_rank(self) -> int:
        """Who sent what was received."""
        source = self._ticket.source() if self._ticket is not None else None
        if source is None:
            raise CollectiveError("only a finished receive has a source rank")
        return source

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """The results as a future, which is completed on a thread for callbacks.

        Where the operation fails it raises a RuntimeError with the text of the failure: futures of torch keep no types.
        """
        if self._future is None:
            found = {tensor.device for tensor in self._outputs if tensor.device.type != "cpu"}
            devices: list[int | str | torch.device] = sorted(found, key=str)
            self._settled = threading.Event()
            self._pass = backward.current() if self._watched else None
            if self._pass is not None:
                self._pass.add(self)
            completed: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=devices)
            self._future = completed.then(self._outcome)
            if self._lock is not None:
                with self._lock:
                    self._completed = completed
                    over = self._over.is_set()
                if over:
                    self._settle()
            else:
                self._completed = completed
                if self._ticket is None:
                    self._settle()
                else:
                    self._ticket.when_finished(self._settle)
        return self._future

    def settled(self) -> BaseException | None:
        """Wait until the future and what was chained to it have run; give the failure."""
        _waited(self._settled)
        return self.exception()

    def _settle(self) -> None:
        """Complete the future, which runs what was chained to it."""
        assert self._completed is not None
        try:
            with backward.on_behalf_of(self._pass):
                self._completed.set_result(self._outputs)
        finally:
            self._settled.set()

    def _outcome(self, completed: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
        error = self.exception()
        if error is not None:
            raise error
        return completed.value()


def _waited(event: threading.Event, seconds: float | None = None) -> bool:
    """Wait for an event of another thread, as communication; whether it came in time."""
    counts = _ledger.begin_wait()
    try:
        return event.wait(seconds)
    finally:
        if counts:
            _ledger.end_wait()


class Transfer(Work):
    """A send or a receive under way."""

    _watched = False
