"""Compares torch's own TCPStore server (libuv) with `instep store`, both serving the same clients in the same run.

    .venv/bin/python bench/store.py [--json FILE] [--seconds 0.3] [--repetitions 15] [--parts 1,2,3,4]

Four parts (`--parts` chooses); in the first three the servers take turns, and medians of the repetitions are shown.
The ratio is the median of the repetitions' own ratios, since the two servers of one repetition are measured right after
each other; its quartiles say how far it can be trusted. Every repetition has fresh servers: where one happens to land
in memory and on which processor stays with it for its life and moves its figures by a tenth and more, so that
repetitions on one pair of servers would agree on a difference that is none.

1. torch's TCPStore client: get of a 16-byte value, set, add, with 1, 8 and 64 connections out of at most 4 processes;
2. a plain client in Rust (crates/store/examples/load.rs), which costs less per request and so shows more of the server;
3. the same client with 16 requests in one write, which leaves little but the servers' own work;
4. ten thousand simultaneous connections on our server: its memory, and that it still answers.

Beside operations per second the tables show the processor time that the server spent on one operation, which a busy
machine disturbs less. `set` has no reply, so clients run ahead of the server: a repetition ends when every connection
has read its value back.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
OPERATIONS = ("get", "set", "add")
CONNECTIONS = (1, 8, 64)
PROCESSES = 4
PIPELINE = 16
HELD = 10_000
VALUE = "0123456789abcdef"

TORCH_SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
print(store.port, flush=True)
sys.stdin.read()
"""


class Task(TypedDict):
    """What a client process is to measure."""

    port: int
    operation: str
    connections: int
    seconds: float


class Row(TypedDict):
    """One line of a table."""

    clients: str
    operation: str
    connections: int
    torch_per_second: float
    instep_per_second: float
    ratio: float
    ratio_quartiles: tuple[float, float]
    torch_server_us: float
    instep_server_us: float


Measure = Callable[[Task], float]


class Server:
    """A store server in a process of its own."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        # Either "PORT" or "instep store listening on HOST:PORT".
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[-1])

    def memory_kib(self) -> int:
        """Its resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def processor_seconds(self) -> float:
        """The processor time of all its threads so far; schedstat counts nanoseconds, where stat counts ticks."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(timeout=10)


@contextlib.contextmanager
def servers() -> Iterator[list[Server]]:
    """Both servers: torch's and ours."""
    binary = TARGET / "instep"
    ours = [str(binary), "store", "--port", "0"] if binary.exists() else [str(TARGET / "examples" / "serve")]
    # torch's server looks up the name of every peer before it serves it. A slow name server is not to be measured.
    os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
    both = [Server("torch", [sys.executable, "-c", TORCH_SERVER]), Server("instep", ours)]
    try:
        yield both
    finally:
        for server in both:
            server.stop()


class Worker:
    """A process with torch clients: measures on demand, one thread per connection."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def ask(self, task: Task) -> None:
        """Start a measurement."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()

    def answer(self) -> tuple[int, float]:
        """Give the operations done, and the seconds they took."""
        assert self.process.stdout is not None
        operations, seconds = self.process.stdout.readline().split()
        return int(operations), float(seconds)


def serve_worker() -> None:
    """Be a client process: a line of JSON in, "OPERATIONS SECONDS" out."""
    from torch._C._distributed_c10d import TCPStore

    print("ready", flush=True)
    clients: dict[int, list[TCPStore]] = {}
    for line in sys.stdin:
        task: Task = json.loads(line)
        known = clients.setdefault(task["port"], [])
        while len(known) < task["connections"]:
            known.append(TCPStore("127.0.0.1", task["port"], is_master=False, wait_for_workers=False))
        operations, seconds = measure_with_torch(task, known)
        print(operations, seconds, flush=True)


def measure_with_torch(task: Task, clients: list[TCPStore]) -> tuple[int, float]:
    """Run one operation over and over on torch clients, each in its own thread."""
    connections = range(task["connections"])
    counts = [0 for _ in connections]
    end = 0.0

    def work(index: int) -> None:
        client, key = clients[index], f"bench/{os.getpid()}/{index}"
        actions: dict[str, Callable[[], object]] = {
            "get": lambda: client.get(key),
            "set": lambda: client.set(key, VALUE),
            "add": lambda: client.add(key + "/counter", 1),
        }
        action = actions[task["operation"]]
        while time.perf_counter() < end:
            for _ in range(20):
                action()
            counts[index] += 20
        client.get(key)

    for index in connections:
        clients[index].set(f"bench/{os.getpid()}/{index}", VALUE)
        clients[index].get(f"bench/{os.getpid()}/{index}")
    threads = [threading.Thread(target=work, args=(index,)) for index in connections]
    began = time.perf_counter()
    end = began + task["seconds"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts), time.perf_counter() - began


def torch_clients(workers: list[Worker], task: Task) -> float:
    """Operations per second of torch clients, spread over the worker processes."""
    shares = [len(range(index, task["connections"], PROCESSES)) for index in range(PROCESSES)]
    busy = [(worker, share) for worker, share in zip(workers, shares, strict=True) if share]
    for worker, share in busy:
        worker.ask({**task, "connections": share})
    answers = [worker.answer() for worker, _ in busy]
    return sum(operations for operations, _ in answers) / max(seconds for _, seconds in answers)


def plain_clients(task: Task, *options: str) -> float:
    """Operations per second of the Rust client, one thread per connection."""
    program = [str(TARGET / "examples" / "load"), str(task["port"]), "run"]
    command = [*program, task["operation"], str(task["connections"]), str(task["seconds"]), *options]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


class Samples:
    """Operations per second, and microseconds of the server's processor time for one, by combination and server."""

    def __init__(self) -> None:
        self.rates: defaultdict[tuple[str, int, str], list[float]] = defaultdict(list)
        self.costs: defaultdict[tuple[str, int, str], list[float]] = defaultdict(list)

    def take(self, operation: str, connections: int, server: Server, seconds: float, measure: Measure) -> None:
        """Measure one combination on one server."""
        before = server.processor_seconds()
        rate = measure({"port": server.port, "operation": operation, "connections": connections, "seconds": seconds})
        self.rates[operation, connections, server.name].append(rate)
        cost = (server.processor_seconds() - before) / (rate * seconds) * 1e6
        self.costs[operation, connections, server.name].append(cost)

    def row(self, clients: str, operation: str, connections: int) -> Row:
        """Give the medians of one combination."""
        theirs, ours = (self.rates[operation, connections, name] for name in ("torch", "instep"))
        ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        return {
            "clients": clients,
            "operation": operation,
            "connections": connections,
            "torch_per_second": statistics.median(theirs),
            "instep_per_second": statistics.median(ours),
            "ratio": middle,
            "ratio_quartiles": (low, high),
            "torch_server_us": statistics.median(self.costs[operation, connections, "torch"]),
            "instep_server_us": statistics.median(self.costs[operation, connections, "instep"]),
        }


def compare(clients: str, seconds: float, repetitions: int, measure: Measure) -> list[Row]:
    """Measure every combination on both servers in turn, and print a table of medians."""
    combinations = [(operation, connections) for operation in OPERATIONS for connections in CONNECTIONS]
    samples = Samples()
    for repetition in range(repetitions):
        print(f"\r{clients}: {repetition} of {repetitions}", end="", file=sys.stderr, flush=True)
        with servers() as both:
            for operation, connections in combinations:
                for server in both if repetition % 2 else reversed(both):
                    samples.take(operation, connections, server, seconds, measure)
    print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    print(f"\n{clients}: operations/s, and µs of the server's processor time for one")
    print("operation  connections       torch      instep   ratio   quartiles    torch µs   instep µs")
    rows = [samples.row(clients, operation, connections) for operation, connections in combinations]
    for row in rows:
        print(
            f"{row['operation']:<10}{row['connections']:>12}{row['torch_per_second']:>12,.0f}"
            f"{row['instep_per_second']:>12,.0f}{row['ratio']:>8.2f}{'{:.2f}-{:.2f}'.format(*row['ratio_quartiles']):>12}"
            f"{row['torch_server_us']:>12.2f}{row['instep_server_us']:>12.2f}",
            flush=True,
        )
    return rows


def hold_connections(server: Server) -> dict[str, float]:
    """Open very many connections, look at the server's memory, and have it work for others meanwhile."""
    before = server.memory_kib()
    began = time.perf_counter()
    command = [str(TARGET / "examples" / "load"), str(server.port), "hold", str(HELD)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    if holder.stdout.readline() != "held\n":
        raise SystemExit(f"could not open {HELD} connections\nhint: look at `ulimit -Hn`")
    opened = time.perf_counter() - began
    memory = server.memory_kib()
    rate = plain_clients({"port": server.port, "operation": "get", "connections": 8, "seconds": 1.0})
    answered, _ = holder.communicate(input="", timeout=60)
    if answered != "answered\n":
        raise SystemExit("some of the held connections did not answer")
    print(
        f"\n{HELD:,} connections on instep: opened in {opened:.2f} s; memory {before} KiB before, {memory} KiB with "
        f"them ({(memory - before) * 1024 / HELD:.0f} bytes each);\n8 more clients get {rate:,.0f} values/s meanwhile; "
        "every held connection answers afterwards"
    )
    return {
        "connections": HELD,
        "open_seconds": opened,
        "memory_kib_before": before,
        "memory_kib_with": memory,
        "get_per_second_meanwhile": rate,
    }


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description="torch's TCPStore server against instep's")
    parser.add_argument("--json", metavar="FILE", help="write the results there instead of to the end of the output")
    parser.add_argument("--seconds", type=float, default=0.3, help="of one measurement (0.3)")
    parser.add_argument("--repetitions", type=int, default=15, help="of each measurement on each server (15)")
    parser.add_argument("--parts", default="1,2,3,4", help="which parts to run (1,2,3,4)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve_worker()
        return
    build = ["cargo", "build", "--release", "--quiet", "--package", "instep-store", "--examples"]
    subprocess.run(build, cwd=ROOT, check=True)
    seconds, repetitions, parts = options.seconds, options.repetitions, options.parts.split(",")
    rows, held = [], None
    if "1" in parts:
        workers = [Worker() for _ in range(PROCESSES)]
        rows += compare("torch client", seconds, repetitions, lambda task: torch_clients(workers, task))
        for worker in workers:
            worker.process.terminate()
    if "2" in parts:
        rows += compare("plain client", seconds, repetitions, plain_clients)
    if "3" in parts:
        pipelined = ("--pipeline", str(PIPELINE))
        name = f"plain client, {PIPELINE} requests at a time"
        rows += compare(name, seconds, repetitions, lambda task: plain_clients(task, *pipelined))
    if "4" in parts:
        with servers() as both:
            held = hold_connections(both[1])
    report = json.dumps({"cores": len(os.sched_getaffinity(0)), "rows": rows, "held": held}, indent=2)
    if options.json:
        Path(options.json).write_text(report + "\n")
    else:
        print(report)


if __name__ == "__main__":
    main()
