"""Measures what looking at recorded runs costs: charts of a long trial, the list of many runs, the master's memory.

    .venv/bin/python bench/charts.py [--metrics 100] [--steps 100000] [--runs 10000] [--json FILE] [--db FILE]

Fills a master through its REST API: one trial with so many metrics at so many steps, and so many experiments with a
trial each. Then it asks for charts and lists as the pages do, over one keep-alive connection, and shows how long the
answers took (median and slowest of the repetitions) and the most memory that the master ever had. `--db` keeps the
database and uses it again the next time, so that only the questions are measured.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parent.parent
CONNECTIONS = 4
# Steps that are reported in one request.
BATCH = 50


class Master:
    """A running master."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid
        self.token = ""

    def connect(self) -> Connection:
        """Open a connection."""
        return Connection(self)

    def memory_mib(self) -> float:
        """The most memory that it had so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found
        return int(found[1]) / 1024


class Connection:
    """A keep-alive connection to a master."""

    def __init__(self, master: Master) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", master.port, timeout=120)
        self._headers = {"Authorization": f"Bearer {master.token}"} if master.token else {}

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        """Send a request, give the answer's bytes."""
        self._http.request(method, path, None if body is None else json.dumps(body), self._headers)
        answer = self._http.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return text

    def json(self, method: str, path: str, body: object = None) -> dict:
        """The same, the answer's JSON."""
        return json.loads(self.ask(method, path, body))


@contextlib.contextmanager
def serve(binary: Path, database: Path) -> Iterator[Master]:
    """Run a master on a database."""
    command = [str(binary), "master", "--port", "0", "--db", str(database)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r":(\d+) ", process.stdout.readline())
        assert found
        master = Master(int(found[1]), process.pid)
        login = {"username": "determined", "password": "", "isHashed": True}
        master.token = master.connect().json("POST", "/api/v1/auth/login", login)["token"]
        try:
            yield master
        finally:
            process.terminate()


def in_parallel(master: Master, count: int, work: object) -> None:
    """Call `work(connection, index)` for every index, over several connections."""
    indices = iter(range(count))
    lock = threading.Lock()
    problems: list[BaseException] = []

    def one() -> None:
        connection = master.connect()
        while not problems:
            with lock:
                index = next(indices, None)
            if index is None:
                return
            try:
                work(connection, index)
            except BaseException as error:
                problems.append(error)

    threads = [threading.Thread(target=one) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def new_trial(connection: Connection, name: str, labels: list[str]) -> int:
    """Make an experiment with a started trial."""
    searcher = {"name": "single", "metric": "metric_0", "smaller_is_better": True}
    config = json.dumps({"name": name, "labels": labels, "searcher": searcher, "hyperparameters": {"lr": 0.1}})
    made = connection.json("POST", "/api/v1/experiments", {"config": config, "unmanaged": True})
    request = {"experimentId": made["experiment"]["id"], "unmanaged": True}
    trial = connection.json("POST", "/api/v1/trials", request)["trial"]["id"]
    connection.ask("POST", f"/api/v1/trials/{trial}/start", {"resume": True})
    return trial


def fill(master: Master, metrics: int, steps: int, runs: int) -> int:
    """Record the long trial and the many runs; give the trial."""
    connection = master.connect()
    trial = new_trial(connection, "a long run", ["long"])
    noise = random.Random(0)
    began = time.monotonic()

    def report(connection: Connection, index: int) -> None:
        reports = []
        for step in range(index * BATCH + 1, min(steps, (index + 1) * BATCH) + 1):
            values = {f"metric_{number}": noise.gauss(10 / step, 0.1) for number in range(metrics)}
            inner = {"trialId": trial, "trialRunId": 1, "stepsCompleted": step, "metrics": {"avgMetrics": values}}
            reports.append({"group": "training", "metrics": inner})
        batch = {"reporter": f"bench {index}", "sequence": 1, "reports": reports}
        connection.ask("POST", f"/api/v1/trials/{trial}/reports", batch)

    in_parallel(master, -(-steps // BATCH), report)
    print(f"reported {metrics} metrics at {steps} steps in {time.monotonic() - began:.0f} s", flush=True)
    began = time.monotonic()
    words = ["resnet", "bert", "gpt", "vit", "unet"]

    def run(connection: Connection, index: int) -> None:
        other = new_trial(connection, f"{words[index % 5]} run {index}", ["nightly"] if index % 7 == 0 else [])
        inner = {
            "trialId": other,
            "trialRunId": 1,
            "stepsCompleted": 100,
            "metrics": {"avgMetrics": {"metric_0": noise.random()}},
        }
        connection.ask("POST", f"/api/v1/trials/{other}/metrics", {"group": "validation", "metrics": inner})
        if index % 3:
            state = "STATE_COMPLETED" if index % 3 == 1 else "STATE_ERROR"
            connection.ask("PATCH", f"/api/v1/trials/{other}", {"state": state})

    in_parallel(master, runs, run)
    print(f"recorded {runs} runs in {time.monotonic() - began:.0f} s", flush=True)
    return trial


def questions(trial: int, metrics: int, steps: int) -> dict[str, str]:
    """What is asked, by a name for it."""

    def chart(names: list[str], points: int, first: int = 0, last: int = 0) -> str:
        query = [("trialIds", trial), *(("metricIds", f"training.{name}") for name in names)]
        query += [("maxDatapoints", points), ("startBatches", first), ("endBatches", last)]
        return f"/api/v1/trials/time-series?{urlencode(query)}"

    def listing(**query: str | int) -> str:
        return f"/api/v1/experiments?{urlencode({'limit': 50, **query})}"

    last = f"metric_{metrics - 1}"
    tenth = steps // 10
    return {
        "chart: one metric, all steps, 1,000 points": chart(["metric_0"], 1000),
        "chart: one metric, all steps, 200 points": chart([last], 200),
        "chart: one metric, a tenth of the steps": chart([last], 1000, 4 * tenth, 5 * tenth),
        "chart: one metric, the last 100 steps": chart(["metric_0"], 1000, steps - 100, steps),
        "chart: four metrics, all steps, 1,000 points": chart([f"metric_{index}" for index in range(4)], 1000),
        f"chart: all {metrics} metrics, all steps, 100 points": chart(
            [f"metric_{index}" for index in range(metrics)], 100
        ),
        "list: newest": listing(sortBy="SORT_BY_ID", orderBy="ORDER_BY_DESC", archived="false"),
        "list: by name, filtered": listing(name="bert", sortBy="SORT_BY_NAME"),
        "list: by best metric": listing(sortBy="SORT_BY_SEARCHER_METRIC_VAL"),
        "list: by state, completed": listing(states="STATE_COMPLETED", sortBy="SORT_BY_STATE"),
        "list: by start, label": listing(labels="nightly", sortBy="SORT_BY_START_TIME", orderBy="ORDER_BY_DESC"),
        "list: by checkpoint size, far page": listing(sortBy="SORT_BY_CHECKPOINT_SIZE", offset=5000),
        "trial": f"/api/v1/trials/{trial}",
        "history: first page": f"/api/v1/trials/{trial}/workloads?limit=100",
        "history: far page": f"/api/v1/trials/{trial}/workloads?limit=100&offset={steps // 2}",
    }


def measure(master: Master, asked: dict[str, str], repetitions: int) -> dict[str, dict[str, float]]:
    """Ask everything so many times."""
    connection = master.connect()
    found: dict[str, dict[str, float]] = {}
    for name, path in asked.items():
        times = []
        size = 0
        for _ in range(repetitions):
            began = time.perf_counter()
            size = len(connection.ask("GET", path))
            times.append((time.perf_counter() - began) * 1000)
        found[name] = {"median_ms": statistics.median(times), "slowest_ms": max(times), "bytes": size}
    return found


def main() -> None:
    """Fill, ask, show a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "instep")
    parser.add_argument("--metrics", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--repetitions", type=int, default=11)
    parser.add_argument("--db", type=Path, metavar="FILE", help="keep the database, and use it if it is there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--stream", action="store_true", help="also read the whole trial as a stream")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = arguments.db or Path(folder) / "charts.db"
        filled: dict[str, float] = {}
        if not database.exists():
            with serve(arguments.binary, database) as master:
                fill(master, arguments.metrics, arguments.steps, arguments.runs)
                filled["memory_mib_after_filling"] = master.memory_mib()
        with serve(arguments.binary, database) as master:
            asked = questions(1, arguments.metrics, arguments.steps)
            results = measure(master, asked, arguments.repetitions)
            if arguments.stream:
                began = time.perf_counter()
                size = len(master.connect().ask("GET", "/api/v1/trials/metrics/training_metrics?trialIds=1"))
                took = (time.perf_counter() - began) * 1000
                results["stream: the whole trial"] = {"median_ms": took, "slowest_ms": took, "bytes": size}
            memory = master.memory_mib()
    size = f"{arguments.metrics} metrics at {arguments.steps} steps, {arguments.runs} runs"
    print(f"{size}, {os.cpu_count()} cores, {arguments.repetitions} repetitions")
    for name, figures in results.items():
        times = f"median {figures['median_ms']:8.1f} ms  slowest {figures['slowest_ms']:8.1f} ms"
        print(f"  {name:<48} {times}  {figures['bytes'] / 1024:9.0f} KiB")
    print(f"  most memory: {memory:.0f} MiB when read" + "".join(f", {v:.0f} MiB when filled" for v in filled.values()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"results": results, "memory_mib": memory, **filled}, indent=2) + "\n")


if __name__ == "__main__":
    main()
