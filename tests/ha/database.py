"""What lies between masters and PostgreSQL: a way that can be cut and led elsewhere, and servers that follow others."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from detached.postgres import ACCESS, Postgres, as_server, program
from ports import free_port

# PostgreSQL's own word, as the driver sends it in a simple query.
COMMIT = b"COMMIT"


class Way:
    """Forwards the connections of one master to PostgreSQL."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._at_commit: tuple[Callable[[], None], bool] | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Forward nothing, and say nothing, as a network that is cut."""
        self._open.clear()

    def mend(self) -> None:
        """Forward again; what was there before is gone."""
        self.drop()
        self._open.set()

    def drop(self) -> None:
        """End all connections."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def lead_to(self, port: int) -> None:
        """Lead to another server from now on."""
        self._target = port
        self.drop()

    def at_commit(self, act: Callable[[], None], *, arrives: bool) -> None:
        """Act at the master's next COMMIT: once the server has been sent it, or in its place."""
        with self._lock:
            self._at_commit = (act, arrives)

    def waits_for_commit(self) -> bool:
        """Whether the master has not committed since."""
        return self._at_commit is not None

    def close(self) -> None:
        """End everything."""
        with self._lock:
            self._is_closed = True
        # Whoever waits for a connection is woken by this alone.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.mend()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                theirs, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(theirs,), daemon=True).start()

    def _connect(self, theirs: socket.socket) -> None:
        if not self._keep(theirs):
            return
        self._open.wait()
        try:
            ours = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            theirs.close()
            return
        if not self._keep(ours):
            return
        for source, sink, from_master in ((theirs, ours, True), (ours, theirs, False)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._copy, args=(source, sink, from_master), daemon=True).start()

    def _keep(self, one: socket.socket) -> bool:
        """Note a connection that is to end with us; it ends at once where we have ended."""
        with self._lock:
            if not self._is_closed:
                self._sockets.append(one)
        if self._is_closed:
            one.close()
        return not self._is_closed

    def _copy(self, source: socket.socket, sink: socket.socket, from_master: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                if from_master and COMMIT in data and (waiting := self._take()):
                    act, arrives = waiting
                    if arrives:
                        sink.sendall(data)
                    act()
                    break
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _take(self) -> tuple[Callable[[], None], bool] | None:
        with self._lock:
            waiting, self._at_commit = self._at_commit, None
            return waiting


class Pair:
    """A PostgreSQL server and one that follows it synchronously: what is acknowledged is on both."""

    def __init__(self, folder: Path, wait_until: Callable[..., None]) -> None:
        self.folder = folder
        self._wait_until = wait_until
        self._made = 0
        shutil.chown(folder, "postgres", "postgres")
        self.primary = self._begin(self._initialised())
        self.primary.psql("CREATE DATABASE determined", database="postgres")
        self.standby = self._follow()

    def promote(self) -> Postgres:
        """Kill the first server; the second one serves, and another follows it."""
        lost, self.primary = self.primary, self.standby
        lost.control("stop immediately")
        self.primary.control("promote")
        return self.primary

    def add_standby(self) -> None:
        """Let another server follow the one that serves."""
        self.standby = self._follow()

    def end(self) -> None:
        """End both."""
        for server in (self.primary, self.standby):
            with contextlib.suppress(subprocess.CalledProcessError):
                server.control("stop immediately")

    def _initialised(self) -> Path:
        data = self._new_folder()
        make = as_server(
            program("initdb"), "-D", str(data), "-U", "determined", "--auth=trust", "-E", "UTF8", "--no-sync"
        )
        subprocess.run(make, check=True, timeout=60, stdout=subprocess.DEVNULL, cwd=self.folder)
        (data / "pg_hba.conf").write_text(ACCESS + "host replication all 127.0.0.1/32 trust\n")
        return data

    def _new_folder(self) -> Path:
        self._made += 1
        return self.folder / f"data-{self._made}"

    def _begin(self, data: Path) -> Postgres:
        port = free_port()
        options = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories={self.folder} -c fsync=off"
        words = {"stop immediately": ("-m", "immediate", "stop"), "restart": ("-m", "fast", "restart")}

        def control(what: str) -> None:
            command = (program("pg_ctl"), "-D", str(data), "-o", options, "-l", f"{data}.log", "-w")
            done = as_server(*command, *words.get(what, (what,)))
            subprocess.run(done, check=True, timeout=60, stdout=subprocess.DEVNULL, cwd=self.folder)

        control("start")
        return Postgres(port, str(self.folder), control)

    def _follow(self) -> Postgres:
        primary, data = self.primary, self._new_folder()
        # What one that followed has been told of another does not count for it.
        primary.psql("ALTER SYSTEM RESET synchronous_standby_names")
        primary.psql("SELECT pg_reload_conf()")
        where = ("-h", "127.0.0.1", "-p", str(primary.port), "-U", "determined")
        copy = as_server(
            program("pg_basebackup"), *where, "-D", str(data), "-R", "-X", "stream", "-c", "fast", "--no-sync"
        )
        subprocess.run(copy, check=True, timeout=120, stdout=subprocess.DEVNULL, cwd=self.folder)
        standby = self._begin(data)
        primary.psql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.psql("SELECT pg_reload_conf()")
        asked = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        self._wait_until(lambda: primary.psql(asked) == "1\n", 30, "the standby to follow")
        return standby


@contextlib.contextmanager
def pair(wait_until: Callable[..., None]) -> Iterator[Pair]:
    """Two servers, for a test."""
    # Not in pytest's folders, which the servers' user cannot reach.
    with TemporaryDirectory(prefix="instep-postgres-") as folder:
        servers = Pair(Path(folder), wait_until)
        try:
            yield servers
        finally:
            servers.end()
            time.sleep(0.1)
