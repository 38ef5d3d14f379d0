"""Waits for messages that do not come, without torch: waiter.py FOLDER RANK WORLD STORE PORT.

The ranks meet through a store that rank 0 serves. Each writes FOLDER/<rank>.ready when the group is there, and waits
for FOLDER/go. Then rank 0 waits for a message of the last rank, the others for one of rank 0, the last one for none: it
sleeps. What ends a wait goes to FOLDER/<rank>.error.
"""

from __future__ import annotations

import array
import json
import sys
import time
from pathlib import Path

from instep._native import CollectiveGroup, Operation, StoreClient, StoreServer

PATIENCE_S = 60.0
PAUSE_S = 0.02


def exchange(store: StoreClient, prefix: str, rank: int, world: int, value: bytes) -> list[bytes]:
    """Give every rank the values of all."""
    store.set(f"{prefix}/{rank}", value)
    return store.multi_get([f"{prefix}/{peer}" for peer in range(world)])


def main() -> None:
    folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    host, port = sys.argv[4], int(sys.argv[5])
    server = StoreServer(port, loopback=False) if rank == 0 else None
    store = StoreClient(host, port, timeout=PATIENCE_S)
    group = CollectiveGroup(timeout=PATIENCE_S)
    exchange(store, "near", rank, world, group.address())
    group.open_to_network()
    group.connect(rank, exchange(store, "far", rank, world, group.address()), 0, PATIENCE_S)
    group.run(Operation.barrier(), PATIENCE_S)
    (folder / f"{rank}.ready").touch()
    while not (folder / "go").exists():
        time.sleep(PAUSE_S)
    if rank == world - 1:
        time.sleep(PATIENCE_S)
    value = array.array("q", [0])
    address, count = value.buffer_info()
    source = world - 1 if rank == 0 else 0
    began = finished = time.monotonic()
    try:
        ticket = group.receive((address, count * value.itemsize), source, 0, PATIENCE_S, value)
        (folder / f"{rank}.waiting").touch()
        while not ticket.is_finished():
            time.sleep(PAUSE_S)
        finished = time.monotonic()
        # To say why it imports torch, for the classes of errors: that takes its time.
        ticket.wait(PATIENCE_S)
    except RuntimeError as error:
        unfinished = folder / f"{rank}.partial"
        unfinished.write_text(json.dumps({"seconds": finished - began, "text": str(error)}))
        unfinished.rename(folder / f"{rank}.error")
    group.shutdown()
    if server is not None:
        server.shutdown()


main()
