"""A PostgreSQL server, several masters on it, and those who report to them without a pause."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from conftest import Runner, Running
from detached import postgres
from detached.conftest import Client
from detached.postgres import Postgres
from ports import free_ports

# Longer than a lease lasts, on a loaded machine.
TAKEOVER_S = 45.0


@dataclass
class Member:
    """One of the masters."""

    name: str
    address: str
    start: Callable[[], Running]
    process: Running

    @property
    def client(self) -> Client:
        """A client without a token."""
        return Client(self.address)

    def health(self) -> dict[str, Any]:
        """What it says of itself; nothing if it says nothing."""
        try:
            status, _, answer = self.client.raw("GET", "/health")
        except (OSError, http.client.HTTPException):
            return {}
        return {**json.loads(answer), "code": status}

    def leads(self) -> bool:
        """Whether it says so."""
        return self.health().get("role") == "leader"

    def follows(self, other: Member) -> bool:
        """Whether it passes requests on to another."""
        found = self.health()
        return found.get("role") == "standby" and found.get("leader") == other.address

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.process.pid, number)


class Masters:
    """Masters of one schema, each with files of its own, as on machines of their own."""

    def __init__(self, run: Runner, instep: Path, folder: Path, place: str, wait_until: Callable[..., None]) -> None:
        self._run = run
        self._instep = instep
        self.folder = folder
        self.place = place
        self.wait_until = wait_until
        self.members: list[Member] = []

    def start(self, *options: str, scheme: str = "http") -> Member:
        """Start one more, and wait until it answers."""
        port, tasks = free_ports(2)
        name, address = f"m{len(self.members)}", f"{scheme}://127.0.0.1:{port}"
        words = ("--port", str(port), "--proxy-port", str(tasks), "--db", self.place, "--advertise", address, *options)

        def start() -> Running:
            environment = {"XDG_DATA_HOME": str(self.folder / name), "HOME": str(self.folder)}
            return self._run.start(self._instep, "master", *words, env=environment)

        member = Member(name, address, start, start())
        self.members.append(member)
        if scheme == "http":
            self.wait_until(lambda: member.health().get("code") == 200, 60, self.told)
        else:
            # Who it follows is asked by a client that trusts it.
            self.wait_until(lambda: re.search("leading|standing by", member.process.stderr), 60, member.process.stderr)
        return member

    def leader(self, seconds: float = TAKEOVER_S) -> Member:
        """The one that leads, when all that run agree."""
        found: list[Member] = []

        def agreed() -> bool:
            running = [member for member in self.members if member.process.poll() is None]
            found[:] = [member for member in running if member.leads()]
            return len(found) == 1 and all(member is found[0] or member.follows(found[0]) for member in running)

        self.wait_until(agreed, seconds, lambda: self.told())
        return found[0]

    def told(self) -> str:
        """What all of them say, for a test that fails."""
        parts = (f"{each.name} {each.health()}\n{each.process.stderr[-3000:]}" for each in self.members)
        return "all masters to agree who leads:\n" + "\n".join(parts)


@dataclass
class Reporter:
    """Reports points and lines, each batch until it is acknowledged, as `instep.core` does."""

    address: str
    token: str
    trial: int
    number: int
    acknowledged: int = 0
    times: list[float] = field(default_factory=list)
    repeated: int = 0
    errors: list[str] = field(default_factory=list)

    def batch(self, sequence: int) -> bytes:
        """Give a batch: one point and one line that no other has."""
        inner = {"trialId": self.trial, "trialRunId": 1, "stepsCompleted": sequence, "reportTime": None}
        metrics = {"avgMetrics": {"x": float(sequence)}, "batchMetrics": None}
        return json.dumps(
            {
                "reporter": f"reporter-{self.number}",
                "sequence": sequence,
                "reports": [{"group": f"g{self.number}", "metrics": {**inner, "metrics": metrics}}],
                "logs": [{"log": f"line {self.number} {sequence}\n"}],
            }
        ).encode()

    def run(self, stop: threading.Event) -> None:
        """Report until it is told to stop, and never leave one out."""
        client = Client(self.address, self.token)
        for sequence in itertools.count(1):
            if stop.is_set():
                return
            while True:
                try:
                    status, _, answer = client.raw("POST", f"/api/v1/trials/{self.trial}/reports", self.batch(sequence))
                except (OSError, http.client.HTTPException):
                    status, answer = 0, b""
                if status == 200:
                    break
                if status not in (0, 502, 503):
                    self.errors.append(f"{status} {answer!r}")
                    return
                self.repeated += 1
                time.sleep(0.05)
            self.acknowledged = sequence
            self.times.append(time.monotonic())
            time.sleep(0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A PostgreSQL server for a file of tests."""
    with postgres.running() as found:
        yield found


@pytest.fixture
def masters(
    run: Runner, instep: Path, tmp_path: Path, server: Postgres, wait_until: Callable[..., None]
) -> Iterator[Masters]:
    """Masters of a schema of their own; those that are stopped are let go at the end."""
    made = Masters(run, instep, tmp_path, f"{server.address}?schema={tmp_path.name}", wait_until)
    yield made
    for member in made.members:
        if member.process.poll() is None:
            member.signal(signal.SIGCONT)
