"""What the demo prints: narration, the job's own output, a closing table. Colours on a terminal only."""

import os
import sys
import threading
from typing import TextIO


class Console:
    """Writes whole lines from several threads; colour underlines meaning but never carries it."""

    def __init__(self, stream: TextIO) -> None:
        """Colour only a terminal whose user has not declined it."""
        self._stream = stream
        self._lock = threading.Lock()
        self._colour = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def narrate(self, text: str) -> None:
        """Say what is going on."""
        self._write(self._paint("1;36", "==> ") + self._paint("1", text))

    def job_output(self, line: str) -> None:
        """Pass on a line that the launcher or a rank wrote."""
        self._write(self._paint("2", f"    {line}"))

    def plain(self, text: str = "") -> None:
        """A line as it is."""
        self._write(text)

    def error(self, problem: str, hint: str) -> None:
        """What went wrong and what to do next, on standard error."""
        self._stream.flush()
        sys.stderr.write(f"error: {problem}\nhint: {hint}\n")

    def table(self, rows: list[tuple[str, str]]) -> None:
        """Two aligned columns."""
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            self._write(f"    {name:<{width}}   {self._paint('1', value)}")

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    def _write(self, line: str) -> None:
        with self._lock:
            self._stream.write(f"{line}\n")
            self._stream.flush()
