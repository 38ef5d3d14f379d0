"""What tests of faults need: a script that can be held, the processes of a task, and a network that can be cut."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from conftest import Running

from .conftest import CONTEXTS, TERMINAL, Cluster, rows

CONTEXT = CONTEXTS / "faults"
STEPS = 12
MOMENTS = ("training", "saving", "ending")
# What the script reports, however often it was interrupted.
SERIES = {step: sum(range(step + 1)) for step in range(1, STEPS + 1)}


class Work:
    """An experiment with the script of `contexts/faults` and a folder to watch and steer it."""

    def __init__(self, cluster: Cluster, folder: Path, python: Path) -> None:
        self.cluster = cluster
        self.watch = folder / "watch"
        self.watch.mkdir()
        self.folder = folder
        self.python = python
        self._agents: list[Running] = []
        self.number = 0

    def agent(self, name: str = "one", slots: int = 1, master: str | None = None) -> Running:
        """Start an agent, or start it again."""
        self._agents.append(self.cluster.agent(name, slots, python=self.python, master=master))
        return self._agents[-1]

    def end(self, agent: Running, how: signal.Signals) -> None:
        """End an agent. Its tasks hold its output open, so that is not waited for."""
        agent.send_signal(how)
        self.cluster.wait_until(lambda: agent.poll() is not None, 30, "the agent to end")

    def begin(self, *held: str, script: str = "steady.py", variables: tuple[str, ...] = (), **more: object) -> None:
        """Create the experiment; it is held at these moments."""
        for moment in held:
            (self.watch / f"hold-{moment}").touch()
        environment = {"environment_variables": [f"WATCH={self.watch}", *variables]}
        config = self.cluster.config(f"python3 {script}", **{"environment": environment, "max_restarts": 0, **more})
        content = base64.b64encode((CONTEXT / script).read_bytes()).decode()
        file = {"path": script, "type": 48, "content": content, "mtime": "0", "mode": 0o644, "uid": 0, "gid": 0}
        request = {"config": json.dumps(config), "activate": True, "modelDefinition": [file]}
        self.number = int(self.cluster.api("POST", "/api/v1/experiments", request)["experiment"]["id"])

    def wait_for(self, moment: str) -> None:
        """Wait until the script is held."""
        reached = self.watch / f"reached-{moment}"

        def is_there() -> bool:
            state = self.cluster.experiment(self.number)["state"]
            assert state not in TERMINAL, f"{state} before {moment}\n{self.log()}"
            return reached.exists()

        self.cluster.wait_until(is_there, 60, lambda: f"the script to be {moment}\n{self.log()}")

    def release(self, moment: str) -> None:
        """Let the script go on, or the next run pass by."""
        (self.watch / f"hold-{moment}").unlink()

    def log(self) -> str:
        """Everything in the logs of the trials."""
        lines = [
            line["message"] for trial in self.cluster.trials(self.number) for line in self.cluster.logs(trial["id"])
        ]
        return "".join(line for line in lines if "New trial runner" not in line)

    def runs(self) -> list[str]:
        """Where the runs of the script began, as `TRIAL STEP`."""
        path = self.watch / "runs"
        return path.read_text().splitlines() if path.exists() else []

    def check(self, trials: int = 1, restarts: int | None = 0) -> None:
        """Wait for the end: every trial and every metric is there, nothing ran twice, nothing is left."""
        self.cluster.wait_for(self.number, "STATE_COMPLETED")
        found = self.cluster.trials(self.number)
        assert [trial["state"] for trial in found] == ["STATE_COMPLETED"] * trials
        if restarts is not None:
            assert [trial["restarts"] for trial in found] == [restarts] * trials, self.log()
        for trial in found:
            reported = rows(self.cluster.api, trial["id"], "training")
            assert {step: row["x"] for step, row in reported.items()} == SERIES, self.log()
            last = rows(self.cluster.api, trial["id"], "validation")
            assert {step: row["x"] for step, row in last.items()} == {STEPS: SERIES[STEPS]}
        assert not (self.watch / "twice").exists()
        self.cluster.wait_until(lambda: not self.left(), 20, lambda: f"processes to end: {self.left()}")
        shares = list(self.folder.glob("*/shares"))
        self.cluster.wait_until(lambda: not any(any(path.iterdir()) for path in shares), 20, "folders to be removed")

    def left(self) -> list[str]:
        """Processes of tasks that still run."""
        left = []
        for agent in self._agents:
            for process in agent.left_behind():
                with contextlib.suppress(psutil.Error):
                    left.append(" ".join(process.cmdline()))
        return left

    def shares(self, agent: str = "one") -> Path:
        """Where an agent keeps what it runs."""
        return self.folder / agent / "shares"

    def guardian(self, agent: str = "one") -> psutil.Process | None:
        """The outer `instep task` on an agent."""
        return next((task for task in self._tasks(agent) if "--supervise-for" not in task.cmdline()), None)

    def supervisor(self, agent: str = "one") -> psutil.Process | None:
        """The inner one."""
        return next((task for task in self._tasks(agent) if "--supervise-for" in task.cmdline()), None)

    def worker(self, agent: str = "one") -> psutil.Process | None:
        """What runs the script, or is about to; not what was killed and has yet to be buried."""
        with contextlib.suppress(psutil.Error):
            if supervisor := self.supervisor(agent):
                living = (child for child in supervisor.children() if child.status() != psutil.STATUS_ZOMBIE)
                return next(living, None)
        return None

    def _tasks(self, agent: str) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if words[1:2] == ["task"] and words[2].startswith(str(self.shares(agent))):
                    yield process


class Relay:
    """Stands before a server, and can stop to forward: a network that is cut says nothing."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._connected = threading.Event()
        self._connected.set()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._is_closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Forward nothing from now on."""
        self._connected.clear()

    def mend(self) -> None:
        """Forward again; connections of before are gone, with what was under way."""
        self.drop()
        self._connected.set()

    def drop(self) -> None:
        """End all connections."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

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
        self._connected.wait()
        try:
            ours = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            theirs.close()
            return
        if not self._keep(ours):
            return
        for source, sink, is_request in ((theirs, ours, True), (ours, theirs, False)):
            with contextlib.suppress(OSError):  # dropped already
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._copy, args=(source, sink, is_request), daemon=True).start()

    def _keep(self, one: socket.socket) -> bool:
        """Note a connection that is to end with us; it ends at once where we have ended."""
        with self._lock:
            if not self._is_closed:
                self._sockets.append(one)
                return True
        one.close()
        return False

    def _copy(self, source: socket.socket, sink: socket.socket, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._connected.wait()
                if not self._forward(sink, data, is_request):
                    break
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _forward(self, sink: socket.socket, data: bytes, is_request: bool) -> bool:  # noqa: ARG002
        """Pass something on, and say whether the connection goes on."""
        sink.sendall(data)
        return True
