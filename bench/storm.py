"""Ranks are killed at random moments, one after the other: how long the steps that were interrupted take, and whether
the weights are those of a training that nobody has disturbed.

    .venv/bin/python bench/storm.py [--ranks 4] [--kills 20] [--seconds S] [--spares hot] [--step-ms 100] [--width 512]
        [--json FILE]

A recovery lasts from the SIGKILL until every rank, the replacement included, has committed a step that it began after
it, less the median step. When spares are ready, all ranks that have one are killed, one after the other, then spares
are made again, until so many are killed or the time is over. The state is AdamW's: three times the parameters.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from recovery import VENV
from step_recovery import WORKER, Contender, all_train

WARM = "skips the imports"
READY = {"hot": "hot spares are ready", "0": ""}
MOST_P50_S, MOST_P99_S = 0.3, 1.0


def start(folder: Path, name: str, options: argparse.Namespace) -> Contender:
    """Start a training."""
    log = folder / f"{name}.log"
    command = [str(VENV / "instep"), "run", "--standalone", "--nproc-per-node", str(options.ranks), "--recover", "step"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "STEP_MS": str(options.step_ms), "WIDTH": str(options.width)}
    with log.with_suffix(".err").open("wb") as errors:
        job = subprocess.Popen(
            [*command, "--spares", options.spares, str(WORKER), "session", str(log)],
            env=environment,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    return Contender(name, log, options.ranks, [job], READY.get(options.spares, WARM))


def disturb(job: Contender, options: argparse.Namespace) -> list[float]:
    """Kill ranks; give how long the recoveries took."""
    deadline = time.monotonic() + options.seconds
    while (left := options.kills - len(job.kills)) and time.monotonic() < deadline:
        if not job.spares_come():
            raise SystemExit(f"no spares become ready:\n{job.errors()}")
        spares = options.ranks if options.spares == "hot" else max(1, int(options.spares))
        for rank in random.sample(range(options.ranks), min(spares, options.ranks, left)):
            job.kill(rank, within=2 * options.step_ms / 1000)
            if job.out:
                raise SystemExit(f"kill {len(job.kills) + 1}: the ranks do not train again:\n{job.errors()}")
            print(f"\rkilled: {len(job.kills)} of {options.kills}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [job.all_trained(kill) - kill.time for kill in job.kills]


def finish(job: Contender, steps: int) -> set[str]:
    """Let a training end after so many steps; give the digests of its ranks."""
    job.log.with_suffix(".end").write_text(str(steps))
    if not job.comes(lambda: job.processes[0].poll() is not None) or job.processes[0].returncode != 0:
        raise SystemExit(f"{job.name} does not end well:\n{job.errors()}")
    return {job.log.with_suffix(f".{rank}").read_text() for rank in range(job.ranks)}


def percentile(values: list[float], share: float) -> float:
    """The value that this share of all does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def main() -> int:
    """Measure, print the table and whether the limits hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no more kills after this time")
    parser.add_argument("--spares", default="hot", help="as of instep run: hot, or a number")
    parser.add_argument("--step-ms", type=int, default=100)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # Told to end, it takes its jobs with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = start(folder, "storm", options)
        try:
            if not job.comes(lambda: all_train(job.commits(), options.ranks)):
                raise SystemExit(f"the training does not begin:\n{job.errors()}")
            times = disturb(job, options)
            first: dict[int, float] = {}
            for line in job.commits():
                first.setdefault(line.step, line.time)
            # Far enough ahead that every rank sees it before it is there.
            steps = max(first) + max(5, 3000 // options.step_ms)
            disturbed = finish(job, steps)
        finally:
            job.end()
        moments = sorted(first.values())
        step_s = statistics.median(later - earlier for earlier, later in itertools.pairwise(moments))
        extra = [max(0.0, value - step_s) for value in times]
        shares = {f"p{share}": percentile(extra, share / 100) for share in (50, 90, 99)} | {"max": max(extra)}
        state = 3 * 4 * 4 * (options.width**2 + options.width)
        steps_of = f"steps of {step_s * 1000:.0f} ms"
        print(f"{options.ranks} ranks, {os.cpu_count()} cores, {state / 1e6:.0f} MB of state, {steps_of}")
        row = "".join(f"   {name} {value * 1000:.0f} ms" for name, value in shares.items())
        print(f"{len(times)} kills, spares {options.spares}:{row}", flush=True)
        calm = start(folder, "calm", argparse.Namespace(**{**vars(options), "spares": "0", "step_ms": 0}))
        try:
            undisturbed = finish(calm, steps)
        finally:
            calm.end()
    same = disturbed == undisturbed and len(disturbed) == 1
    print(f"same bits as undisturbed: {'yes' if same else 'NO'}")
    within = {"same bits": same}
    if options.spares == "hot":
        within |= {"p50 <= 0.3 s": shares["p50"] <= MOST_P50_S, "p99 <= 1 s": shares["p99"] <= MOST_P99_S}
    print(json.dumps({"within": within}))
    if options.json:
        found = {"cores": os.cpu_count(), "ranks": options.ranks, "spares": options.spares, "state_bytes": state}
        found |= {"step_s": step_s, "recoveries_s": extra, **shares, "within": within}
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
