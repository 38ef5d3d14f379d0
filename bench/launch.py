"""What a launcher adds: time until a worker's first line, and memory while workers run; torchrun in the same run.

    .venv/bin/python bench/launch.py [--rounds 30] [--two-nodes] [--json FILE]

A round starts the same one-line worker bare, under `instep run` and (every few rounds, since it takes seconds) under
torchrun, one after the other, so that a noisy machine disturbs all of them alike. The worker prints the system's
monotonic clock; the time counts from just before its launcher is started. "Added" is the median less the bare median.

With --two-nodes a round also starts two launchers of a job on this machine, without a token and with one: the time
counts from just before the second is started, when the first waits for it, to the last worker's first line.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VENV = Path(sys.executable).parent
WORKER = "import time; print(time.monotonic(), flush=True)\n"
SLEEPER = "import time; print('up', flush=True); time.sleep(60)\n"
TORCHRUN_EVERY = 6
ADDED_LIMIT_MS = 6.0
TOKEN_LIMIT_MS = 20.0
RATIO_LIMIT = 300.0
MEMORY_LIMIT_MB = 15.0


def first_line_ms(command: list[str]) -> float:
    """Milliseconds from the start of the command to the worker's first line."""
    start = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return (float(done.stdout.split()[0]) - start) * 1000


def two_nodes_ms(worker: Path, token: Path | None) -> float:
    """Milliseconds from the start of a job's second launcher to the last worker's first line."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    given = [] if token is None else ["--job-token-file", str(token)]
    meeting = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port), *given]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(rank: int) -> subprocess.Popen[str]:
        words = [str(VENV / "instep"), "run", *meeting, "--node-rank", str(rank), str(worker)]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=environment)

    with start(0) as first:
        assert first.stderr is not None
        line = first.stderr.readline()
        assert "waiting for 1 more node" in line, line
        began = time.monotonic()
        with start(1) as second:
            printed = [node.communicate()[0] for node in (first, second)]
    return (max(float(text.split()[0]) for text in printed) - began) * 1000


def resident_mb(command: list[str]) -> float:
    """Peak resident memory of the launcher itself, with its workers up."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as launcher:
        assert launcher.stdout is not None
        for _ in range(4):
            launcher.stdout.readline()
        status = Path(f"/proc/{launcher.pid}/status").read_text()
        launcher.terminate()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) / 1024


def main() -> int:
    """Measure, print a table, the ratio and whether the limits hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--two-nodes", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        worker, sleeper = Path(folder, "worker.py"), Path(folder, "sleeper.py")
        worker.write_text(WORKER)
        sleeper.write_text(SLEEPER)
        commands = {
            "python": [str(VENV / "python"), "-u", str(worker)],
            "instep run": [str(VENV / "instep"), "run", str(worker)],
            "torchrun": [str(VENV / "torchrun"), str(worker)],
        }
        token = Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        times: dict[str, list[float]] = {name: [] for name in commands}
        joint: dict[str, list[float]] = {"two nodes": [], "with a token": []}
        for index in range(options.rounds):
            for name, command in commands.items():
                if name != "torchrun" or index % TORCHRUN_EVERY == 0:
                    times[name].append(first_line_ms(command))
            if options.two_nodes:
                joint["two nodes"].append(two_nodes_ms(worker, None))
                joint["with a token"].append(two_nodes_ms(worker, token))
            print(f"\rround {index + 1} of {options.rounds}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        four = ["--nproc-per-node", "4", str(sleeper)]
        memory = {name: resident_mb([*commands[name][:-1], *four]) for name in ("instep run", "torchrun")}

    median = {name: statistics.median(values) for name, values in times.items()}
    added = {name: median[name] - median["python"] for name in ("instep run", "torchrun")}
    ratio = added["torchrun"] / added["instep run"]
    print(f"{'':12} {'first line':>12} {'added':>12} {'memory':>10}")
    for name in commands:
        extra = f"{added[name]:9.2f} ms {memory[name]:7.1f} MB" if name in added else ""
        print(f"{name:12} {median[name]:9.2f} ms {extra}")
    print(f"torchrun adds {ratio:.0f} times what instep adds")

    later = None
    if options.two_nodes:
        alone, proved = (statistics.median(values) for values in joint.values())
        later = proved - alone
        print(f"two nodes: {alone:.2f} ms, with a token {proved:.2f} ms: {later:.2f} ms later")

    result = {
        "cores": os.cpu_count(),
        "rounds": options.rounds,
        "first_line_ms": times,
        "added_ms": added,
        "two_nodes_ms": joint,
        "ratio": ratio,
        "resident_mb": memory,
        "within": {
            f"added <= {ADDED_LIMIT_MS} ms": added["instep run"] <= ADDED_LIMIT_MS,
            f"ratio >= {RATIO_LIMIT}": ratio >= RATIO_LIMIT,
            **({} if later is None else {f"token <= {TOKEN_LIMIT_MS} ms": later <= TOKEN_LIMIT_MS}),
            f"memory <= {MEMORY_LIMIT_MB} MB": memory["instep run"] <= MEMORY_LIMIT_MB,
        },
    }
    text = json.dumps(result, indent=2)
    if options.json:
        options.json.write_text(text + "\n")
    print(json.dumps({"within": result["within"]}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
