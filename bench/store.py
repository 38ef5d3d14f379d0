"""Compares torch's own TCPStore server (libuv) with instep's, both serving the same clients in the same run.

    .venv/bin/python bench/store.py [--json FILE] [--seconds 1] [--repetitions 5]

Three parts, each interleaved between the two servers, medians of the repetitions:

1. torch's TCPStore client: get of a 16-byte value, set, add, with 1, 8 and 64 connections out of at most 4 processes;
2. a plain client in Rust (crates/store/examples/load.rs), which costs less per request and so shows more of the server;
3. ten thousand simultaneous connections on instep's server: its memory, and that it still answers.

`set` has no reply: torch's client can run ahead of the server, so a repetition ends with a `get` on every connection.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BINARY = TARGET / "release" / "instep"
LOAD = TARGET / "release" / "examples" / "load"
OPERATIONS = ("get", "set", "add")
CONNECTIONS = (1, 8, 64)
PROCESSES = 4
HELD = 10_000
VALUE = "0123456789abcdef"

TORCH_SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
print(store.port, flush=True)
sys.stdin.read()
"""


class Server:
    """A store server in a process of its own."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        # Either "PORT" or "instep store listening on HOST:PORT".
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[-1])

    def memory_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=10)


def start_instep() -> Server:
    if BINARY.exists():
        return Server("instep", [str(BINARY), "store", "--port", "0"])
    return Server("instep", [str(TARGET / "release" / "examples" / "serve")])


@contextmanager
def servers() -> Iterator[list[Server]]:
    both = [Server("torch", [sys.executable, "-c", TORCH_SERVER]), start_instep()]
    try:
        yield both
    finally:
        for server in both:
            server.stop()


class Worker:
    """A client process: measures on demand, one thread per connection."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer()

    def ask(self, **task: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


def serve_worker() -> None:
    """The loop of a client process: a line of JSON in, the operations done and the seconds they took out."""
    from torch.distributed import TCPStore

    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        clients = [
            TCPStore("127.0.0.1", task["port"], is_master=False, wait_for_workers=False)
            for _ in range(task["connections"])
        ]
        counts = [0] * len(clients)
        start = threading.Barrier(len(clients))

        def measure(index: int) -> None:
            client, key = clients[index], f"bench/{os.getpid()}/{index}"
            client.set(key, VALUE)
            actions: dict[str, Callable[[], Any]] = {
                "get": lambda: client.get(key),
                "set": lambda: client.set(key, VALUE),
                "add": lambda: client.add(key + "/counter", 1),
            }
            action = actions[task["operation"]]
            client.get(key)
            start.wait()
            end = time.perf_counter() + task["seconds"]
            while time.perf_counter() < end:
                for _ in range(20):
                    action()
                counts[index] += 20
            client.get(key)

        threads = [threading.Thread(target=measure, args=(index,)) for index in range(len(clients))]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(json.dumps([sum(counts), time.perf_counter() - began]), flush=True)


def torch_clients(
    workers: list[Worker], server: Server, operation: str, connections: int, seconds: float
) -> float:
    shares = [connections // PROCESSES + (n < connections % PROCESSES) for n in range(PROCESSES)]
    busy = [(worker, share) for worker, share in zip(workers, shares) if share]
    for worker, share in busy:
        worker.ask(port=server.port, operation=operation, connections=share, seconds=seconds)
    answers = [worker.answer() for worker, _ in busy]
    return sum(count for count, _ in answers) / max(seconds for _, seconds in answers)


def plain_clients(server: Server, operation: str, connections: int, seconds: float) -> float:
    command = [str(LOAD), str(server.port), "run", operation, str(connections), str(seconds)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def compare(
    title: str,
    both: list[Server],
    repetitions: int,
    measure: Callable[[Server, str, int], float],
) -> list[dict[str, Any]]:
    """Measures every combination on both servers in turn, and prints a table of medians."""
    rows = []
    print(f"\n{title}\n{'operation':<10}{'connections':>12}{'torch':>12}{'instep':>12}{'ratio':>8}"
          f"{'torch µs':>10}{'instep µs':>11}   (operations/s; server CPU µs per operation)")
    for operation in OPERATIONS:
        for connections in CONNECTIONS:
            rates: dict[str, list[float]] = {server.name: [] for server in both}
            costs: dict[str, list[float]] = {server.name: [] for server in both}
            for repetition in range(repetitions):
                for server in both if repetition % 2 else reversed(both):
                    before, began = server.processor_seconds(), time.perf_counter()
                    rate = measure(server, operation, connections)
                    used = server.processor_seconds() - before
                    rates[server.name].append(rate)
                    costs[server.name].append(used / (rate * (time.perf_counter() - began)) * 1e6)
            theirs, ours = (statistics.median(rates[name]) for name in ("torch", "instep"))
            their_cost, our_cost = (statistics.median(costs[name]) for name in ("torch", "instep"))
            print(f"{operation:<10}{connections:>12}{theirs:>12,.0f}{ours:>12,.0f}{ours / theirs:>8.2f}"
                  f"{their_cost:>10.2f}{our_cost:>11.2f}", flush=True)
            rows.append(
                {
                    "clients": title.split(":")[0],
                    "operation": operation,
                    "connections": connections,
                    "torch_per_second": theirs,
                    "instep_per_second": ours,
                    "ratio": ours / theirs,
                    "torch_server_us": their_cost,
                    "instep_server_us": our_cost,
                    "repetitions": {name: values for name, values in rates.items()},
                }
            )
    return rows


def hold_connections(server: Server) -> dict[str, Any]:
    before = server.memory_kib()
    began = time.perf_counter()
    holder = subprocess.Popen(
        [str(LOAD), str(server.port), "hold", str(HELD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    if holder.stdout.readline() != "held\n":
        raise SystemExit(f"could not open {HELD} connections; see ulimit -Hn")
    opened = time.perf_counter() - began
    memory = server.memory_kib()
    rate = plain_clients(server, "get", 8, 1.0)
    output, _ = holder.communicate(input="", timeout=60)
    answered = output == "answered\n"
    print(
        f"\n{HELD:,} connections: opened in {opened:.2f} s; server memory {before} KiB before, "
        f"{memory} KiB with them ({(memory - before) * 1024 / HELD:.0f} bytes each);\n"
        f"meanwhile 8 more clients get {rate:,.0f} values/s; every held connection answered: {answered}"
    )
    return {
        "connections": HELD,
        "open_seconds": opened,
        "memory_kib_before": before,
        "memory_kib_with": memory,
        "get_per_second_meanwhile": rate,
        "all_answered": answered,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="torch's TCPStore server against instep's")
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return serve_worker()
    if not LOAD.exists():
        raise SystemExit("build the load generator first: cargo build --release -p instep-store --example load")
    seconds, repetitions = options.seconds, options.repetitions
    with servers() as both:
        workers = [Worker() for _ in range(PROCESSES)]
        rows = compare(
            "torch client: TCPStore in 4 processes",
            both,
            repetitions,
            lambda server, operation, connections: torch_clients(
                workers, server, operation, connections, seconds
            ),
        )
        for worker in workers:
            worker.process.terminate()
        rows += compare(
            "plain client: one thread per connection",
            both,
            repetitions,
            lambda server, operation, connections: plain_clients(
                server, operation, connections, seconds
            ),
        )
        held = hold_connections(both[1])
    if options.json:
        import torch

        report = {
            "torch": torch.__version__,
            "cores": len(os.sched_getaffinity(0)),
            "rows": rows,
            "held": held,
        }
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
