"""One rank of many, without torch: makes a group, adds up, sends a message, and writes down what it has for that.

    counted.py FOLDER [all_to_all]

`FOLDER/<rank>.json` gets seconds (to make the group), the TCP connections after each step, and kilobytes of memory.
"""

from __future__ import annotations

import array
import json
import os
import sys
import time
from pathlib import Path

from instep._native import DTYPES, REDUCTIONS, CollectiveGroup, Operation, StoreClient

PATIENCE_S = 240.0


def exchange(store: StoreClient, prefix: str, rank: int, world: int, value: bytes) -> list[bytes]:
    """Give every rank the values of all."""
    store.set(f"{prefix}/{rank}", value)
    return store.multi_get([f"{prefix}/{peer}" for peer in range(world)])


def connections() -> int:
    """The TCP connections of this process."""
    established = set()
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "01":
                established.add(f"socket:[{fields[9]}]")
    found = 0
    for handle in Path("/proc/self/fd").iterdir():
        try:
            found += str(handle.readlink()) in established
        except FileNotFoundError:
            # The one with which the folder was read.
            continue
    return found


def memory() -> dict[str, int]:
    """Kilobytes of this process: its own, and of memory that it shares."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    return {"own": int(fields["RssAnon"]), "shared": int(fields["RssShmem"])}


def place(values: array.array[int]) -> tuple[int, int]:
    """Where numbers lie, and how many bytes they are."""
    address, count = values.buffer_info()
    return address, count * values.itemsize


def add_up(group: CollectiveGroup, world: int, count: int) -> None:
    values = array.array("q", range(count))
    address, length = place(values)
    operation = Operation.all_reduce(address, length, DTYPES.index("i64"), REDUCTIONS.index("SUM"))
    group.run(operation, PATIENCE_S)
    assert values == array.array("q", (world * value for value in range(count))), f"a sum of {count} numbers is wrong"


def everybody_to_everybody(group: CollectiveGroup, rank: int, world: int) -> None:
    sent = array.array("q", (rank * world + peer for peer in range(world)))
    received = array.array("q", [-1] * world)
    size = sent.itemsize
    parts = [[(place(values)[0] + size * peer, size) for peer in range(world)] for values in (sent, received)]
    group.run(Operation.all_to_all(parts[0], parts[1], DTYPES.index("i64")), PATIENCE_S)
    assert received == array.array("q", (peer * world + rank for peer in range(world))), "all_to_all is wrong"


def main() -> None:
    folder = Path(sys.argv[1])
    rank, world, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    store = StoreClient(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=PATIENCE_S)
    others = connections()
    before = memory()
    # All processes are there: from here on it is the group that takes time.
    store.barrier("there", world)
    began = time.monotonic()
    # One connection to each peer, however many cores there are.
    group = CollectiveGroup(timeout=PATIENCE_S, network_channels=1)
    addresses = exchange(store, "near", rank, world, group.address())
    if group.needs_network(addresses):
        group.open_to_network()
        addresses = exchange(store, "far", rank, world, group.address())
    exchanged = time.monotonic()
    group.connect(rank, addresses, 0, PATIENCE_S)
    found: dict[str, object] = {"exchanged": exchanged - began, "seconds": time.monotonic() - began}

    began = time.monotonic()
    add_up(group, world, 1)
    found["first"] = time.monotonic() - began
    add_up(group, world, 1 << 17)
    found["collectives"] = connections() - others

    # To the rank of the same number on the next host, and from the one before.
    group.run(Operation.barrier(), PATIENCE_S)
    sent, received = array.array("q", [rank]), array.array("q", [-1])
    to, source = (rank + local) % world, (rank - local) % world
    tickets = [
        group.receive(place(received), source, 0, PATIENCE_S, received),
        group.send(place(sent), to, 0, PATIENCE_S, sent),
    ]
    for ticket in tickets:
        ticket.wait(PATIENCE_S)
    assert received[0] == source, f"rank {rank} got {received[0]} from rank {source}"
    group.run(Operation.barrier(), PATIENCE_S)
    found["messages"] = connections() - others

    if "all_to_all" in sys.argv[2:]:
        began = time.monotonic()
        everybody_to_everybody(group, rank, world)
        found["all_to_all"] = time.monotonic() - began
        group.run(Operation.barrier(), PATIENCE_S)
        found["everybody"] = connections() - others
    after = memory()
    found["own"], found["shared"] = after["own"] - before["own"], after["shared"] - before["shared"]
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    # Nobody leaves while others look at their connections.
    group.run(Operation.barrier(), PATIENCE_S)
    group.shutdown()


main()
