"""Thousands of strangers of many kinds against a job with a token, while it runs on two hosts.

INSTEP_STRANGERS says how many there are, 10,000 by default, which takes 6 minutes. They come from a third machine, to
every port of the job that can be reached from there: the launchers', and the ranks'.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from namespaces import Network, network

from conftest import Runner, Running, WaitUntil

__all__ = ["network"]

WITH_TOKEN = True
STEADY = Path(__file__).resolve().parent / "scripts" / "steady.py"
PORT = 29655
STRANGERS = int(os.environ.get("INSTEP_STRANGERS", "10000"))
STORE_HELLO = bytes.fromhex("00cef7853c")
# So many come at a time: some wait until a node reads what it never will.
AT_ONCE = 16
# Connections that strangers keep open at once, half of them in mid-message.
HELD = 400
GROWTH_LIMIT_MB = 50.0
# From linux/if_ether.h: every packet.
ETH_P_ALL = 3

Place = tuple[str, int]


class Recorder(threading.Thread):
    """Overhears what the nodes say first on each of their connections."""

    def __init__(self, interface: str) -> None:
        super().__init__(daemon=True)
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
        self._socket.bind((interface, 0))
        self._socket.settimeout(0.2)
        self.stopped = threading.Event()
        # By where it was said: everything that the one who connected sent, up to 4 KiB.
        self.said: dict[tuple[Place, Place], bytes] = {}

    def run(self) -> None:
        while not self.stopped.is_set():
            with contextlib.suppress(TimeoutError):
                self._hear(self._socket.recv(65536))
        self._socket.close()

    def _hear(self, packet: bytes) -> None:
        if packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
            return
        tcp = packet[(packet[0] & 15) * 4 : int.from_bytes(packet[2:4], "big")]
        source, target = struct.unpack("!HH", tcp[:4])
        said, flags = tcp[(tcp[12] >> 4) * 4 :], tcp[13]
        ends = (socket.inet_ntoa(packet[12:16]), source), (socket.inet_ntoa(packet[16:20]), target)
        if flags & 0x12 == 0x02:  # SYN alone: who sends it has connected
            self.said.setdefault(ends, b"")
        if ends in self.said and len(self.said[ends]) < 4096:
            self.said[ends] += said

    def recordings(self) -> list[tuple[Place, bytes]]:
        return [(target, said) for (_, target), said in self.said.items() if said]


def kinds(recordings: list[tuple[Place, bytes]], chance: random.Random) -> list[Callable[[Place], bytes]]:
    """What each kind says at a place; what it does then is up to `visit`."""
    noise = chance.randbytes
    recorded = {place: [said for where, said in recordings if where == place] for place, _ in recordings}
    anywhere = [said for _, said in recordings]
    overheard = lambda place: chance.choice(recorded.get(place) or anywhere)  # noqa: E731
    hello = {"hello": {"protocol": 5, "run_id": "steady", "version": "0", "launcher": 1, "address": "x", "process": 1}}
    query = {"contact": {"protocol": 5, "run_id": "steady", "claim": None}}
    key = b"/key"
    return [
        lambda _: noise(chance.randrange(1, 200)),  # garbage
        lambda _: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        lambda _: bytes.fromhex("16030100c8010000c40303") + noise(200),  # TLS
        lambda _: (
            STORE_HELLO + b"\x01" + struct.pack("<Q", len(key)) + key + struct.pack("<Q", 1 << 20) + noise(1 << 20)
        ),
        lambda _: json.dumps(hello).encode() + b"\n",
        lambda _: json.dumps(query).encode() + b"\n",
        lambda _: b"N" + noise(48) + noise(18),  # another token
        lambda _: b"N" + noise(20),  # half a hello
        overheard,  # a replay, all of it
        lambda place: overheard(place)[:67],  # a replay of the opening
        lambda place: overheard(place)[:-1] + b"\x00",  # a replay that was changed
        lambda _: b"{" + b"x" * (2 << 20),  # a line without an end
        lambda _: b"",  # nothing at all
    ]


def visit(place: Place, words: bytes, held: list[socket.socket], chance: random.Random) -> None:
    """Connect and say it: at once, or byte by byte; close, or stay until others have come in its place."""
    stranger = socket.socket()
    stranger.settimeout(2)
    with contextlib.suppress(OSError):
        stranger.connect(place)
        if chance.random() < 0.2:
            for byte in words[:8]:
                stranger.sendall(bytes([byte]))
        else:
            stranger.sendall(words)
    if chance.random() < 0.5:
        stranger.close()
        return
    held.append(stranger)
    if len(held) > HELD // AT_ONCE:
        held.pop(0).close()


def come(first: int, network: Network, recordings: list[tuple[Place, bytes]], places: list[Place]) -> None:
    """One of those that come at a time: every kind to every place."""
    # Elsewhere they would not compute on the cores of the job.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    chance = random.Random(first)
    said, held = kinds(recordings, chance), []
    with network.nodes[2].entered():
        for number in range(first, STRANGERS, AT_ONCE):
            turn = number // AT_ONCE
            place = places[turn % len(places)]
            visit(place, said[turn // len(places) % len(said)](place), held, chance)
    for stranger in held:
        stranger.close()


@contextlib.contextmanager
def overheard(network: Network) -> Iterator[list[Recorder]]:
    recorders = []
    try:
        for node in network.nodes[:2]:
            with node.entered():
                recorders.append(Recorder(node.interface))
            recorders[-1].start()
        yield recorders
    finally:
        for recorder in recorders:
            recorder.stopped.set()
            recorder.join()


def resident_mb(job: list[Running]) -> dict[int, float]:
    processes = [psutil.Process(running.pid) for running in job]
    processes += [child for running in job for child in running.children() if "steady.py" in " ".join(child.cmdline())]
    return {process.pid: process.memory_info().rss / 2**20 for process in processes}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("network", [3], indirect=True)
def test_strangers_neither_join_nor_disturb_a_job_with_a_token(
    network: Network, instep: Path, python: Path, run: Runner, tmp_path: Path, wait_until: WaitUntil
) -> None:
    environment = {"PYTHON_EXEC": str(python), "OMP_NUM_THREADS": "1"}
    endpoint = f"{network.nodes[0].ipv4}:{PORT}"
    words = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=steady"]
    words += [f"--events={tmp_path / 'events'}", STEADY, tmp_path]
    with overheard(network) as recorders:
        job = [node.start(run, instep, "run", *map(str, words), env=environment) for node in network.nodes[:2]]
        wait_until(lambda: len(list(tmp_path.glob("*.ready"))) == 2, 120, lambda: job[0].stderr + job[1].stderr)
    recordings = [recording for recorder in recorders for recording in recorder.recordings()]
    hosts = [node.ipv4 for node in network.nodes[:2]]
    assert any(said.startswith(b"N") for _, said in recordings), recordings
    loopback = {"127.0.0.1", "::1"}
    found = [{port for at, port in node.listeners() if at not in loopback} for node in network.nodes[:2]]
    places = [(host, port) for host, ports in zip(hosts, found, strict=True) for port in sorted(ports)]
    assert (hosts[0], PORT) in places and len(places) >= 3, "the launcher and both ranks"

    # Steps to compare with: the first ones are slow.
    time.sleep(5)
    before, quiet_until = resident_mb(job), time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as strangers:
        visits = [strangers.submit(come, first, network, recordings, places) for first in range(AT_ONCE)]
        for one in visits:
            one.result()
    visited_until = time.monotonic()
    after = resident_mb(job)
    (tmp_path / "end").touch()
    for running in job:
        running.wait(60).expect(0)

    steps = json.loads((tmp_path / "0.steps").read_text())
    quiet = [seconds for began, seconds in steps if began < quiet_until]
    disturbed = [seconds for began, seconds in steps if quiet_until <= began < visited_until]
    growth = max(after[process] - before.get(process, 0.0) for process in after)
    figures = f"{STRANGERS} strangers in {visited_until - quiet_until:.0f} s at {len(places)} ports: median step "
    figures += (
        f"{statistics.median(quiet) * 1e3:.1f} ms before, {statistics.median(disturbed) * 1e3:.1f} ms meanwhile; "
    )
    print(figures + f"largest growth {growth:.1f} MB")
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert sum(event["event"] == "node_joined" for event in events) == 2, "nobody else joined"
    assert sum(event["event"] == "round_started" for event in events) in (1, 2), "and nothing was restarted"
    assert growth <= GROWTH_LIMIT_MB, figures
    assert statistics.median(disturbed) <= statistics.median(quiet) * 1.1, figures
