"""How fast a job comes back: a rank killed, a rank killed again at once, a node lost; torchrun in the same run.

    .venv/bin/python bench/recovery.py [--rounds 5] [--node-rounds 1] [--json FILE]

The workers import torch and then add to a tensor ten times a second. Where a rank is killed they form no process group:
under torchrun, whose restarts keep the keys of the store, ranks that meet again through gloo may dial the dead ones and
fail again and again. Where a node is lost they reduce through gloo, because torchrun notices the loss by that alone.
A recovery lasts from the SIGKILL to the first step of the new round. The jobs run side by side and are hit one after
the other, each only while the others rest, so that a noisy machine disturbs all of them alike.

    rank killed    `instep run --preload torch` with its spares ready, `instep run`, torchrun
    killed again   a second time at the first step after the first hit: no spare is ready, with or without --preload
    node lost      two launchers with --nnodes 1:2 on this machine; one is killed with its workers
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

VENV = Path(sys.executable).parent
WORKER = """\
import os, sys, time
import torch
import torch.distributed as dist
grouped = "grouped" in sys.argv
number = torch.ones(1)
if grouped:
    dist.init_process_group("gloo")
    dist.all_reduce(number)
rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
line = f"step {time.monotonic()} {os.getpid()} {rank} {world_size} {count}\\n"
os.write(1, line.encode())  # at once: under torchrun both workers write to one pipe
while True:
    time.sleep(0.1)
    dist.all_reduce(number) if grouped else number.add_(1)
"""
READY = "skips the imports"
DEADLINE_S = 180.0
WARM_LIMIT = 1 / 20
NODE_LIMIT = 1 / 10
# Two starts of the same job differ by a tenth and more: the median of pairs, and what is left of that in it.
AGAIN_LIMIT = 1.05


@dataclass(frozen=True)
class Step:
    """The first step of one worker in one round."""

    time: float
    pid: int
    rank: int
    world_size: int


class Job:
    """A launcher that runs, and what its workers have said."""

    def __init__(self, command: list[str]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        self.steps: list[Step] = []
        self.notes: list[str] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        for read, stream in ((self._step, self.process.stdout), (self.notes.append, self.process.stderr)):
            threading.Thread(target=self._read, args=(read, stream), daemon=True).start()

    @staticmethod
    def _read(take: object, stream: IO[str]) -> None:
        for line in stream:
            take(line)  # type: ignore[operator]

    def _step(self, line: str) -> None:
        if line.startswith("step "):
            _, when, pid, rank, world_size, _ = line.split()
            self.steps.append(Step(float(when), int(pid), int(rank), int(world_size)))

    def wait(self, condition: str, holds: object) -> None:
        """Wait until something holds, but not for ever."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():  # type: ignore[operator]
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"waited in vain for {condition}: {self.process.args}\n{''.join(self.notes)[-3000:]}")
            time.sleep(0.002)

    def after(self, count: int, workers: int) -> list[Step]:
        """The first steps of the round that begins after `count` steps."""
        self.wait(f"step {count + workers}", lambda: len(self.steps) >= count + workers)
        return self.steps[count : count + workers]

    def spares_ready(self, times: int) -> None:
        """Wait until the spares have become ready so many times."""
        self.wait("spares", lambda: sum(READY in note for note in list(self.notes)) >= times)

    def ready_count(self) -> int:
        """How often the spares have become ready so far."""
        return sum(READY in note for note in list(self.notes))

    def kill_rank(self, workers: int) -> float:
        """Kill the last worker of the current round; give the seconds until the first step of the next."""
        known = len(self.steps)
        killed = time.monotonic()
        os.kill(self.steps[-1].pid, signal.SIGKILL)
        return min(step.time for step in self.after(known, workers)) - killed

    def end(self) -> None:
        """End the launcher and whatever it started."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for step in self.steps:
            with contextlib.suppress(ProcessLookupError):
                os.kill(step.pid, signal.SIGKILL)


@contextlib.contextmanager
def jobs(*commands: list[str]) -> Iterator[list[Job]]:
    """Start launchers, and end them with all they started."""
    started: list[Job] = []
    try:
        for command in commands:
            started.append(Job(command))
        yield started
    finally:
        for job in started:
            job.end()


def ranks_killed(worker: Path, rounds: int) -> dict[str, list[float]]:
    """Kill a rank of each job in turn, and of ours a second time at once."""
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "10000"]
    instep, torchrun = [str(VENV / "instep"), "run"], [str(VENV / "torchrun")]
    times: dict[str, list[float]] = {"warm": [], "warm again": [], "cold": [], "cold again": [], "torchrun": []}
    commands = [
        [*instep, *options, "--preload", "torch", str(worker)],
        [*instep, *options, str(worker)],
        [*torchrun, *options, str(worker)],
    ]
    with jobs(*commands) as (warm, cold, torch):
        for job in (warm, cold, torch):
            job.after(0, 2)
        ready = 1
        for index in range(rounds):
            # In turn first: whoever is hit second finds the machine as the other has left it.
            for name, job in [("warm", warm), ("cold", cold)][:: -1 if index % 2 else 1]:
                # Each is hit while the spares are ready and nothing else happens.
                warm.spares_ready(ready)
                times[name].append(job.kill_rank(2))
                times[f"{name} again"].append(job.kill_rank(2))
                ready = warm.ready_count() + (job is warm)
            warm.spares_ready(ready)
            times["torchrun"].append(torch.kill_rank(2))
            print(f"\rrank killed: {index + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return times


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def node_lost(launcher: list[str], worker: Path) -> float:
    """Two nodes on this machine, the second is killed: seconds until the first step of the first alone."""
    options = ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    meeting = ["--rdzv-id", "recovery", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    command = [*launcher, *options, *meeting, str(worker), "grouped"]
    with contextlib.ExitStack() as stack:
        [first] = stack.enter_context(jobs(command))
        # The one at the endpoint must be the first.
        time.sleep(1.0 if "torchrun" not in launcher[0] else 8.0)
        [second] = stack.enter_context(jobs(command))
        both = [first, second]
        first.wait("two nodes", lambda: all(any(step.world_size == 2 for step in job.steps) for job in both))
        if "--preload" in launcher:
            first.spares_ready(1)
        known = len(first.steps)
        killed = time.monotonic()
        os.kill(second.process.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(second.steps[-1].pid, signal.SIGKILL)
        return first.after(known, 1)[0].time - killed


def nodes_lost(worker: Path, rounds: int) -> dict[str, list[float]]:
    """The same for each launcher, in turn."""
    launchers = {
        "instep --preload": [str(VENV / "instep"), "run", "--preload", "torch"],
        "instep": [str(VENV / "instep"), "run"],
        "torchrun": [str(VENV / "torchrun")],
    }
    times: dict[str, list[float]] = {name: [] for name in launchers}
    for index in range(rounds):
        for name, launcher in launchers.items():
            times[name].append(node_lost(launcher, worker))
        print(f"\rnode lost: {index + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return times


def show(title: str, times: dict[str, list[float]]) -> dict[str, float]:
    """Print medians and their ratio to torchrun's."""
    median = {name: statistics.median(values) for name, values in times.items() if values}
    print(f"{title:34} {'median':>10} {'worst':>10} {'torchrun /':>11}")
    for name, value in median.items():
        ratio = median["torchrun"] / value
        print(f"  {name:32} {value * 1000:7.0f} ms {max(times[name]) * 1000:7.0f} ms {ratio:10.1f}x")
    return median


def main() -> int:
    """Measure, print tables and whether the limits hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--node-rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # Told to end, it takes its jobs with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    within: dict[str, bool] = {}
    result: dict[str, object] = {"cores": os.cpu_count(), "within": within}
    with tempfile.TemporaryDirectory() as folder:
        worker = Path(folder, "worker.py")
        worker.write_text(WORKER)
        if options.rounds:
            killed = ranks_killed(worker, options.rounds)
            median = show("rank killed", killed)
            within[f"warm <= torchrun / {1 / WARM_LIMIT:.0f}"] = median["warm"] <= median["torchrun"] * WARM_LIMIT
            pairs = [one / other for one, other in zip(killed["warm again"], killed["cold again"], strict=True)]
            again = statistics.median(pairs)
            print(f"  killed again, with --preload / without: median {again:.2f}, {min(pairs):.2f} to {max(pairs):.2f}")
            within[f"warm again <= cold again * {AGAIN_LIMIT}"] = again <= AGAIN_LIMIT
            result["rank_killed_s"] = killed
        if options.node_rounds:
            lost = nodes_lost(worker, options.node_rounds)
            median = show("node lost", lost)
            best = median["instep --preload"]
            within[f"node lost <= torchrun / {1 / NODE_LIMIT:.0f}"] = best <= median["torchrun"] * NODE_LIMIT
            result["node_lost_s"] = lost
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({"within": within}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
