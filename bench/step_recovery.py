"""A rank is killed: how long until training goes on, and what becomes of its samples; torchrun and torchft beside us.

    .venv/bin/python bench/step_recovery.py [--torchft FOLDER] [--ranks 2] [--rounds 5] [--every 60] [--step-ms 250]
        [--width 512] [--json FILE]

    uv pip install --target FOLDER opentelemetry-exporter-otlp-proto-http opentelemetry-sdk
    uv pip install --target FOLDER --no-deps torchft==0.2.0

The contenders train the same model on the same samples, side by side. Once a minute each of them loses a random rank by
SIGKILL, every one at its own second of the minute; who has not recovered by then, or has no spare ready again, is
killed once it has. Who has not recovered after two minutes is out.

    instep step        `instep run --recover step --spares hot`, an `instep.elastic.Session`
    instep restart     `instep run --preload torch`, snapshots every 20 steps
    torchrun           the same script over gloo
    torchft            a lighthouse and a torchrun for every replica, torchft's defaults
    torchft, tuned     with time-outs as short as they may be for these steps

Columns: the steps a second without faults; the time from the kill to the first commit of a new step begun after it
(survivors may commit without the lost rank, as torchft's do), and until all ranks commit again; the time of training
that a kill costs; ETTR, the share of time with one kill a minute that becomes training; samples that no committed step
has had, and those that more than one had.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from recovery import VENV, free_port

WORKER = Path(__file__).with_name("step_recovery_worker.py")
DEADLINE_S = 120.0
KILL_EVERY_S = 60.0  # what ETTR is said of
STEPS_BETWEEN = 6
READY = {"instep step": "hot spares are ready", "instep restart": "spare interpreters are ready"}


@dataclass(frozen=True)
class Line:
    """A step that one rank has tried or committed."""

    time: float
    rank: int
    pid: int
    kind: str
    step: int
    samples: str


@dataclass
class Contender:
    """A job that runs, and what its ranks have written."""

    name: str
    log: Path
    ranks: int
    processes: list[subprocess.Popen[bytes]]
    # What it prints when its spares are ready, if it has any, and how often it had when the last rank was killed.
    ready: str = ""
    seen: int = 0
    kills: list[Kill] = field(default_factory=list)
    out: bool = False
    # What was read of the log so far.
    known: list[Line] = field(default_factory=list)
    offset: int = 0

    def lines(self) -> list[Line]:
        """Read what the ranks have written so far."""
        if self.log.exists():
            with self.log.open("rb") as log:
                log.seek(self.offset)
                text = log.read()
            text = text[: text.rfind(b"\n") + 1]
            self.offset += len(text)
            for row in text.decode().splitlines():
                moment, rank, pid, kind, step, samples = row.split(" ")
                self.known.append(Line(float(moment), int(rank), int(pid), kind, int(step), samples))
        return self.known

    def commits(self) -> list[Line]:
        """Read the steps that were committed."""
        return [line for line in self.lines() if line.kind == "commit"]

    def comes(self, holds: Callable[[], bool]) -> bool:
        """Wait until something holds, but not for ever."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            ended = all(process.poll() is not None for process in self.processes)
            if ended or time.monotonic() > deadline:
                return holds()
            time.sleep(0.05)
        return True

    def spares_come(self) -> bool:
        """Wait until spares have been made since the last kill."""
        return not self.ready or self.comes(lambda: self.printed(self.ready) > self.seen)

    def kill(self, rank: int, within: float = 1.0) -> None:
        """Kill a rank at a random moment, and wait until all ranks have done new steps."""
        time.sleep(random.uniform(0.0, within))
        latest = {line.rank: line.pid for line in self.lines()}
        self.seen = self.printed(self.ready) if self.ready else 0
        kill = Kill(time.monotonic(), rank, latest[rank])
        os.kill(kill.pid, signal.SIGKILL)
        if self.comes(lambda: all_train(self.new_commits(kill), self.ranks)):
            self.kills.append(kill)
        else:
            self.out = True
            self.end()

    def new_commits(self, kill: Kill) -> list[Line]:
        """Give the commits, begun after a kill, of steps that nobody had committed before it."""
        lines = self.lines()
        after = bisect.bisect_right(lines, kill.time, key=lambda line: line.time)
        # Snapshots make a rank do steps again that it did long ago.
        last = max((line.step for line in lines[:after] if line.kind == "commit"), default=-1)
        began: set[int] = set()
        fresh = []
        for line in lines[after:]:
            if line.kind == "try":
                began.add(line.pid)
            elif line.pid in began and line.step > last:
                fresh.append(line)
        return fresh

    def all_trained(self, kill: Kill) -> float:
        """Say when every rank had committed a step that it had begun after a kill."""
        by_rank: dict[int, float] = {}
        for line in self.new_commits(kill):
            by_rank.setdefault(line.rank, line.time)
        return max(by_rank.values())

    def printed(self, text: str) -> int:
        """Say how often the job has printed this."""
        return self.log.with_suffix(".err").read_text(errors="replace").count(text)

    def errors(self) -> str:
        """Give the end of what the job has printed."""
        return self.log.with_suffix(".err").read_text(errors="replace")[-3000:]

    def end(self) -> None:
        """End the job with all it started."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for pid in {line.pid for line in self.lines()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def all_train(commits: list[Line], ranks: int) -> bool:
    """Whether every rank has committed some steps."""
    counts = collections.Counter(line.rank for line in commits)
    return len(counts) == ranks and min(counts.values()) >= STEPS_BETWEEN


@dataclass(frozen=True)
class Kill:
    """When a rank was killed."""

    time: float
    rank: int
    pid: int


def start(name: str, folder: Path, options: argparse.Namespace) -> Contender:
    """Start one contender."""
    log = folder / f"{name.replace(' ', '-').replace(',', '')}.log"
    errors = log.with_suffix(".err").open("wb")
    base = {**os.environ, "OMP_NUM_THREADS": "1", "STEP_MS": str(options.step_ms), "WIDTH": str(options.width)}

    def launch(command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, env={**base, **environment}, stdout=errors, stderr=errors, start_new_session=True
        )

    job = ["--standalone", "--nproc-per-node", str(options.ranks), "--max-restarts", "10000"]
    instep, torchrun = [str(VENV / "instep"), "run"], [str(VENV / "torchrun")]
    if name == "instep step":
        command = [*instep, *job, "--recover", "step", "--spares", "hot", str(WORKER), "session", str(log)]
        processes = [launch(command)]
    elif name == "instep restart":
        command = [*instep, *job, "--preload", "torch", str(WORKER), "snapshots", str(log)]
        processes = [launch(command, BACKEND="instep")]
    elif name == "torchrun":
        processes = [launch([*torchrun, *job, str(WORKER), "snapshots", str(log)], BACKEND="gloo")]
    else:
        processes = torchft(name, log, options, launch)
    return Contender(name, log, options.ranks, processes, READY.get(name, ""))


def torchft(
    name: str, log: Path, options: argparse.Namespace, launch: Callable[..., subprocess.Popen[bytes]]
) -> list[subprocess.Popen[bytes]]:
    """Start a lighthouse, and for every replica a torchrun that restarts it."""
    port = free_port()
    tuned = name != "torchft"
    # A replica is given up when it was silent for longer than two steps, and nobody waits for stragglers.
    silence = max(500, 2 * options.step_ms)
    settings = ["--heartbeat_timeout_ms", str(silence), "--join_timeout_ms", "200", "--quorum_tick_ms", "10"]
    path = {"PYTHONPATH": str(options.torchft)}
    lighthouse = [sys.executable, str(options.torchft / "bin" / "torchft_lighthouse"), "--min_replicas", "1"]
    bind = ["--bind", f"127.0.0.1:{port}"]
    processes = [launch([*lighthouse, *bind, *(settings if tuned else [])], **path)]
    for replica in range(options.ranks):
        job = ["--standalone", "--nproc-per-node", "1", "--max-restarts", "10000", "--monitor-interval", "0.1"]
        environment = {
            **path,
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
            "REPLICA": str(replica),
            "REPLICAS": str(options.ranks),
            "PATIENCE": str(max(2.0, 4 * options.step_ms / 1000)) if tuned else "60",
            "HEARTBEAT": "0.05" if tuned else "0.1",
        }
        command = [str(VENV / "torchrun"), *job, str(WORKER), "torchft", str(log)]
        processes.append(launch(command, **environment))
    return processes


@contextlib.contextmanager
def running(names: list[str], folder: Path, options: argparse.Namespace) -> Iterator[list[Contender]]:
    """Start all contenders, one after the other, and end them."""
    contenders: list[Contender] = []
    try:
        for name in names:
            contenders.append(start(name, folder, options))
            if not contenders[-1].comes(lambda: all_train(contenders[-1].commits(), options.ranks)):
                raise SystemExit(f"{name} does not begin to train:\n{contenders[-1].errors()}")
        yield contenders
    finally:
        for contender in contenders:
            contender.end()


def disturb(contenders: list[Contender], end: float, options: argparse.Namespace) -> None:
    """Kill ranks of all contenders, each of them in its own part of the period, until `end`."""

    def storm(contender: Contender, moment: float) -> None:
        while not contender.out and moment <= end:
            time.sleep(max(0.0, moment - time.monotonic()))
            if contender.spares_come():
                contender.kill(random.randrange(options.ranks))
            else:
                contender.out = True
            moment = max(moment + options.every, time.monotonic())

    apart = options.every / len(contenders)
    begin = time.monotonic()
    threads = [
        threading.Thread(target=storm, args=(contender, begin + apart * number))
        for number, contender in enumerate(contenders)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        killed = ", ".join(f"{contender.name} {len(contender.kills)}" for contender in contenders)
        print(f"\rkilled and back: {killed}", end="", file=sys.stderr, flush=True)
        time.sleep(1)
    print(file=sys.stderr)


@dataclass(frozen=True)
class Result:
    """What the kills have cost a contender."""

    steps_per_s: float
    next_step_s: list[float]
    all_ranks_s: list[float]
    lost_s: list[float]
    ettr: float
    samples_lost: int
    samples_repeated: int


def result(contender: Contender, calm: tuple[float, float]) -> Result:
    """Say what one contender's kills have cost."""
    lines = contender.lines()
    commits = [line for line in lines if line.kind == "commit"]
    first: dict[int, float] = {}
    for line in commits:
        first.setdefault(line.step, line.time)
    steady = sorted(moment for moment in first.values() if calm[0] <= moment <= calm[1])
    step_s = statistics.median(later - earlier for earlier, later in itertools.pairwise(steady))
    next_s, all_s, lost_s = [], [], []
    for kill in contender.kills:
        fresh = contender.new_commits(kill)
        next_s.append(min(line.time for line in fresh) - kill.time)
        full = contender.all_trained(kill)
        all_s.append(full - kill.time)
        # Every rank's commit of a new step is its share of that step's work.
        work = sum(1 for line in fresh if line.time <= full)
        lost_s.append(max(0.0, full - kill.time - work / contender.ranks * step_s))
    history = samples(contender, lines)
    expected = max(step for step, _ in history) + 1
    counts = collections.Counter(sample for taken in history.values() for sample in taken.split(","))
    wanted = expected * contender.ranks * len(next(iter(history.values())).split(","))
    return Result(
        steps_per_s=1 / step_s,
        next_step_s=next_s,
        all_ranks_s=all_s,
        lost_s=lost_s,
        ettr=1 - statistics.mean(lost_s) / KILL_EVERY_S,
        samples_lost=max(0, wanted - len(counts)),
        samples_repeated=sum(counts.values()) - len(counts),
    )


def samples(contender: Contender, lines: list[Line]) -> dict[tuple[int, int], str]:
    """The samples that each step of each rank has had, in the history that the weights have."""
    history: dict[tuple[int, int], str] = {}
    committed = {line.step for line in lines if line.kind == "commit"}
    last: dict[int, Line] = {}
    for line in lines:
        if line.kind == "try":
            last[line.pid] = line
            # A step is one of all ranks, except torchft's: who died before it said so has given its gradients.
            if not contender.name.startswith("torchft") and line.step in committed:
                history[line.step, line.rank] = line.samples
        elif line.pid in last:
            history[line.step, line.rank] = last[line.pid].samples
    return history


def show(results: dict[str, Result]) -> None:
    """Print the table."""
    times = f"{'next step':>10} {'worst':>8} {'all ranks':>10} {'worst':>8} {'costs':>8}"
    print(f"{'':16} {'steps/s':>8} {times} {'ETTR':>8} {'lost':>8} {'repeated':>9}")
    for name, row in results.items():
        following = f"{statistics.median(row.next_step_s):8.2f} s {max(row.next_step_s):6.2f} s"
        everybody = f"{statistics.median(row.all_ranks_s):8.2f} s {max(row.all_ranks_s):6.2f} s"
        costs = f"{statistics.mean(row.lost_s):6.2f} s {row.ettr:8.2%}"
        print(f"{name:16} {row.steps_per_s:8.2f} {following} {everybody} {costs}", end="")
        print(f" {row.samples_lost:8d} {row.samples_repeated:9d}")


def main() -> int:
    """Measure, print the table and whether the limits hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torchft", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calm", type=float, default=15.0, help="seconds without faults, before the first kill")
    parser.add_argument("--every", type=float, default=60.0, help="seconds from one kill of a contender to its next")
    parser.add_argument("--step-ms", type=int, default=250)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # Told to end, it takes its jobs with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = ["instep step", "instep restart", "torchrun"]
    if options.torchft:
        options.torchft = options.torchft.resolve()
        names += ["torchft", "torchft, tuned"]
    else:
        print("without torchft: give its folder with --torchft", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder, running(names, Path(folder), options) as contenders:
        begin = time.monotonic()
        time.sleep(options.calm)
        calm = begin, time.monotonic()
        end = calm[1] + options.rounds * options.every
        disturb(contenders, end, options)
        results = {contender.name: result(contender, calm) for contender in contenders if contender.kills}
        for contender in contenders:
            if contender.out:
                print(f"{contender.name}: kill {len(contender.kills) + 1} was its last; it did not train again")
    show(results)
    ours = results["instep step"]
    within = {
        "ETTR >= 99 %": ours.ettr >= 0.99,
        "no sample lost or repeated": ours.samples_lost == ours.samples_repeated == 0,
    }
    if peer := results.get("torchft, tuned"):
        ratio = statistics.median(peer.all_ranks_s) / statistics.median(ours.all_ranks_s)
        print(f"torchft, tuned / instep step, until all ranks train: {ratio:.1f}x")
        within["10x as fast as torchft, tuned"] = ratio >= 10
    print(json.dumps({"within": within}))
    if options.json:
        rows = {name: asdict(row) for name, row in results.items()}
        options.json.write_text(
            json.dumps({"cores": os.cpu_count(), "results": rows, "within": within}, indent=2) + "\n"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
