"""Collectives between hosts: instep against gloo in the same run, hosts being network namespaces of this machine.

    sudo .venv/bin/python bench/hosts.py [--hosts 2] [--each 1] [--rate 2.5gbit] [--rounds 9] [--json FILE]

Every host is a namespace with one virtual cable to a switch; `--rate` limits what it sends (tbf). The ranks are those
of `instep bench collectives`, which lets the backends take turns and compares every result. Needs root and iproute2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from instep.bench.reports import Reader

VENV = Path(sys.executable).parent
SIZES = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20)
OURS, GLOO = "instep", "gloo"
PORT = 29577
# Nobody has said anything for so long: a backend hangs.
SILENCE_S = 300.0
# What tbf lets through at once, and how long it holds back what is more.
BURST, HOLD = "1mb", "20ms"


class Hosts:
    """Namespaces at a switch."""

    def __init__(self, count: int, rate: str | None) -> None:
        self._name = f"instep-bench-{os.getpid()}"
        self.names = [f"{self._name}-{number}" for number in range(count)]
        self._switch = f"{self._name}-switch"
        self._rate = rate

    def create(self) -> None:
        """Make them and connect them."""
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "bridge", "up")
        for number, name in enumerate(self.names):
            interface = f"host{number}"
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            ends = ("link", "add", interface, "type", "veth", "peer", "name", interface)
            ip("-n", name, *ends, "netns", self._switch)
            ip("-n", self._switch, "link", "set", interface, "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{address(number)}/24", "dev", interface)
            ip("-n", name, "link", "set", interface, "up")
            if self._rate is not None:
                limit = ("root", "tbf", "rate", self._rate, "burst", BURST, "latency", HOLD)
                ip("netns", "exec", name, "tc", "qdisc", "add", "dev", interface, *limit)

    def remove(self) -> None:
        """Take them down; their interfaces go with them."""
        for name in (*self.names, self._switch):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def address(number: int) -> str:
    """Of a host."""
    return f"10.79.0.{number + 1}"


def ip(*words: str) -> None:
    """Run iproute2; a failure shows what it said."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"error: ip {' '.join(words)}: {done.stderr.strip()}\nhint: this needs root and iproute2")


@contextlib.contextmanager
def ranks(
    hosts: Hosts, options: argparse.Namespace, folder: str, said: IO[str]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """One launcher in every namespace; ended with the block."""
    launchers = []
    for number, name in enumerate(hosts.names):
        words = [
            f"--nnodes={options.hosts}",
            f"--node-rank={number}",
            f"--nproc-per-node={options.each}",
            "--no-status",
        ]
        words += ["--master-addr", address(0), "--master-port", str(PORT), "-m", "instep.bench.rank"]
        words += ["--folder", folder, "--rounds", str(options.rounds), "--backends", f"{OURS},{GLOO}"]
        words += ["--ops", options.ops, "--sizes", options.sizes]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": f"host{number}"}
        environment["VIRTUAL_ENV"] = str(VENV.parent)
        command = ["ip", "netns", "exec", name, str(VENV / "instep"), "run", *words]
        launchers.append(subprocess.Popen(command, env=environment, stdout=said, stderr=said))
    try:
        yield launchers
    finally:
        for launcher in launchers:
            if launcher.poll() is None:
                launcher.terminate()
        for launcher in launchers:
            launcher.wait()


def measure(hosts: Hosts, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the ranks to their end; the median of every case and backend."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+", errors="replace") as said:
        reader = Reader(Path(folder))
        with ranks(hosts, options, folder, said) as launchers:
            heard, case, ended = time.monotonic(), {}, False
            while not ended:
                # Asked before reading: what a rank wrote before its end is then read in this turn.
                ended = all(launcher.poll() is not None for launcher in launchers)
                for report in reader.new_reports(0 if ended else 0.2):
                    heard = time.monotonic()
                    if report["kind"] == "case":
                        case = {"operation": report["operation"], "bytes": report["count"] * 4}
                    elif report["kind"] == "times":
                        times = report["rounds_s"]
                        figures = {"time_us": statistics.median(times) * 1e6, "best_us": min(times) * 1e6}
                        rows.append({**case, "backend": report["backend"], **figures})
                    elif report["kind"] == "error":
                        raise SystemExit(f"error: {report['message']}\nhint: {report['hint']}")
                if time.monotonic() - heard > SILENCE_S:
                    raise SystemExit(f"error: no rank has reported anything for {SILENCE_S:.0f} s")
            failed = [launcher.returncode for launcher in launchers if launcher.returncode != 0]
        reader.close()
        if failed:
            said.seek(0)
            raise SystemExit(f"error: the ranks ended with status {failed[0]}; they said:\n{said.read()[-4000:]}")
    return rows


def main() -> int:
    """Measure, print the table, and how often instep was slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--each", type=int, default=1, help="ranks on every host")
    parser.add_argument("--rate", help="what a host may send, as tc spells it: 2.5gbit")
    parser.add_argument("--ops", default="all_reduce")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    hosts = Hosts(options.hosts, options.rate)
    try:
        hosts.create()
        rows = measure(hosts, options)
    finally:
        hosts.remove()
    print(
        f"{options.hosts} hosts with {options.each} ranks each, {options.rate or 'no limit'}; medians, best in brackets"
    )
    times = {(row["operation"], row["bytes"], row["backend"]): row for row in rows}
    slower = []
    for operation, size, backend in times:
        if backend != OURS or (operation, size, GLOO) not in times:
            continue
        ours, gloo = times[operation, size, OURS], times[operation, size, GLOO]
        ratio = gloo["time_us"] / ours["time_us"]
        cells = "".join(f"{row['time_us']:>12.1f} ({row['best_us']:>10.1f}) µs" for row in (ours, gloo))
        print(f"{operation:<15}{size:>12}{cells}{ratio:>8.2f}x")
        if ratio < 1:
            slower.append(f"{operation} of {size}")
    print(f"slower than gloo: {', '.join(slower) or 'nowhere'}")
    if options.json:
        facts = {"hosts": options.hosts, "each": options.each, "rate": options.rate, "cores": os.cpu_count()}
        options.json.write_text(json.dumps({**facts, "rounds": options.rounds, "results": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
