"""Ports for servers that tests start.

A port that is free now may be taken when the server starts: the kernel gives ports of its own range to every connection
of every test that runs meanwhile. So these lie below that range.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path

_KERNELS = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Above those that the launcher derives from the numbers of Slurm's jobs.
_LOWEST = 29_600


def free_ports(count: int) -> list[int]:
    """Choose ports that nobody uses, of those that the kernel gives to nobody."""
    candidates = range(_LOWEST, int(_KERNELS.read_text().split()[0]))
    # A seed of its own for each process: those of pytest-xdist share the global one.
    chosen = random.Random(os.urandom(8)).sample(candidates, len(candidates))
    found: list[int] = []
    for port in chosen:
        with contextlib.suppress(OSError), _listen(port):
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} free ports from {candidates.start} to {candidates.stop - 1}")


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def free_port() -> int:
    """Choose one such port."""
    return free_ports(1)[0]
