"""Kills the master that leads: how long until all agents are with the one that takes over.

    .venv/bin/python bench/takeover.py [--agents 5000] [--rounds 3] [--binary FILE] [--json FILE]

Two masters on one PostgreSQL server, and the simulated agents of bench/cluster.py, one slot each. They know both
masters, and connect again as real ones do: at once to the other master, then after pauses that double from 250 ms to
5 s. In each round the leader is killed with SIGKILL and started again, to stand by. The table has the seconds from the
kill until half of the agents, 99 % of them, and all were welcomed by the new leader. The target is 15 s; the exit code
is 1 if a round took longer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from _databases import Databases, databases
from cluster import Agent, Master, version_of

ROOT = Path(__file__).resolve().parent.parent
TARGET_S = 15.0
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
DEADLINE_S = 120.0
# Connections that are begun at a time when a bench starts.
AT_ONCE = 100


class Member:
    """A master of several, which is killed and started again."""

    def __init__(self, binary: Path, where: Databases, folder: Path, port: int) -> None:
        address = f"http://127.0.0.1:{port}"
        self._command = [str(binary), "master", "--port", str(port), "--proxy-port", str(port + 1)]
        self._command += ["--db", where.instep(), "--advertise", address]
        self._environment = {**os.environ, "XDG_DATA_HOME": str(folder / str(port))}
        self._log = folder / f"{port}.log"
        self.port = port
        self.start()

    def start(self) -> None:
        """Start it, and wait until it leads or stands by."""
        with self._log.open("w") as log:
            self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=log, env=self._environment)
        while not re.search("leading|standing by", text := self._log.read_text()):
            if self.process.poll() is not None:
                raise SystemExit(f"the master on port {self.port} has ended:\n{text}")
            time.sleep(0.02)

    def role(self) -> str:
        """What it says of itself."""
        with contextlib.suppress(OSError, RuntimeError):
            return str(json.loads(Master(self.port, 0).ask("GET", "/health"))["role"])
        return ""


class Returning(Agent):
    """An agent that goes from one master to the other."""

    masters: Sequence[Master]

    async def stay(self) -> None:
        """Connect again whenever the connection is lost."""
        turn, pause = 0, FIRST_PAUSE
        while True:
            self.master, before = self.masters[turn % len(self.masters)], self.welcomed
            with contextlib.suppress(OSError, EOFError, RuntimeError):
                await self.run()
            turn += 1
            if self.welcomed != before:
                turn, pause = self.masters.index(self.master) + 1, FIRST_PAUSE
            elif turn % len(self.masters) == 0:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)


async def until(condition: object, what: str) -> None:
    """Wait for something."""
    deadline = time.monotonic() + DEADLINE_S
    assert callable(condition)
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not after {DEADLINE_S:.0f} s")
        await asyncio.sleep(0.05)


async def measure(members: list[Member], token: str, version: str, count: int, rounds: int) -> list[dict[str, float]]:
    """Bring the agents to the leader, and kill it again and again."""
    masters = [Master(member.port, member.process.pid) for member in members]
    for master in masters:
        master.token = token
    agents = [Returning(masters[0], version, f"agent-{index:04}", 1, (10, 40)) for index in range(count)]
    running = []
    for index, agent in enumerate(agents):
        agent.masters = masters
        running.append(asyncio.create_task(agent.stay()))
        if index % AT_ONCE == AT_ONCE - 1:
            await until(lambda index=index: agents[index].welcomed[0], f"agent {index} is welcome")
    found = []
    for number in range(1, rounds + 1):
        await until(lambda: all(agent.welcomed[0] for agent in agents), "all agents are there")
        await until(lambda: sorted(member.role() for member in members) == ["leader", "standby"], "one master leads")
        [leader] = [member for member in members if member.role() == "leader"]
        [other] = [member for member in members if member is not leader]
        killed = time.monotonic()
        leader.process.kill()
        await until(lambda other=other: other.role() == "leader", "the other master leads")
        leads = time.monotonic() - killed
        await until(
            lambda killed=killed: all(agent.welcomed[1] > killed for agent in agents),
            "all agents are with the new leader",
        )
        times = sorted(agent.welcomed[1] - killed for agent in agents)
        memory = Master(other.port, other.process.pid).most_memory()
        found.append(
            {
                "round": number,
                "leads_s": leads,
                "half_s": times[len(times) // 2],
                "p99_s": times[len(times) * 99 // 100],
                "all_s": times[-1],
                "most_memory_mb": memory,
            }
        )
        print("  ".join(f"{name} {value:.2f}" for name, value in found[-1].items()), flush=True)
        leader.process.wait()
        await asyncio.to_thread(leader.start)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return found


@contextlib.contextmanager
def two_masters(binary: Path, folder: Path) -> Iterator[list[Member]]:
    """Run two masters on a new database; the first leads."""
    with databases("postgres", folder) as where:
        members: list[Member] = []
        try:
            for port in (28480, 28490):
                members.append(Member(binary, where, folder, port))
            yield members
        finally:
            for member in members:
                member.process.terminate()
                member.process.wait()


def main() -> None:
    """Measure, show a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "instep")
    parser.add_argument("--agents", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    # A connection takes a descriptor here, one at the leader, and three at a master that passes it on.
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if limit < 4 * options.agents:
        sys.exit(
            f"a process may have {limit} files here, {options.agents} agents need {4 * options.agents}\nhint: ulimit -n"
        )
    with tempfile.TemporaryDirectory() as folder, two_masters(options.binary, Path(folder)) as members:
        first = Master(members[0].port, 0)
        login = {"username": "admin", "password": "", "isHashed": True}
        token = json.loads(first.ask("POST", "/api/v1/auth/login", login))["token"]
        print(f"{options.agents} agents, two masters, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}")
        rounds = asyncio.run(measure(members, token, version_of(options.binary), options.agents, options.rounds))
    if options.json:
        options.json.write_text(
            json.dumps({"target_s": TARGET_S, "agents": options.agents, "rounds": rounds}, indent=2) + "\n"
        )
    if max(found["all_s"] for found in rounds) > TARGET_S:
        sys.exit(f"in some round it took longer than {TARGET_S:.0f} s until all agents were back")


if __name__ == "__main__":
    main()
