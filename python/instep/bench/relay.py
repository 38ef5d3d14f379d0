"""A switch that takes its time: hands frames between the cables that are plugged into it, each after the same delay.

    python -m instep.bench.relay DELAY_US INTERFACE INTERFACE ...

Says `ready` when it listens, and ends with whoever started it. It learns which address is behind which cable, as
switches do, and keeps the order of frames. The kernel's own way to delay packets (netem) is not built everywhere.

Frames come and go with the kernel's notes about them (PACKET_VNET_HDR): what was left to the card, checksums and the
cutting of large frames, is then left to the next one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import sys
import time
from collections import deque

# From linux/if_packet.h, linux/if_ether.h and linux/prctl.h.
SOL_PACKET = 263
PACKET_ADD_MEMBERSHIP, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 1, 15, 23
PACKET_MR_PROMISC = 1
ETH_P_ALL = 3
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
NOTES_BYTES = 10
LARGEST_FRAME = 1 << 17
# A switch has so much memory; what comes beyond is lost, and sent again by who needs it.
MOST_BYTES = 256 << 20
BUFFER_BYTES = 16 << 20


def plug(interface: str) -> socket.socket:
    """Open one end of a cable, for all that comes out of it."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        port.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    port.bind((interface, ETH_P_ALL))
    everything = struct.pack("iHH8s", socket.if_nametoindex(interface), PACKET_MR_PROMISC, 0, b"")
    port.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, everything)
    port.setblocking(False)
    return port


class Relay:
    """The ports, who is behind them, and what waits to go out."""

    def __init__(self, ports: list[socket.socket], delay_s: float) -> None:
        self._ports = ports
        self._delay_s = delay_s
        self._behind: dict[bytes, socket.socket] = {}
        self._waiting: deque[tuple[float, socket.socket, bytes]] = deque()
        self._bytes = 0

    def serve(self) -> None:
        """Hand frames on for ever."""
        while True:
            left = max(self._waiting[0][0] - time.monotonic(), 0) if self._waiting else None
            for port in select.select(self._ports, [], [], left)[0]:
                self._take(port)
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                self._hand_on()

    def _take(self, port: socket.socket) -> None:
        while True:
            try:
                frame = port.recv(LARGEST_FRAME)
            except BlockingIOError:
                return
            except OSError:
                # Its cable is down for now.
                return
            target, source = frame[NOTES_BYTES:][:6], frame[NOTES_BYTES + 6 :][:6]
            self._behind[source] = port
            if self._bytes < MOST_BYTES:
                known = self._behind.get(target)
                for out in [known] if known else [other for other in self._ports if other is not port]:
                    self._waiting.append((time.monotonic() + self._delay_s, out, frame))
                    self._bytes += len(frame)

    def _hand_on(self) -> None:
        _, out, frame = self._waiting.popleft()
        self._bytes -= len(frame)
        try:
            out.send(frame)
        except OSError:
            # No room, or no cable: networks lose frames.
            return


def main() -> None:
    """Plug everything in and serve."""
    delay_us, *interfaces = sys.argv[1:]
    system = ctypes.CDLL(None)
    system.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Wake up when it is time, not up to 50 µs later.
    system.prctl(PR_SET_TIMERSLACK, 1)
    # A network does not get slower because its hosts are busy.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    ports = [plug(interface) for interface in interfaces]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    Relay(ports, float(delay_us) / 1e6).serve()


if __name__ == "__main__":
    main()
