"""A PostgreSQL server of one's own: in a folder, on a port that is free, gone with the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ports import free_port

# Who needs a password and who does not. PostgreSQL takes the first line that fits.
ACCESS = "local all all trust\nhost all locked 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"


@dataclass
class Postgres:
    """A running server, with a database `determined`."""

    port: int
    sockets: str
    control: Callable[[str], None]

    @property
    def address(self) -> str:
        return f"postgres://determined@127.0.0.1:{self.port}/determined"

    @property
    def socket_address(self) -> str:
        """The same by the socket, which is reached from every network namespace."""
        folder = self.sockets.replace("/", "%2F")
        return f"postgres://determined@{folder}:{self.port}/determined"

    def psql(self, script: str, *options: str, database: str = "determined") -> str:
        """Run statements; give what they print."""
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "determined", "-d", database)
        command = ["psql", "-qAt", "-v", "ON_ERROR_STOP=1", *where, *options]
        done = subprocess.run(command, input=script, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def restart(self) -> None:
        """Stop the server in order, which ends all sessions, and start it again."""
        self.control("restart")

    def dump(self, path: Path) -> None:
        """Write the database down."""
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "determined")
        subprocess.run(["pg_dump", *where, "-f", str(path), "determined"], check=True, timeout=300)


def program(name: str) -> str:
    """A program of PostgreSQL's server, which Debian keeps beside PATH."""
    found = shutil.which(name) or next(map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None)
    assert found, f"there is no {name}\nhint: python3 scripts/system.py test"
    return found


def as_server(*command: str) -> list[str]:
    """PostgreSQL refuses to be run by root."""
    return ["runuser", "-u", "postgres", "--", *command] if os.geteuid() == 0 else list(command)


@contextmanager
def running(*, durable: bool = False) -> Iterator[Postgres]:
    """Start a server, and stop it; a durable one syncs every commit, as one that is not a test's does."""
    # Not in pytest's folders, which the server's user cannot reach.
    with tempfile.TemporaryDirectory(prefix="instep-postgres-") as folder:
        port = free_port()
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        data = Path(folder) / "data"
        where = ("-D", str(data))
        make = as_server(program("initdb"), *where, "-U", "determined", "--auth=trust", "-E", "UTF8", "--no-sync")
        subprocess.run(make, check=True, timeout=60, stdout=subprocess.DEVNULL, cwd=folder)
        (data / "pg_hba.conf").write_text(ACCESS)
        options = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories={folder}"
        options += "" if durable else " -c fsync=off"

        def control(what: str, *further: str) -> None:
            words = (program("pg_ctl"), *where, "-o", options, "-l", f"{folder}/log", "-w", *further, what)
            # Its user may not look into the folder that we are in.
            subprocess.run(as_server(*words), check=True, timeout=60, stdout=subprocess.DEVNULL, cwd=folder)

        control("start")
        try:
            server = Postgres(port, folder, control)
            server.psql("CREATE DATABASE determined", database="postgres")
            yield server
        finally:
            control("stop", "-m", "immediate")
