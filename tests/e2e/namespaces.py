"""Several machines on one: network namespaces joined by a switch, with links that can be cut.

Each node has a namespace of its own with one interface, `node<i>`, at 10.77.0.<i + 1> and fd77::<i + 1>. The switch is
a bridge in a further namespace, so that nothing of it shows on the machine itself. File system, process ids and the
host name are shared: that host name resolves to loopback, so gloo has to be told the interface.

Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import Runner, Running

# From linux/sched.h.
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Node:
    """One machine."""

    namespace: str
    interface: str
    ipv4: str
    ipv6: str

    def start(
        self, run: Runner, *command: str | Path, env: Mapping[str, str | None], cwd: Path | None = None
    ) -> Running:
        """Start a command there; the process that `Running` knows is the command itself."""
        environment = {**env, "GLOO_SOCKET_IFNAME": self.interface}
        return run.start("ip", "netns", "exec", self.namespace, *command, env=environment, cwd=cwd)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Be there: what this thread starts and connects to meanwhile is there, and stays there."""
        with Path("/proc/thread-self/ns/net").open() as before, Path("/run/netns", self.namespace).open() as inside:
            move_to(inside.fileno())
            try:
                yield
            finally:
                move_to(before.fileno())

    def listeners(self, process: int | None = None) -> set[tuple[str, int]]:
        """Addresses and ports that are listened on there, by one process or any."""
        table = ip(
            "netns", "exec", self.namespace, "ss", "--listening", "--tcp", "--numeric", "--processes", "--no-header"
        )
        found = set()
        for line in table.splitlines():
            if process is None or f"pid={process}," in line:
                address, _, port = line.split()[3].rpartition(":")
                found.add((address.strip("[]"), int(port)))
        return found


class Network:
    """The switch and the nodes at its ports."""

    def __init__(self, nodes: int) -> None:
        self._name = f"instep-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._switch = f"{self._name}-switch"
        self.nodes = [
            Node(f"{self._name}-{number}", f"node{number}", f"10.77.0.{number + 1}", f"fd77::{number + 1:x}")
            for number in range(nodes)
        ]

    def create(self) -> None:
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "bridge", "up")
        for node in self.nodes:
            ip("netns", "add", node.namespace)
            ip("-n", node.namespace, "link", "set", "lo", "up")
            ends = ("link", "add", node.interface, "type", "veth", "peer", "name", node.interface)
            ip("-n", node.namespace, *ends, "netns", self._switch)
            ip("-n", self._switch, "link", "set", node.interface, "master", "bridge", "up")
            ip("-n", node.namespace, "address", "add", f"{node.ipv4}/24", "dev", node.interface)
            # Without the search for duplicates, which would delay the address.
            ip("-n", node.namespace, "address", "add", f"{node.ipv6}/64", "dev", node.interface, "nodad")
            ip("-n", node.namespace, "link", "set", node.interface, "up")

    def forget_ipv4(self) -> None:
        """Leave every node its IPv6 address alone."""
        for node in self.nodes:
            ip("-n", node.namespace, "address", "delete", f"{node.ipv4}/24", "dev", node.interface)

    def cut_link(self, node: Node) -> None:
        """Pull the cable of one node out of the switch; nobody is told."""
        ip("-n", self._switch, "link", "set", node.interface, "nomaster")

    def mend_link(self, node: Node) -> None:
        """Put the cable back."""
        ip("-n", self._switch, "link", "set", node.interface, "master", "bridge")

    def take_down(self, node: Node) -> None:
        """Switch a node's interface off: the node itself knows that it has none."""
        ip("-n", node.namespace, "link", "set", node.interface, "down")

    def bring_up(self, node: Node) -> None:
        """Switch it on again; the kernel has forgotten its IPv6 address meanwhile."""
        ip("-n", node.namespace, "link", "set", node.interface, "up")
        ip("-n", node.namespace, "address", "replace", f"{node.ipv6}/64", "dev", node.interface, "nodad")

    def take_port_down(self, node: Node) -> None:
        """Switch the port off that a node's cable is in: the node sees that there is no carrier."""
        ip("-n", self._switch, "link", "set", node.interface, "down")

    def bring_port_up(self, node: Node) -> None:
        """Switch it on again."""
        ip("-n", self._switch, "link", "set", node.interface, "up")

    def remove(self) -> None:
        # Deleting a namespace deletes its interfaces, once the last process in it has ended.
        for namespace in (*(node.namespace for node in self.nodes), self._switch):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def move_to(namespace: int) -> None:
    """Move this thread to the network of an open namespace; os.setns came with Python 3.12."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "setns")


def ip(*words: str) -> str:
    """Run iproute2; a failure shows what it said."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"ip {' '.join(words)}: {done.stderr.strip()}", pytrace=True)
    return done.stdout


@pytest.fixture
def network(request: pytest.FixtureRequest, run: Runner) -> Iterator[Network]:
    """Two machines, or as many as the test says.

    Asks for `run` so that whatever runs in them has ended when they are taken down.
    """
    made = Network(nodes=getattr(request, "param", 2))
    try:
        made.create()
        yield made
    finally:
        run.kill_all()
        made.remove()
