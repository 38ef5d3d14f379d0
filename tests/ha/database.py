"""What lies between masters and PostgreSQL: a way that can be cut and led elsewhere, and servers that follow others."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from detached.postgres import ACCESS, Postgres, as_server, program
from managed.faults import Relay
from ports import free_port

# PostgreSQL's own word, as the driver sends it in a simple query.
COMMIT = b"COMMIT"


class Way(Relay):
    """Forwards the connections of one master to PostgreSQL."""

    def __init__(self, port: int) -> None:
        self._at_commit: tuple[Callable[[], None], bool] | None = None
        super().__init__(port)

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

    def _forward(self, sink: socket.socket, data: bytes, is_request: bool) -> bool:
        waiting = self._take() if is_request and COMMIT in data else None
        if waiting is None:
            return super()._forward(sink, data, is_request)
        act, arrives = waiting
        if arrives:
            sink.sendall(data)
        act()
        return False

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
