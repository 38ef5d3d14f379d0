"""Compares `instep master` with MLflow's server: reports of ten metrics, each after the last one's acknowledgement.

Single reports (ten points a request), and batches of a hundred (a thousand points a request).

    .venv/bin/python bench/tracking.py [--mlflow PYTHON] [--db postgres] [--seconds 5] [--repetitions 3] [--json FILE]

Both serve from a SQLite file each, or from a database each of one PostgreSQL server (then MLflow's interpreter needs
psycopg2), and sync every commit. They are asked by the same client over keep-alive connections, from 1 and from 8
processes at a time. The client is a socket and little more, and the bodies are written beforehand but for their steps,
so that the servers are measured and not Python. The servers take turns, so that a noisy machine disturbs both alike,
and one whose turn it is not stands still (SIGSTOP): MLflow's would go on working in the background. Medians of the
repetitions are shown. Then each is asked through its own client, in a loop that
"trains" for a millisecond a step, to see how long the training thread spends in a report. `--mlflow` names an
interpreter with mlflow installed; without it only ours is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TypedDict

from _databases import ENGINES, Databases, databases

ROOT = Path(__file__).resolve().parent.parent
METRICS = 10
CLIENTS = (1, 8)
# Reports in one request.
BATCHES = (1, 100)
# Bodies with other values that a client takes in turn.
VARIANTS = 20
# Stand for the numbers that differ between requests, until they are filled in.
SEQUENCE = 899_999_999
STEP = 900_000_000
BLANK = r"\b(?:899999999|900000\d\d\d)\b"


class Figures(TypedDict):
    """What one server did with so many clients."""

    points_per_second: float
    p50_ms: float
    p99_ms: float


class Connection:
    """A keep-alive connection to a server."""

    def __init__(self, port: int, headers: dict[str, str]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    def ask(self, path: str, body: object) -> dict:
        """Send a request and give the answer's JSON."""
        return json.loads(self.send(path, json.dumps(body).encode()))

    def send(self, path: str, body: bytes) -> bytes:
        """Send a request whose body is written already and give the answer's body."""
        head = f"POST {path} HTTP/1.1\r\n{self.headers}Content-Length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self.receive()
        head_received, _, answer = received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head_received.lower())
        assert length, head_received
        while len(answer) < int(length[1]):
            answer += self.receive()
        assert head_received.startswith(b"HTTP/1.1 200 "), received
        return answer

    def receive(self) -> bytes:
        """Give what has arrived."""
        part = self.socket.recv(65536)
        assert part, "the server hung up"
        return part


class Server:
    """What the clients need to know of a server."""

    def __init__(self, port: int, headers: dict[str, str], group: int) -> None:
        self.port = port
        self.headers = headers
        self.group = group

    def stand_still(self) -> None:
        """Stop all its processes."""
        os.killpg(self.group, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let all its processes run again."""
        os.killpg(self.group, signal.SIGCONT)

    def connect(self) -> Connection:
        """Open a connection."""
        return Connection(self.port, self.headers)

    def new_run(self) -> object:
        """Make what the reports of one client belong to."""
        raise NotImplementedError

    def report(self, run: object, variant: int, batch: int) -> tuple[str, dict]:
        """Give the path and the body with which ten metrics at so many steps are reported, for `Form` to fill in."""
        raise NotImplementedError


def values(step: int) -> dict[str, float]:
    """Ten numbers as a training loop has them."""
    return {f"metric_{index}": 1.0 / (step + 1 + index) for index in range(METRICS)}


class Form:
    """A request that is written but for its steps: filling them in takes next to no time."""

    def __init__(self, path: str, body: dict) -> None:
        self.path = path
        text = json.dumps(body)
        self.blanks = [int(number) for number in re.findall(BLANK, text)]
        self.text = re.sub(BLANK, "%d", text)

    def filled(self, request: int, batch: int) -> bytes:
        """Give the body of the n-th request."""
        step = request * batch - STEP
        numbers = (request + 1 if blank == SEQUENCE else step + blank for blank in self.blanks)
        return (self.text % tuple(numbers)).encode()


class Instep(Server):
    """`instep master`."""

    def new_run(self) -> object:
        """Make an experiment with a started trial."""
        connection = self.connect()
        config = json.dumps({"name": "bench", "searcher": {"name": "single", "metric": "loss"}})
        made = connection.ask("/api/v1/experiments", {"config": config, "unmanaged": True})
        request = {"experimentId": made["experiment"]["id"], "unmanaged": True}
        trial = connection.ask("/api/v1/trials", request)["trial"]["id"]
        connection.ask(f"/api/v1/trials/{trial}/start", {"resume": True})
        return trial

    def report(self, run: object, variant: int, batch: int) -> tuple[str, dict]:
        """Report single steps as Determined's client does, and batches as our own does."""
        reports = [
            {
                "group": "training",
                "metrics": {
                    "trialId": run,
                    "trialRunId": 1,
                    "stepsCompleted": STEP + ahead,
                    "metrics": {"avgMetrics": values(variant + ahead)},
                },
            }
            for ahead in range(batch)
        ]
        if batch == 1:
            return f"/api/v1/trials/{run}/metrics", reports[0]
        body = {"reporter": f"bench {run}", "sequence": SEQUENCE, "reports": reports}
        return f"/api/v1/trials/{run}/reports", body


class Mlflow(Server):
    """`mlflow server`."""

    def new_run(self) -> object:
        """Make a run in the default experiment."""
        answer = self.connect().ask("/api/2.0/mlflow/runs/create", {"experiment_id": "0", "start_time": 0})
        return answer["run"]["info"]["run_id"]

    def report(self, run: object, variant: int, batch: int) -> tuple[str, dict]:
        """Report as MLflow's client does with `log_metrics` and `log_batch`."""
        now = int(time.time() * 1000)
        metrics = [
            {"key": key, "value": value, "timestamp": now, "step": STEP + ahead}
            for ahead in range(batch)
            for key, value in values(variant + ahead).items()
        ]
        return "/api/2.0/mlflow/runs/log-batch", {"run_id": run, "metrics": metrics}


@contextlib.contextmanager
def instep(where: Databases, binary: Path) -> Iterator[Server]:
    """Serve from a fresh database."""
    words = [str(binary), "master", "--port", "0", "--db", where.instep()]
    # What belongs to a database in PostgreSQL lies in the user's data folder.
    environment = {**os.environ, "XDG_DATA_HOME": str(where.folder)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True) as process:
        assert process.stdout is not None
        found = re.search(r":(\d+) ", process.stdout.readline())
        assert found
        server = Instep(int(found[1]), {"Host": "127.0.0.1"}, process.pid)
        try:
            request = {"username": "determined", "password": "", "isHashed": True}
            token = server.connect().ask("/api/v1/auth/login", request)["token"]
            server.headers["Authorization"] = f"Bearer {token}"
            yield server
        finally:
            server.go_on()
            process.terminate()


@contextlib.contextmanager
def mlflow(where: Databases, python: str, workers: int) -> Iterator[Server]:
    """Serve from a fresh database."""
    folder = where.folder
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", str(workers)]
    command += ["--backend-store-uri", where.mlflow(), "--artifacts-destination", str(folder / "mlruns")]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    log = (folder / "mlflow.log").open("w")
    with log, subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True) as process:
        try:
            deadline = time.monotonic() + 180
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                if time.monotonic() > deadline or process.poll() is not None:
                    sys.exit(f"mlflow does not serve:\n{Path(log.name).read_text()[-2000:]}")
                time.sleep(0.2)
            yield Mlflow(port, {"Host": "127.0.0.1", "Content-Type": "application/json"}, process.pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
                os.killpg(process.pid, signal.SIGTERM)


def client(
    server: Server, run: object, batch: int, barrier: Barrier, seconds: float, results: multiprocessing.Queue
) -> None:
    """Report until the time is over; put the times of all reports."""
    connection = server.connect()
    forms = [Form(*server.report(run, variant, batch)) for variant in range(VARIANTS)]
    connection.send(forms[0].path, forms[0].filled(0, batch))
    barrier.wait(timeout=120)
    times = []
    begin = time.perf_counter()
    request = 1
    while time.perf_counter() - begin < seconds:
        form = forms[request % VARIANTS]
        body = form.filled(request, batch)
        now = time.perf_counter()
        connection.send(form.path, body)
        times.append(time.perf_counter() - now)
        request += 1
    results.put(times)


def measure(server: Server, clients: int, batch: int, seconds: float) -> Figures:
    """Let so many clients report at once."""
    barrier = multiprocessing.Barrier(clients)
    results: multiprocessing.Queue = multiprocessing.Queue()
    runs = [server.new_run() for _ in range(clients)]
    processes = [
        multiprocessing.Process(target=client, args=(server, run, batch, barrier, seconds, results)) for run in runs
    ]
    for process in processes:
        process.start()
    times = sorted(value for _ in processes for value in results.get(timeout=seconds + 180))
    for process in processes:
        process.join(timeout=30)
    return {
        "points_per_second": len(times) * METRICS * batch / seconds,
        "p50_ms": statistics.median(times) * 1000,
        "p99_ms": times[len(times) * 99 // 100] * 1000,
    }


def through_client(python: str, name: str, variables: dict[str, str], count: int) -> dict[str, float]:
    """Let a program of its own report through a client; give what it measured."""
    command = [python, str(ROOT / "bench" / "tracking_client.py"), name, str(count)]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", **variables}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    return json.loads(done.stdout.splitlines()[-1])


def clients(servers: dict[str, Server], arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure the training thread's time a report, for every client that is there."""
    ours = {"INSTEP_MASTER": f"127.0.0.1:{servers['instep'].port}"}
    found = {"instep.core": through_client(str(arguments.python), "instep", ours, arguments.reports)}
    if "mlflow" in servers:
        theirs = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{servers['mlflow'].port}"}
        # MLflow's take milliseconds each, so a tenth is enough.
        for name in ("mlflow", "mlflow-async"):
            found[name] = through_client(arguments.mlflow, name, theirs, max(100, arguments.reports // 10))
    return found


def median(figures: list[Figures]) -> Figures:
    """Give the median of each figure."""
    return {
        "points_per_second": statistics.median(each["points_per_second"] for each in figures),
        "p50_ms": statistics.median(each["p50_ms"] for each in figures),
        "p99_ms": statistics.median(each["p99_ms"] for each in figures),
    }


def main() -> None:
    """Measure, show a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mlflow", metavar="PYTHON", help="interpreter with mlflow; left out: ours alone")
    parser.add_argument("--db", choices=ENGINES, default="sqlite", help="what both keep their data in")
    parser.add_argument("--mlflow-workers", type=int, help="default: 1 on SQLite, as it is documented; 4 on PostgreSQL")
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "instep")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv" / "bin" / "python", help="one with instep")
    parser.add_argument("--reports", type=int, default=5000, help="through our client; a tenth through MLflow's")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        where = stack.enter_context(databases(arguments.db, Path(folder)))
        servers = {"instep": stack.enter_context(instep(where, arguments.binary))}
        if arguments.mlflow:
            workers = arguments.mlflow_workers or (1 if arguments.db == "sqlite" else 4)
            servers["mlflow"] = stack.enter_context(mlflow(where, arguments.mlflow, workers))
        for server in servers.values():
            server.stand_still()
        found: dict[str, list[Figures]] = {}
        for repetition in range(arguments.repetitions):
            for count, batch in itertools.product(CLIENTS, BATCHES):
                where = f"{repetition + 1} of {arguments.repetitions}: {count} clients, {batch} reports a request"
                print(f"\r\x1b[K{where}", end="", file=sys.stderr, flush=True)
                for name, server in servers.items():
                    server.go_on()
                    figures = measure(server, count, batch, arguments.seconds)
                    server.stand_still()
                    what = f"{name}, {count} clients, {METRICS * batch} points a request"
                    found.setdefault(what, []).append(figures)
        print("\r\x1b[Kthrough the clients", end="", file=sys.stderr, flush=True)
        for server in servers.values():
            server.go_on()
        reporting = clients(servers, arguments)
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    results = {name: median(figures) for name, figures in found.items()}
    print(
        f"reports of {METRICS} metrics, on {arguments.db}, {os.cpu_count()} cores, medians of {arguments.repetitions}"
    )
    for name, figures in results.items():
        numbers = f"{figures['points_per_second']:10.0f} points/s  p50 {figures['p50_ms']:8.3f} ms"
        print(f"  {name:<44} {numbers}  p99 {figures['p99_ms']:8.3f} ms")
    if arguments.mlflow:
        for count, batch in itertools.product(CLIENTS, BATCHES):
            what = f"{count} clients, {METRICS * batch} points a request"
            ours, theirs = results[f"instep, {what}"], results[f"mlflow, {what}"]
            faster, sooner = ours["points_per_second"] / theirs["points_per_second"], theirs["p50_ms"] / ours["p50_ms"]
            print(f"  {what}: instep takes {faster:.0f} times the points/s, p50 is 1/{sooner:.0f}")
    print("the training thread's time in a report, through the client")
    for name, times in reporting.items():
        print(
            f"  {name:<22} p50 {times['p50_us']:10.1f} us  p99 {times['p99_us']:10.1f} us  end {times['end_s']:.2f} s"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({**results, "clients": reporting}, indent=2) + "\n")


if __name__ == "__main__":
    main()
