"""Standard output and error, sent to the master line by line beside going where they always went."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from instep._native import Reporter

# Longer lines are sent in pieces.
LONGEST_LINE = 100_000


class Tee:
    """Stands in for a stream: everything goes to the stream, whole lines also to the master."""

    def __init__(self, stream: TextIO, name: str, reporter: Reporter) -> None:
        self._stream, self._name, self._reporter = stream, name, reporter
        self._pending = ""
        self._lock = threading.Lock()
        self._open = True

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Be the stream in everything but writing."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write to the stream, and queue the lines that are complete now."""
        written = self._stream.write(text)
        self.record(text)
        return written

    def record(self, text: str) -> None:
        """Queue the lines that are complete now; the stream itself is given them elsewhere."""
        # A print within a signal handler or a finalizer must not wait for the one it interrupted.
        if self._open and self._lock.acquire(timeout=0.1):
            try:
                self._ship(text)
            finally:
                self._lock.release()

    def writelines(self, lines: Any) -> None:  # noqa: ANN401
        """Write several."""
        for line in lines:
            self.write(line)

    def _ship(self, text: str) -> None:
        *lines, self._pending = (self._pending + text).split("\n")
        for line in lines:
            # A bar of progress overwrites itself; what it last showed is the line.
            self._send(line.rstrip("\r").rpartition("\r")[2] + "\n")
        if len(self._pending) > LONGEST_LINE:
            self._pending = self._pending.rpartition("\r")[2]
        while len(self._pending) > LONGEST_LINE:
            self._send(self._pending[:LONGEST_LINE] + "\n")
            self._pending = self._pending[LONGEST_LINE:]

    def _send(self, line: str) -> None:
        try:
            # Text with half a surrogate pair is no text for anybody else.
            self._reporter.log(line.encode(errors="replace").decode(), self._name)
        except (RuntimeError, ValueError):
            self._open = False  # closed, refused for good, or a forked process: the output still goes to the stream

    def finish(self) -> None:
        """Send what is left of an unfinished line, and no more after it."""
        if self._pending and self._open:
            self._send(self._pending + "\n")
        self._open = False
        self._pending = ""


class Output:
    """Both streams, while they are shipped."""

    def __init__(self, reporter: Reporter) -> None:
        self._tees = {
            name: Tee(stream, name, reporter)
            for name in ("stdout", "stderr")
            if (stream := getattr(sys, name)) is not None
        }
        for name, tee in self._tees.items():
            setattr(sys, name, tee)

    def record_error(self, error: BaseException) -> None:
        """Send what Python will say of an error on stderr when the streams are given back."""
        tee = self._tees.get("stderr")
        if isinstance(error, SystemExit):
            # Python says its message alone, and nothing of an exit code.
            said = "" if error.code is None or isinstance(error.code, int) else f"{error.code}\n"
        else:
            said = "".join(traceback.format_exception(error))
        if tee is not None and said:
            tee.record(said)

    def close(self) -> None:
        """Give the streams back, unless somebody replaced them meanwhile."""
        for name, tee in self._tees.items():
            with contextlib.suppress(Exception):
                tee.flush()
            tee.finish()
            if getattr(sys, name) is tee:
                setattr(sys, name, tee._stream)
