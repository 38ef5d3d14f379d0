"""Ports of services that a program of another user has taken first: it learns nothing (about 15 s)."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from .walls import ALICE, BOB, Walls, walls

__all__ = ["walls"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes tasks run as several users, which takes root")

# Listens where another task will, answers everybody, and shows what it was told.
THIEF = """
import os, socket, sys, threading, time
folder = sys.argv[1]
while not os.path.exists(f"{folder}/port"):
    time.sleep(0.05)
server = socket.create_server(("127.0.0.1", int(open(f"{folder}/port").read())))
def serve(connection):
    connection.settimeout(2)
    try:
        print("told:", connection.recv(4096), flush=True)
        connection.sendall(b"HTTP/1.0 200 OK\\r\\nContent-Type: application/json\\r\\n\\r\\n[]")
    except OSError as error:
        print("told nothing:", error, flush=True)
    connection.close()
print("taken", flush=True)
open(f"{folder}/taken", "w").close()
while True:
    threading.Thread(target=serve, args=server.accept()[:1]).start()
"""
# Runs before the entrypoint, as long as the test likes.
HOOK = """
echo ${NOTEBOOK_PORT:-$INSTEP_SHELL_PORT} > FOLDER/port.new && mv FOLDER/port.new FOLDER/port
until [ -e FOLDER/go ]; do sleep 0.05; done
"""


def slow_jupyterlab(folder: Path) -> Path:
    """Make a JupyterLab that is never finished with its imports."""
    package = folder / "packages" / "jupyterlab"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import time\ntime.sleep(600)\n")
    return package.parent


@pytest.mark.parametrize("kind", ["notebook", "shell"])
def test_who_takes_the_port_of_a_service_learns_nothing(walls: Walls, kind: str) -> None:
    walls.start("--address", "127.0.0.1")
    (walls.folder / "thief.py").write_text(THIEF)
    thief = walls.begin("alice", f"python3 {walls.folder}/thief.py {walls.folder}")
    variables = [f"PYTHONPATH={slow_jupyterlab(walls.folder)}"]
    # The agent asks a notebook that can be idle what runs in it, and shows its secret for that.
    config = {"resources": {"slots": 0}, "idle_timeout": "60s", "environment": {"environment_variables": variables}}
    content = base64.b64encode(HOOK.replace("FOLDER", str(walls.folder)).encode()).decode()
    files = [{"path": "startup-hook.sh", "type": 48, "mode": 0o755, "content": content}]
    bob, wait_until = walls.users["bob"], walls.cluster.wait_until
    task: str = bob("POST", f"/api/v1/{kind}s", {"config": config, "files": files})[kind]["id"]

    def log() -> str:
        return "".join(line["message"] + "\n" for line in bob.lines(f"/api/v1/tasks/{task}/logs"))

    wait_until(lambda: (walls.folder / "taken").exists(), 30, lambda: f"{walls.cluster.text(thief)}\n{log()}")
    # The master does not lead there either, though the task runs.
    status, _, answer = bob.raw("GET", f"/proxy/{task}/api/kernels")
    assert status == 503 and "is not ready yet" in answer.decode(), (status, answer)
    (walls.folder / "go").touch()
    wait_until(lambda: bob("GET", f"/api/v1/{kind}s/{task}")[kind]["state"] == "STATE_TERMINATED", 30, log)
    said = f"Unix user {ALICE}, the task runs as {BOB}"
    assert "another program has the port" in log() and said in log() and "hint: start it again" in log(), log()
    [allocation] = bob("GET", f"/api/v1/tasks/{task}")["task"]["allocations"]
    assert not allocation["isReady"], allocation
    walls.wait_for(thief, "taken")
    assert "told" not in walls.cluster.text(thief), walls.cluster.text(thief)
    walls.kill(thief)
