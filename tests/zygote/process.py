"""A process that has imported torch and forks programs, so that one costs milliseconds instead of seconds.

    process.py SOCKET [MODULE ...]

Whoever wants a Python program starts `stand_in.py`, as a rank under `instep run --python`, say. It sends its
environment, folder, arguments and standard streams here. The process that is forked for it becomes the program: it is
`__main__` there and ends as any interpreter does, with tracebacks, `atexit` and threads, but for the last thing: its
objects are not freed one by one, which would copy most of the memory that it shares with others and take twenty times
as long as most programs do. With INSTEP_TEST_WHOLE_END in the environment they are. Its wait status goes back. A
program whose stand-in is gone is killed, with all that it has started. It is in the namespaces of its stand-in.

Test processes that use it say KEEP and stay connected. When the last of them is gone, it ends with its programs.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import multiprocessing.process
import multiprocessing.spawn  # which keeps the interpreter's real path: what it starts is given descriptors
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

KEEP = b"keep"
WHOLE_END = "INSTEP_TEST_WHOLE_END"


@dataclass(frozen=True)
class Order:
    """What a program is to be."""

    executable: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    streams: list[int]


class Zygote:
    """Forks programs and tells how they ended."""

    def __init__(self, path: str) -> None:
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen(64)
        self.selector.register(self.listener, selectors.EVENT_READ, None)
        self.alive: set[int] = set()
        self.keepers: set[socket.socket] = set()

    def serve(self) -> Order:
        """Fork programs until this is one of them."""
        while True:
            for key, _ in self.selector.select():
                if key.data is None:
                    order = self.accept()
                    if order is not None:
                        return order
                elif key.data == KEEP:
                    self.leave(key.fileobj)
                else:
                    self.look_after(*key.data)

    def accept(self) -> Order | None:
        """Fork a program; gives what it is to do, there."""
        connection, _ = self.listener.accept()
        text, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if not text:
            connection.close()  # it was killed before it could say what it wants
            return None
        if text == KEEP:
            connection.send(KEEP)
            self.keepers.add(connection)
            self.selector.register(connection, selectors.EVENT_READ, KEEP)
            return None
        process = os.fork()
        if process == 0:
            self.selector.close()
            self.listener.close()
            follow(connection)
            connection.close()
            os.setsid()
            return Order(**json.loads(text), streams=streams)
        for stream in streams:
            os.close(stream)
        with contextlib.suppress(ConnectionError):
            connection.send(struct.pack("i", process))
        self.alive.add(process)
        watch = os.pidfd_open(process)
        self.selector.register(watch, selectors.EVENT_READ, (process, watch, connection))
        self.selector.register(connection, selectors.EVENT_READ, (process, watch, connection))
        return None

    def leave(self, keeper: socket.socket) -> None:
        """One that has used this is gone; end with the last."""
        self.selector.unregister(keeper)
        self.keepers.remove(keeper)
        keeper.close()
        if not self.keepers:
            for process in self.alive:
                kill(process)
            os._exit(0)

    def look_after(self, process: int, watch: int, connection: socket.socket) -> None:
        """Tell how a program ended, or kill it because nobody asks for it any more."""
        if process not in self.alive:
            return  # it ended at the same moment as its stand-in
        self.alive.remove(process)
        ended, status = os.waitpid(process, os.WNOHANG)
        if not ended:
            kill(process)
            status = os.waitpid(process, 0)[1]
        with contextlib.suppress(ConnectionError):
            connection.send(struct.pack("i", status))
        for watched in (watch, connection):
            with contextlib.suppress(KeyError):
                self.selector.unregister(watched)
        os.close(watch)
        connection.close()


def kill(process: int) -> None:
    """Kill a program that has not been waited for, with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    # It may be so new that it does not lead a group yet.
    os.kill(process, signal.SIGKILL)


def follow(connection: socket.socket) -> None:
    """Be in the namespaces of the process at the other end: its network, and its view of the files."""
    peer, _, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    for kind in ("net", "mnt"):
        path = f"/proc/{peer}/ns/{kind}"
        if os.path.samefile(path, f"/proc/self/ns/{kind}"):  # noqa: PTH121  # as below
            continue
        with open(path, "rb") as there:  # noqa: PTH123  # torch is all that is imported here
            if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter the namespace {kind} of a program")


class End:
    """How the program ends, once that is known."""

    status: int | None = None

    def leave(self) -> None:
        """End without freeing what the program has, if nothing else is to be done."""
        if self.status is None:
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(self.status)

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Find out the status that the program ends with, as Python does."""
        try:
            yield
        except SystemExit as end:
            code = 0 if end.code is None else end.code
            self.status = code & 0xFF if isinstance(code, int) else 1
            raise
        except Exception:
            self.status = 1
            raise
        self.status = 0


def become(order: Order) -> None:
    """Be the program."""
    for number, stream in enumerate(order.streams):
        os.dup2(stream, number)
        os.close(stream)
    # The zygote's own may be a file, and this one a pipe: what was found out about it is not true any more.
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environment)
    sys.path[1:1] = filter(None, order.environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.executable = order.executable  # so what it starts with its own interpreter is forked, too
    # What it spawns looks for the script where it was started.
    multiprocessing.process.ORIGINAL_DIR = order.folder  # type: ignore[attr-defined]
    first, *rest = order.arguments
    if first == "-u":
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        first, *rest = rest
    if first == "-m":
        sys.argv = rest
        sys.path[0] = order.folder
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path[0] = ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})  # as Python does it
    else:
        sys.argv = [first, *rest]
        sys.path[0] = os.path.dirname(os.path.realpath(first))  # noqa: PTH120  # as Python does it
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    # Of what is to be done at the end, this is first here and last there.
    end = End()
    atexit.register(end.leave)
    # On a CPU nobody needs it, and it complains when an interpreter with frozen objects ends.
    sys.modules["triton"] = None  # type: ignore[assignment]
    for name in sys.argv[2:]:
        importlib.import_module(name)
    # Else every program that ends looks at all of these objects, and copies the memory in which they lie.
    gc.collect()
    gc.freeze()
    zygote = Zygote(sys.argv[1])
    print("ready", flush=True)
    order = zygote.serve()
    with contextlib.nullcontext() if WHOLE_END in order.environment else end.observed():
        become(order)
