"""Runs a command beside a PostgreSQL server of its own, whose address the command finds in INSTEP_TEST_DATABASE.

python3 scripts/on_postgres.py [--by-socket] COMMAND [ARGUMENT ...]

With --by-socket the address is that of the server's socket, which is there in every network namespace.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

from project import ROOT, fail


def main(command: list[str]) -> int:
    """Start the server, run the command, stop the server; give the command's status."""
    by_socket = command[:1] == ["--by-socket"]
    command = command[by_socket:]
    if not command:
        fail("no command given", hint="python3 scripts/on_postgres.py COMMAND [ARGUMENT ...]", status=2)
    # The server of the end-to-end tests.
    sys.path.insert(0, str(ROOT / "tests"))
    with importlib.import_module("detached.postgres").running() as server:
        address = server.socket_address if by_socket else server.address
        return subprocess.run(command, env={**os.environ, "INSTEP_TEST_DATABASE": address}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
