"""Hosts for `instep bench collectives --hosts`: network namespaces of this machine, with a cable each to one switch.

The switch is a bridge, in a namespace of its own so that nothing of it shows on the machine; with a delay it is our own
`relay`. Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from instep.bench.reports import Refusal

PORT = 29577
HINT = "this needs root and iproute2; on real hosts, run it on each of them with --nnodes and --node-rank"
# What tbf lets through at once, and how long it holds back what is more.
BURST, HOLD = "1mb", "20ms"
# From linux/sched.h.
CLONE_NEWNET = 0x40000000
PINGS = 25
PING_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0


class Hosts:
    """Namespaces at a switch."""

    def __init__(self, count: int, rate: str | None, delay_us: float) -> None:
        self._name = f"instep-bench-{os.getpid()}"
        self.count = count
        self._switch = f"{self._name}-switch"
        self._rate = rate
        self._delay_us = delay_us
        self._relay: subprocess.Popen[bytes] | None = None

    def namespace(self, number: int) -> str:
        """The name of a host's network."""
        return f"{self._name}-{number}"

    def create(self) -> None:
        """Make them and connect them."""
        ip("netns", "add", self._switch)
        if not self._delay_us:
            ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", self._switch, "link", "set", "bridge", "up")
        for number in range(self.count):
            self._connect(number)
        if self._delay_us:
            self._start_relay()

    def _connect(self, number: int) -> None:
        name, interface = self.namespace(number), interface_of(number)
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
        ends = ("link", "add", interface, "type", "veth", "peer", "name", interface)
        ip("-n", name, *ends, "netns", self._switch)
        bridge = () if self._delay_us else ("master", "bridge")
        ip("-n", self._switch, "link", "set", interface, *bridge, "up")
        ip("-n", name, "address", "add", f"{address_of(number)}/16", "dev", interface)
        ip("-n", name, "link", "set", interface, "up")
        if self._rate is not None:
            limit = ("root", "tbf", "rate", self._rate, "burst", BURST, "latency", HOLD)
            ip("netns", "exec", name, "tc", "qdisc", "add", "dev", interface, *limit)

    def _start_relay(self) -> None:
        interfaces = [interface_of(number) for number in range(self.count)]
        words = [sys.executable, "-m", "instep.bench.relay", str(self._delay_us), *interfaces]
        package_parent = str(Path(__file__).resolve().parents[2])
        search_path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), package_parent])
        self._relay = subprocess.Popen(
            ["ip", "netns", "exec", self._switch, *words],
            env={**os.environ, "PYTHONPATH": search_path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._relay.stdout is not None
        if self._relay.stdout.readline() != b"ready\n":
            said = self._relay.communicate()[1].decode(errors="replace").strip()
            raise Refusal(f"the relay that delays packets does not start: {said[-400:]}", HINT)

    def one_way_s(self) -> float:
        """What a packet takes from one host to another: half of a round trip, in the median."""
        if self.count < 2:
            return 0.0
        with self._datagrams(0) as here, self._datagrams(1) as there:
            times = []
            for _ in range(PINGS):
                began = time.perf_counter()
                here.sendto(b"ping", there.getsockname())
                there.sendto(*there.recvfrom(16))
                here.recv(16)
                times.append((time.perf_counter() - began) / 2)
        return statistics.median(times)

    @contextlib.contextmanager
    def _datagrams(self, number: int) -> Iterator[socket.socket]:
        """A socket that lives on a host."""
        with (
            Path("/proc/thread-self/ns/net").open() as before,
            Path("/run/netns", self.namespace(number)).open() as host,
        ):
            move_to(host.fileno())
            try:
                found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            finally:
                move_to(before.fileno())
        with found:
            found.settimeout(PING_TIMEOUT_S)
            found.bind((address_of(number), 0))
            yield found

    def remove(self) -> None:
        """Take them down; their interfaces go with them."""
        if self._relay is not None:
            self._relay.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._relay.communicate(timeout=STOP_TIMEOUT_S)
        for name in (*map(self.namespace, range(self.count)), self._switch):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def refuse_where_there_can_be_none(count: int) -> None:
    """Find what is missing before anything is made."""
    if os.geteuid() != 0:
        raise Refusal(f"cannot create {count} network namespaces: this is not root", HINT)
    if shutil.which("ip") is None:
        raise Refusal(f"cannot create {count} network namespaces: `ip` is not on PATH", HINT)


def interface_of(number: int) -> str:
    """Of a host, and of the switch where that host's cable is in."""
    return f"host{number}"


def address_of(number: int) -> str:
    """Of a host."""
    return f"10.79.{number // 250}.{number % 250 + 1}"


def move_to(namespace: int) -> None:
    """Move this thread to the network of an open namespace; os.setns came with Python 3.12."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise Refusal(f"cannot enter a network namespace: {os.strerror(number)}", HINT)


def ip(*words: str) -> None:
    """Run iproute2; a failure shows what it said."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refusal(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}", HINT)
