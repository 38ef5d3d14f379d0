"""Loads a pool of Kubernetes with a long queue: 1,000 Jobs that wait, on a real control plane.

    .venv/bin/python bench/kubernetes_queue.py [--jobs 1000] [--seconds 60] [--gangs 5] [--binary FILE] [--json FILE]

The control plane and its nodes are those of tests/kubernetes, which says where its programs are looked for. No node has
room for the Jobs, so all of them wait. The table shows what submitting them took; what the master does when nothing
happens any more: the share of a processor, and calls to the API server, which a gateway before it counts; and how long
a gang of four pods, which may run on nodes that the others do not tolerate, takes from having its nodes until the
program of its last rank has started.

The targets: 5 % of a processor, one call a second, 2 s. The exit code is 1 if one is missed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
TARGETS = {"processor_percent": 5.0, "calls_per_second": 1.0, "gang_start_longest_s": 2.0}
GANG = 4
TAINT = "bench"
Json = dict[str, Any]


def wait_until(condition: Callable[[], object], timeout: float = 60, message: str | Callable[[], str] = "") -> None:
    """Wait for a condition, as the tests do."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {timeout} s for {message() if callable(message) else message}")
        time.sleep(0.02)


def processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Bench:
    """A control plane, a gateway before it, and a master with one pool."""

    def __init__(self, binary: Path, folder: Path, kubernetes: Any, gateway: Any) -> None:  # noqa: ANN401
        site = importlib.import_module("kubernetes.site")
        managed = importlib.import_module("managed.conftest")
        self.run = importlib.import_module("conftest").Runner()
        self.kubernetes, self.gateway, self.folder = kubernetes, gateway, folder
        settings = {"kubeconfig": str(gateway.kubeconfig(kubernetes.service_account()))}
        self.master = site.KubernetesMaster(
            kubernetes, Path(sys.executable), self.run.start, binary, folder / "master.db", **settings
        )
        self.master.start(wait_until)
        self.cluster = managed.Cluster(self.run, binary, Path(sys.executable), self.master, folder, wait_until)

    def create(self, name: str, entrypoint: str, slots: int, **more: object) -> None:
        """Submit an experiment without files."""
        config = self.cluster.config(
            entrypoint, name=name, resources={"slots_per_trial": slots, "resource_pool": "kubernetes"}, **more
        )
        request = {"config": json.dumps(config), "activate": True, "projectId": 1}
        self.cluster.api("POST", "/api/v1/experiments", request)

    def pods(self, selector: str = "") -> list[Json]:
        """The pods of the namespace that a query selects."""
        config = json.loads((self.kubernetes.folder / "kubeconfig").read_text())
        token, server = config["users"][0]["user"]["token"], config["clusters"][0]["cluster"]["server"]
        path = f"{server}/api/v1/namespaces/training/pods?{selector}"
        request = urllib.request.Request(path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, context=self.gateway.trust, timeout=30) as answer:
            found: list[Json] = json.load(answer)["items"]
        return found

    def fill(self, jobs: int) -> dict[str, float]:
        """Submit Jobs, and wait until all that happens because of them is over."""
        before, began = len(self.gateway.calls), time.monotonic()
        searcher = {"name": "random", "metric": "x", "max_trials": jobs, "max_concurrent_trials": jobs}
        self.create("queue", "true", 1, searcher=searcher)

        def submitted() -> int:
            return sum(call.method == "PATCH" for call in list(self.gateway.calls[before:]))

        wait_until(lambda: submitted() >= jobs, 1200, lambda: f"{jobs} Jobs, of {submitted()}")
        seconds, calls = time.monotonic() - began, len(self.gateway.calls) - before

        def waiting() -> int:
            return sum(bool(pod["status"].get("conditions")) for pod in self.pods())

        deadline = time.monotonic() + 1200
        while (count := waiting()) < jobs:
            assert time.monotonic() < deadline, f"only {count} of {jobs} pods wait for a node"
            time.sleep(1)
        return {"submitting_s": seconds, "calls_per_job": calls / jobs}

    def rest(self, seconds: float) -> dict[str, float]:
        """What the master does while nothing happens."""
        # What the scheduler has said last.
        time.sleep(15)
        before, used, began = len(self.gateway.calls), processor_seconds(self.master.process.pid), time.monotonic()
        time.sleep(seconds)
        elapsed, used = time.monotonic() - began, processor_seconds(self.master.process.pid) - used
        calls = self.gateway.calls[before:]
        print("calls at rest:", dict(Counter(map(str, calls))))
        return {"processor_percent": 100 * used / elapsed, "calls_per_second": len(calls) / elapsed}

    def start_gang(self, number: int) -> float:
        """Seconds from when a gang has its nodes until its last program has started."""
        say = f"sh -c 'date +%s.%N > $(mktemp {self.folder}/gang-{number}-XXXXXX); sleep 1'"
        tolerations = [{"key": TAINT, "operator": "Exists"}]
        environment = {"pod_spec": {"spec": {"tolerations": tolerations}}}
        searcher = {"name": "single", "metric": "x"}
        self.create(f"gang {number}", say, GANG, environment=environment, searcher=searcher)

        def placed() -> list[Json]:
            """The pods of the gang that have nodes; those of the queue have none, and earlier ones have ended."""
            return self.pods("fieldSelector=spec.nodeName!%3D,status.phase!%3DSucceeded,status.phase!%3DFailed")

        wait_until(lambda: len(placed()) == GANG, 120, "the gang to have nodes")
        had_nodes = time.time()

        def began() -> list[float]:
            texts = [mark.read_text() for mark in self.folder.glob(f"gang-{number}-*")]
            return [float(text) for text in texts if text.endswith("\n")]

        wait_until(lambda: len(began()) == GANG, 60, "the gang to start")
        wait_until(lambda: not placed(), 60, "the gang to end")
        return max(began()) - had_nodes


def measure(binary: Path, jobs: int, seconds: float, gangs: int) -> dict[str, float]:
    """Measure everything once."""
    cluster = importlib.import_module("kubernetes.cluster")
    gateway = importlib.import_module("kubernetes.gateway")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with cluster.KubernetesCluster(folder / "cluster") as kubernetes, gateway.Gateway(kubernetes.folder) as door:
            for number in range(GANG):
                kubernetes.start_node(f"node-{number}", "--cpu=1", "--ip=127.0.0.1")
            wait_until(lambda: len(kubernetes.kubectl("get", "nodes", "--output=name").split()) == GANG)
            kubernetes.kubectl("taint", "nodes", "--all", f"{TAINT}=1:NoSchedule")
            bench = Bench(binary, folder, kubernetes, door)
            try:
                result = {"jobs": jobs, **bench.fill(jobs), **bench.rest(seconds)}
                starts = [bench.start_gang(number) for number in range(gangs)]
            finally:
                bench.run.kill_all()
    return {**result, "gang_start_median_s": statistics.median(starts), "gang_start_longest_s": max(starts)}


def main() -> None:
    """Measure, show a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "instep")
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--gangs", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    result = measure(arguments.binary, arguments.jobs, arguments.seconds, arguments.gangs)
    print(f"a pool of Kubernetes, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}")
    for name, value in result.items():
        target = f"   (at most {TARGETS[name]:g})" if name in TARGETS else ""
        print(f"  {name:<22} {value:10.2f}{target}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"targets": TARGETS, **result}, indent=2) + "\n")
    if missed := [name for name, most in TARGETS.items() if result[name] > most]:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
