"""Measures a master whose work another scheduler runs, while 1,000 jobs wait there.

    .venv/bin/python bench/engines.py [slurm] [--jobs 1000] [--seconds 60] [--gangs 10] [--nodes 4] [--json FILE]

One pool is full: an experiment with so many trials waits in the scheduler's queue. Once all are submitted, the master
is watched for so many seconds: its processor time, with that of the commands that it runs, and how often it calls the
scheduler. Then trials of several nodes run in a second pool, one after the other. The table shows how long each took
from when the scheduler had given it its nodes until the last of its scripts had begun.

The scheduler is real, with all its nodes on this machine (tests/slurm/cluster.py, which needs root). The targets are
5 % of a core, one call a second for each pool, and 2 s until the slowest gang runs; the exit code is 1 if one is
missed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {"core_percent": 5.0, "calls_per_second_and_pool": 1.0, "start_slowest_s": 2.0}
# The name of each pool: one whose jobs wait, and one whose jobs run at once.
FULL, FREE = "full", "free"
# Notes the call, and makes it.
WRAPPER = '#!/bin/sh\necho "{name}" >> "{calls}"\nexec "{program}" "$@"\n'
# Each node notes when its script begins.
SCRIPT = 'date +%s.%N > "{folder}/$DET_ALLOCATION_ID.$DET_AGENT_ID"'


class Slurm:
    """Slurm's daemons and a master that submits to them."""

    def __init__(self, folder: Path, binary: Path, nodes: int) -> None:
        self.folder, self.binary, self.nodes = folder, binary, nodes
        self.master: Any = None
        self._slurm: Any = None

    @contextlib.contextmanager
    def serve(self) -> Iterator[Slurm]:
        """Start all of it."""
        conftest = importlib.import_module("conftest")
        cluster, site = importlib.import_module("slurm.cluster"), importlib.import_module("slurm.site")
        run = conftest.Runner()
        partitions = (
            f"PartitionName={FULL} Nodes=n{self.nodes + 1} MaxTime=INFINITE State=UP",
            f"PartitionName={FREE} Nodes=n[1-{self.nodes}] Default=YES MaxTime=INFINITE State=UP",
        )
        with cluster.SlurmCluster(
            self.folder / "slurm", nodes=self.nodes + 1, gpus=0, partitions=partitions
        ) as self._slurm:
            self._slurm.submit("sleep infinity", f"--partition={FULL}", "--exclusive")
            tools, calls = self.folder / "tools", self.folder / "calls"
            tools.mkdir()
            calls.touch()
            for name in ("sbatch", "scancel", "squeue"):
                (tools / name).write_text(WRAPPER.format(name=name, calls=calls, program=shutil.which(name)))
                (tools / name).chmod(0o755)
            self.master = site.SlurmMaster(
                self._slurm, Path(sys.executable), run.start, self.binary, self.folder / "master.db", poll_interval=10
            )
            engine = self.master.engine
            self.master.pools = [{"pool_name": name, "engine": {**engine, "partition": name}} for name in (FULL, FREE)]
            try:
                self.master.start(wait_until)
                yield self
            finally:
                run.kill_all()

    def calls(self) -> list[str]:
        """Every call of the scheduler so far, by its name."""
        return (self.folder / "calls").read_text().split()

    def submissions(self) -> int:
        """How many jobs the master has submitted."""
        return self.calls().count("sbatch")

    def running(self) -> set[str]:
        """The allocations that have nodes, of those that need not wait."""
        shown = self._slurm.command("squeue", "--noheader", f"--partition={FREE}", "--states=RUNNING", "--format=%k")
        return {line.rpartition(":")[2] for line in shown.splitlines()}


SCHEDULERS = {"slurm": Slurm}


def wait_until(condition: Callable[[], object], seconds: float = 60, message: str | Callable[[], str] = "") -> None:
    """Wait on a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {seconds} s for {message() if callable(message) else message}")
        time.sleep(0.05)


def processor_seconds(pid: int) -> float:
    """What a process and the children that it has waited for have taken of the processors."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def experiment(api: Any, pool: str, entrypoint: str, trials: int, slots: int) -> int:  # noqa: ANN401
    """Create an experiment; its number."""
    config = {
        "name": f"load of {pool}",
        "entrypoint": ["sh", "-c", entrypoint],
        "searcher": {"name": "random", "metric": "x", "max_trials": trials, "max_concurrent_trials": 0},
        "hyperparameters": {"x": {"type": "double", "minval": 0, "maxval": 1}},
        "resources": {"slots_per_trial": slots, "resource_pool": pool},
        "checkpoint_storage": {"type": "shared_fs", "host_path": "/tmp"},
        "max_restarts": 0,
    }
    made = api("POST", "/api/v1/experiments", {"config": json.dumps(config), "activate": True})
    return int(made["experiment"]["id"])


def wait_in_queue(scheduler: Slurm, api: Any, jobs: int, seconds: float) -> dict[str, float]:  # noqa: ANN401
    """Have so many jobs wait, and look what that costs."""
    began = time.monotonic()
    experiment(api, FULL, "true", jobs, 1)
    wait_until(lambda: scheduler.submissions() >= jobs, 3600, lambda: f"{scheduler.submissions()} of {jobs} jobs")
    submitting = time.monotonic() - began

    def reasons() -> list[str]:
        found = api("GET", f"/api/v1/job-queues-v2?resourcePool={FULL}")["jobs"]
        return [job.get("full", job)["reason"] for job in found]

    wait_until(lambda: all("is pending (" in reason for reason in reasons()), 120, lambda: f"reasons: {reasons()}")
    pid = scheduler.master.process.pid
    calls, processor, began = len(scheduler.calls()), processor_seconds(pid), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    return {
        "submitting_s": submitting,
        "core_percent": 100 * (processor_seconds(pid) - processor) / passed,
        "calls_per_second_and_pool": (len(scheduler.calls()) - calls) / passed / 2,
        "memory_mb": psutil.Process(pid).memory_info().rss / 1e6,
    }


def start_gangs(scheduler: Slurm, api: Any, count: int) -> dict[str, float]:  # noqa: ANN401
    """Run trials on all nodes, one after the other, and look how long each takes to start."""
    marks = scheduler.folder / "marks"
    marks.mkdir()
    taken = []
    for _ in range(count):
        number = experiment(api, FREE, SCRIPT.format(folder=marks), 1, scheduler.nodes)
        given: dict[str, float] = {}

        def begun(given: dict[str, float] = given) -> bool:
            for allocation in scheduler.running():
                given.setdefault(allocation, time.time())
            return bool(given)

        wait_until(begun, 120, "the scheduler to give nodes")
        [(allocation, moment)] = given.items()

        def all_here(allocation: str = allocation) -> bool:
            return len(list(marks.glob(f"{allocation}.*"))) == scheduler.nodes

        wait_until(all_here, 120, lambda: f"scripts to begin: {sorted(marks.iterdir())}")
        time.sleep(0.1)
        taken.append(max(float(mark.read_text()) for mark in marks.glob(f"{allocation}.*")) - moment)
        path = f"/api/v1/experiments/{number}"

        def is_over(path: str = path) -> bool:
            # Its trial reports nothing, which the search calls an error.
            return api("GET", path)["experiment"]["state"] in ("STATE_COMPLETED", "STATE_ERROR")

        wait_until(is_over, 120, f"the end of experiment {number}")
    return {"start_median_s": statistics.median(taken), "start_slowest_s": max(taken)}


def main() -> None:
    """Measure, show a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scheduler", nargs="?", choices=SCHEDULERS, default="slurm")
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "instep")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--gangs", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("a cluster with several nodes on one machine needs root")
    sys.path.insert(0, str(ROOT / "tests"))
    with tempfile.TemporaryDirectory() as folder:
        made = SCHEDULERS[arguments.scheduler](Path(folder), arguments.binary, arguments.nodes)
        with made.serve() as scheduler:
            api = scheduler.master.client.login()
            result = wait_in_queue(scheduler, api, arguments.jobs, arguments.seconds)
            result |= start_gangs(scheduler, api, arguments.gangs)
    print(
        f"{arguments.scheduler}: {arguments.jobs} jobs wait, then {arguments.gangs} gangs of {arguments.nodes} nodes; "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}"
    )
    for name, value in result.items():
        target = f"  (target {TARGETS[name]:g})" if name in TARGETS else ""
        print(f"  {name:<28} {value:8.2f}{target}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"targets": TARGETS, **result}, indent=2) + "\n")
    missed = [name for name, target in TARGETS.items() if result[name] > target]
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
