"""How the ranks tell `__main__` what they found: lines of JSON in a named pipe.

A line is shorter than PIPE_BUF, which the kernel writes in one piece, so that any rank may write at any time.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "reports"
LONGEST_TEXT = 1500


class Refusal(Exception):
    """What cannot be measured, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Writer:
    """A rank's end."""

    def __init__(self, folder: Path) -> None:
        """Open the pipe; there is a reader, who made it."""
        self._pipe = os.open(folder / NAME, os.O_WRONLY)

    def send(self, kind: str, **values: object) -> None:
        """Write one line, texts cut to what fits."""
        short = {name: value[:LONGEST_TEXT] if isinstance(value, str) else value for name, value in values.items()}
        os.write(self._pipe, json.dumps({"kind": kind, **short}).encode() + b"\n")


class Reader:
    """The other end. Made before the ranks, so that none of them waits for it."""

    def __init__(self, folder: Path) -> None:
        """Make the pipe and open it; for writing too, so that it does not end with the first rank that leaves."""
        os.mkfifo(folder / NAME)
        self._pipe = os.open(folder / NAME, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def new_reports(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        """Give what has come, waiting for something up to `timeout_s`."""
        if not select.select([self._pipe], [], [], timeout_s)[0]:
            return
        *lines, self._rest = (self._rest + os.read(self._pipe, 1 << 16)).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._pipe)
