"""What is random, local or timed in an observation, replaced by names, so that two runs can be compared.

<dir> <venv> <here> <python>   folders and the interpreter of the run
<port> <free port>             the port given on the command line; any other port
<uuid> <random> <pid> <time>   a fresh run id, the eight characters of a temporary folder, process ids, clocks
<this host>                    localhost or the name of this machine, where an address is expected
<hostname>                     the name of this machine, inside a line of output
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
TEMPORARY = re.compile(r"torchelastic_[a-z0-9_]{8}(?=/|$)")
RUN_FOLDER = re.compile(r"_[a-z0-9_]{8}(?=/attempt_|$)")
PROCESS = re.compile(r"\b(Process|PID|pid:?) \d+")
STACK_LINE = re.compile(r", line \d+")
SITE_PACKAGES = re.compile(r"<venv>/lib/python[0-9.]+/site-packages")
LAUNCHER_STACK = "torch/distributed/run.py"
SPAWN_DESCRIPTOR = re.compile(r"(tracker_fd|pipe_handle)=\d+")
MARKERS = re.compile(r"^\s*[\^~]+\s*$")


@dataclass(frozen=True)
class Places:
    """The parts of one run that must not show up in its observation."""

    directory: Path
    venv: Path
    here: Path
    port: int

    def text(self, value: str) -> str:
        value = re.sub(rf"{re.escape(str(self.venv))}/bin/python[0-9.]*", "<python>", value)
        value = re.sub(rf"{re.escape(str(self.directory))}/node\d+", "<dir>", value)
        for path, name in ((self.venv, "<venv>"), (self.here, "<here>")):
            value = value.replace(str(path), name)
        value = SITE_PACKAGES.sub("<site-packages>", value)
        value = re.sub(rf"\b{self.port}\b", "<port>", value)
        value = SPAWN_DESCRIPTOR.sub(r"\1=<n>", value)
        value = UUID.sub("<uuid>", value)
        value = TEMPORARY.sub("torchelastic_<random>", value)
        return PROCESS.sub(r"\1 <pid>", value)

    def environment(self, name: str, value: str | None) -> str | None:
        if value is None:
            return None
        value = self.text(value)
        if name == "MASTER_ADDR" and value in own_names():
            return "<this host>"
        if name == "MASTER_PORT" and value.isdigit():
            return "<free port>"
        if name == "TORCHELASTIC_ERROR_FILE":
            return RUN_FOLDER.sub("_<random>", value)
        return value

    def line(self, value: str) -> str:
        return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "<hostname>", self.text(value))

    def log_path(self, path: str) -> str:
        """A path below a log directory, whose first part may be the folder of the run or a temporary one."""
        return "/".join(
            RUN_FOLDER.sub("_<random>", part) if is_run(part) else part for part in self.text(path).split("/")
        )

    def error(self, value: object) -> object:
        """The content of an error file: same shape, without times, line numbers and paths."""
        if isinstance(value, dict):
            return {k: "<time>" if k == "timestamp" else self.error(v) for k, v in value.items()}
        if isinstance(value, str) and LAUNCHER_STACK in value:
            return "<launcher's own stack>"
        if isinstance(value, str):
            lines = [line for line in self.text(value).splitlines() if not MARKERS.match(line)]
            return STACK_LINE.sub(", line <n>", "\n".join(lines))
        return value


def is_run(part: str) -> bool:
    return not part.startswith(("attempt_", "torchelastic_", "filtered_")) and RUN_FOLDER.search(part) is not None


def own_names() -> set[str]:
    name = socket.gethostname()
    return {"localhost", name, socket.getfqdn(name)}
