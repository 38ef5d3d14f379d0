"""Loads a master with many agents and a long queue: 200 agents with 8 slots each, 5,000 trials.

    .venv/bin/python bench/cluster.py [--agents 200] [--slots 8] [--trials 5000] [--seconds 60] [--db postgres]
        [--json FILE]

The agents are simulated by this script, but speak the real protocol over real websockets (crates/api/src/link.rs):
they say hello, answer every order to start with `started`, and after a while with `exited`. No task runs. The trials
are those of 100 experiments that need 1 to 64 slots each. The table shows what the master says of itself at /metrics
while trials end and others take their slots: the time of its scheduling passes, how many there were, how many
allocations waited; and how long the answer to one request took meanwhile. Every job that waits must say why.

The target is a pass of 50 ms; the exit code is 1 if the median of the passes seen is above it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import http.client
import json
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _databases import ENGINES, databases

ROOT = Path(__file__).resolve().parent.parent
TARGET_MS = 50.0
EXPERIMENTS = 100
SIZES = (1, 1, 2, 4, 8, 8, 16, 64)
# Between two looks at /metrics.
LOOK = 0.25


class Master:
    """A running master."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid
        self.token = ""

    def most_memory(self) -> float:
        """The most memory that its process had at a time, in MB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found
        return int(found[1]) / 1000

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        """One request, which must succeed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {text.decode(errors='replace')[:500]}")
        return text

    def figures(self) -> dict[str, float]:
        """What it says of itself at /metrics."""
        lines = self.ask("GET", "/metrics").decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("instep_") and "{" not in line)
        return {name: float(value) for name, value in pairs}


@contextlib.contextmanager
def serve(binary: Path, folder: str, engine: str) -> Iterator[Master]:
    """Run a master on a new database."""
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(databases(engine, Path(folder)))
        command = [str(binary), "master", "--port", "0", "--db", where.instep()]
        # What belongs to a database in PostgreSQL lies in the user's data folder.
        environment = {**os.environ, "XDG_DATA_HOME": folder}
        process = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        )
        assert process.stdout is not None
        found = re.search(r":(\d+) ", process.stdout.readline())
        assert found
        master = Master(int(found[1]), process.pid)
        login = {"username": "admin", "password": "", "isHashed": True}
        master.token = json.loads(master.ask("POST", "/api/v1/auth/login", login))["token"]
        try:
            yield master
        finally:
            process.terminate()


def reasons(master: Master) -> dict[str, int]:
    """Look at the queue: how many jobs wait, and what kinds of reasons they have."""
    jobs = json.loads(master.ask("GET", "/api/v1/job-queues?resourcePool=default&limit=1000"))["jobs"]
    waiting = [job for job in jobs if job["allocatedSlots"] < job["requestedSlots"]]
    silent = [job["name"] for job in waiting if not job["reason"].startswith("waiting: ")]
    if silent:
        raise RuntimeError(f"{len(silent)} of {len(waiting)} jobs wait and do not say why: {silent[:5]}")
    return {"jobs": len(jobs), "jobs_waiting": len(waiting)}


def version_of(binary: Path) -> str:
    """The version of instep that agents must have."""
    return subprocess.run([binary, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]


class Agent:
    """A simulated agent: one websocket, no tasks."""

    def __init__(self, master: Master, version: str, name: str, slots: int, hold: tuple[float, float]) -> None:
        self.master = master
        self.version = version
        self.name = name
        self.slots = slots
        self.hold = hold
        self.started = 0
        # By which master, and when.
        self.welcomed = (0, 0.0)
        self._writer: asyncio.StreamWriter | None = None
        self._ends: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Connect, say hello, obey."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.master.port)
        self._writer = writer
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(
            (
                "GET /api/v1/agents/link HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
                f"Authorization: Bearer {self.master.token}\r\n\r\n"
            ).encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(f"the master does not take agents: {head.decode(errors='replace')}")
        devices = [{"id": slot, "kind": "cpu", "brand": "simulated", "uuid": ""} for slot in range(self.slots)]
        self.say(
            {
                "type": "hello",
                "protocol": 1,
                "version": self.version,
                "agent": self.name,
                "pool": "",
                "addresses": ["127.0.0.1"],
                "devices": devices,
                "shares": [],
            }
        )
        pinging = asyncio.create_task(self._ping())
        try:
            while True:
                self.obey(json.loads(await self._hear(reader)))
        finally:
            pinging.cancel()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(5)
            self._send(0x9, b"")

    async def _hear(self, reader: asyncio.StreamReader) -> bytes:
        """The next text; other frames are passed over."""
        while True:
            first, second = await reader.readexactly(2)
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", await reader.readexactly(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", await reader.readexactly(8))
            payload = await reader.readexactly(length)
            if first == 0x81:
                return payload
            if first & 0x0F == 0x8:
                raise RuntimeError(f"{self.name}: the master closed the connection: {payload!r}")

    def _send(self, kind: int, payload: bytes) -> None:
        assert self._writer is not None
        # The mask of zeros leaves the payload as it is.
        size = bytes([0x80 | len(payload)]) if len(payload) < 126 else bytes([0xFE]) + struct.pack("!H", len(payload))
        if len(payload) > 0xFFFF:
            size = bytes([0xFF]) + struct.pack("!Q", len(payload))
        self._writer.write(bytes([0x80 | kind]) + size + bytes(4) + payload)

    def say(self, report: dict[str, Any]) -> None:
        """Send a report."""
        self._send(0x1, json.dumps(report).encode())

    def obey(self, order: dict[str, Any]) -> None:
        """Do what an order asks for, without doing it."""
        if order["type"] == "refused":
            # All the others would be, too.
            raise SystemExit(f"{self.name} is refused: {order['why']}")
        if order["type"] == "welcome":
            self.welcomed = (self.master.port, time.monotonic())
        if order["type"] == "start":
            self.started += 1
            self.say({"type": "started", "share": order["share"]})
            self._end(order["share"], random.uniform(*self.hold), {"kind": "code", "code": 0})
        elif order["type"] == "stop":
            self._end(order["share"], 0.0, {"kind": "killed"})

    def _end(self, share: dict[str, str], after: float, how: dict[str, Any]) -> None:
        name = share["resources"]
        if name in self._ends:
            self._ends.pop(name).cancel()

        async def end() -> None:
            await asyncio.sleep(after)
            self._ends.pop(name, None)
            self.say({"type": "exited", "share": share, "exit": how})

        self._ends[name] = asyncio.create_task(end())


def submit(master: Master, trials: int) -> None:
    """Make experiments that together want so many trials at once."""
    for index in range(EXPERIMENTS):
        count = trials // EXPERIMENTS + (1 if index < trials % EXPERIMENTS else 0)
        config = {
            "name": f"load {index}",
            "entrypoint": "true",
            "searcher": {"name": "random", "metric": "loss", "max_trials": count, "max_concurrent_trials": 0},
            "resources": {"slots_per_trial": SIZES[index % len(SIZES)], "priority": 1 + (index * 7) % 99},
            "hyperparameters": {"x": {"type": "double", "minval": 0, "maxval": 1}},
        }
        master.ask("POST", "/api/v1/experiments", {"config": json.dumps(config), "activate": True})


async def measure(master: Master, agents: list[Agent], trials: int, seconds: float) -> dict[str, Any]:
    """Let everything run, and look at it."""
    running = [asyncio.create_task(agent.run()) for agent in agents]
    began = time.perf_counter()
    await asyncio.to_thread(submit, master, trials)
    submitted = time.perf_counter() - began
    passes: list[float] = []
    waiting: list[float] = []
    answers: list[float] = []
    count = -1.0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        asked = time.perf_counter()
        figures = await asyncio.to_thread(master.figures)
        answers.append((time.perf_counter() - asked) * 1000)
        if figures["instep_scheduling_passes_total"] != count:
            count = figures["instep_scheduling_passes_total"]
            passes.append(figures["instep_scheduling_pass_last_seconds"] * 1000)
        waiting.append(figures["instep_allocations_waiting"])
        for task in running:
            if task.done():
                task.result()
        await asyncio.sleep(LOOK)
    result = {
        "submitting_s": submitted,
        "passes": count,
        "passes_seen": len(passes),
        "pass_median_ms": statistics.median(passes),
        "pass_longest_ms": figures["instep_scheduling_pass_longest_seconds"] * 1000,
        "most_waiting": max(waiting),
        "started_shares": sum(agent.started for agent in agents),
        "answer_median_ms": statistics.median(answers),
        "answer_p99_ms": sorted(answers)[len(answers) * 99 // 100],
        "answer_slowest_ms": max(answers),
        "most_memory_mb": master.most_memory(),
        **await asyncio.to_thread(reasons, master),
    }
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return result


def main() -> None:
    """Measure, show a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "instep")
    parser.add_argument("--db", choices=ENGINES, default="sqlite", help="what the master keeps its data in")
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--trials", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument(
        "--hold", type=float, nargs=2, default=(10, 40), metavar=("FROM", "TO"), help="a task's seconds"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serve(arguments.binary, folder, arguments.db) as master:
        version = version_of(arguments.binary)
        agents = [
            Agent(master, version, f"agent-{index:03}", arguments.slots, tuple(arguments.hold))
            for index in range(arguments.agents)
        ]
        result = asyncio.run(measure(master, agents, arguments.trials, arguments.seconds))
    print(
        f"{arguments.agents} agents with {arguments.slots} slots, {arguments.trials} trials of {EXPERIMENTS} "
        f"experiments, on {arguments.db}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}"
    )
    for name, value in result.items():
        print(f"  {name:<20} {value:10.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"target_ms": TARGET_MS, **result}, indent=2) + "\n")
    if result["pass_median_ms"] > TARGET_MS:
        sys.exit(f"half of the passes took longer than {TARGET_MS:.0f} ms")


if __name__ == "__main__":
    main()
