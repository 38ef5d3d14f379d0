"""Starts the ranks of `instep bench collectives`, follows their reports and shows the figures.

The `instep` binary parses the options, names itself in INSTEP_BINARY and becomes this module, which therefore takes
its arguments in one canonical form only. Figures go to stdout, talk to stderr.
Exit status: 0 when everything was measured and right, 1 when something was not, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from instep import _binary
from instep.bench import hosts, table
from instep.bench.case import BUFFERS, Case, Figure, spell_size
from instep.bench.hosts import Hosts
from instep.bench.reports import Reader, Refusal

# Between two reports lies one round at most. Importing torch in many ranks at once comes before the first.
SILENCE_S = 300.0
STOP_TIMEOUT_S = 10.0
POLL_INTERVAL_S = 0.2
# More would only scroll the reason away.
OUTPUT_LINES = 40


class Progress:
    """One line on a terminal's stderr that says where the run is; nothing elsewhere."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._on:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Make room for what is printed next."""
        self.show("")


class Run:
    """One run: the ranks, their reports, what is known so far."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._backends: list[str] = options.backends.split(",")
        self._progress = Progress()
        self._figures: list[Figure] = []
        self._unable: list[dict[str, Any]] = []
        self._torch = ""
        # The case whose figures are coming in: of rank 0, one report a backend.
        self._world_size: int = options.nproc * (options.hosts or options.nnodes)
        self._case = Case("", self._world_size, 0)
        self._calls: dict[str, int] = {}
        self._pending: list[Figure] = []
        self._shown_operation = ""
        self._hosts = Hosts(options.hosts, options.rate, options.delay_us) if options.hosts else None
        self._one_way_s = 0.0

    def carry_out(self) -> None:
        """Make the hosts, if some are asked for, and have the ranks measure on them."""
        if self._hosts is None:
            return self._measure()
        try:
            self._hosts.create()
            self._one_way_s = self._hosts.one_way_s()
            self._measure()
        finally:
            self._hosts.remove()

    def _measure(self) -> None:
        """Start the ranks and follow them to their end; Refusal when that is not a good one."""
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            reader = Reader(self._folder)
            self._progress.show(f"starting {self._world_size} ranks")
            processes: list[subprocess.Popen[bytes]] = []
            try:
                for command, variables in self._commands():
                    environment = {**self._environment(), **variables}
                    processes.append(
                        subprocess.Popen(
                            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                        )
                    )
                self._follow(processes, reader)
            finally:
                stop(processes)
                reader.close()
                self._progress.clear()
            failed = [process.returncode for process in processes if process.returncode != 0]
            if failed:
                output.seek(0)
                said = output.read().strip().splitlines()[-OUTPUT_LINES:]
                raise Refusal(
                    "\n".join([f"the ranks ended with status {failed[0]}; their output:", *said]),
                    "run `instep doctor` to check this machine",
                )

    def _follow(self, processes: list[subprocess.Popen[bytes]], reader: Reader) -> None:
        heard = time.monotonic()
        ended = False
        while not ended:
            # Asked before reading: what a rank wrote before its end is then read in this turn.
            ended = all(process.poll() is not None for process in processes)
            for report in reader.new_reports(0 if ended else POLL_INTERVAL_S):
                heard = time.monotonic()
                self._on(report)
            if time.monotonic() - heard > SILENCE_S:
                raise Refusal(
                    f"no rank has reported anything for {SILENCE_S:.0f} s",
                    "a smaller --sizes or fewer ranks may show which backend hangs",
                )

    def _commands(self) -> Iterator[tuple[list[str], dict[str, str]]]:
        """What starts the ranks, on each host, and the variables it needs there."""
        if self._hosts is None:
            yield self._command([]), {}
            return
        for number in range(self._hosts.count):
            nodes = [f"--nnodes={self._hosts.count}", f"--node-rank={number}"]
            nodes += [f"--master-addr={hosts.address_of(0)}", f"--master-port={hosts.PORT}"]
            enter = ["ip", "netns", "exec", self._hosts.namespace(number)]
            yield [*enter, *self._command(nodes)], {"GLOO_SOCKET_IFNAME": hosts.interface_of(number)}

    def _command(self, nodes: list[str]) -> list[str]:
        options = self._options
        module = ["-m", "instep.bench.rank", "--folder", str(self._folder), "--rounds", str(options.rounds)]
        module += ["--backends", options.backends, "--ops", options.ops, "--sizes", options.sizes]
        if "mpi" not in self._backends:
            launcher = os.environ.get("INSTEP_BINARY") or str(_binary.find())
            if options.nnodes > 1:
                nodes = [f"--nnodes={options.nnodes}", f"--node-rank={options.node_rank}"]
                nodes += [f"--master-addr={options.master_addr}", f"--master-port={options.master_port}"]
            place = nodes or ["--standalone"]
            return [launcher, "run", *place, f"--nproc-per-node={options.nproc}", "--no-status", *module]
        # More ranks than cores are welcome here, and none is tied to a core that another backend would want.
        command = ["mpirun", "-np", str(options.nproc), "--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        return [*command, sys.executable, *module]

    def _environment(self) -> dict[str, str]:
        """This interpreter and this package for the ranks, wherever the package lies; one thread a rank."""
        package_parent = str(Path(__file__).resolve().parents[2])
        search_path = [*filter(None, [os.environ.get("PYTHONPATH")]), package_parent]
        ours = {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable, "PYTHONPATH": os.pathsep.join(search_path)}
        return {**os.environ, **ours}

    def _on(self, report: dict[str, Any]) -> None:
        match report["kind"]:
            case "start":
                self._torch, self._world_size = report["torch"], report["world_size"]
                self._begin()
            case "round":
                where = f"{report['operation']} {spell_size(report['bytes'])}"
                self._progress.show(f"{where}: round {report['number'] + 1} of {self._options.rounds}")
            case "unable":
                self._unable.append({name: report[name] for name in ("operation", "backend", "reason")})
            case "case":
                self._case = Case(report["operation"], self._world_size, report["count"])
                self._calls = report["calls"]
                self._pending = []
            case "times":
                backend = report["backend"]
                self._pending.append(Figure(self._case, backend, tuple(report["rounds_s"]), self._calls[backend]))
            case "done":
                self._figures += self._pending
                self._show_line()
            case "error":
                raise Refusal(report["message"], report["hint"])

    def _begin(self) -> None:
        if not self._options.json:
            self._print(
                f"{self._world_size} ranks on {self._where()}, float32, torch {self._torch}; "
                f"medians of {self._options.rounds} rounds; bandwidths in GB/s"
            )

    def _where(self) -> str:
        """The machine, or the hosts and what lies between them."""
        cores, options = len(os.sched_getaffinity(0)), self._options
        if options.nnodes > 1:
            return f"{options.nnodes} hosts"
        if self._hosts is None:
            return f"{cores} cores"
        rate = f" of {options.rate}" if options.rate else ""
        way = table.spell_time(self._one_way_s)
        return f"{options.hosts} hosts on {cores} cores, with links{rate} that take {way} one way"

    def _show_line(self) -> None:
        if self._options.json or not self._pending:
            return
        if self._case.operation != self._shown_operation:
            self._shown_operation = self._case.operation
            self._print("", *table.headings(self._case.operation, self._backends))
        self._print(table.line(self._backends, self._pending))

    def _print(self, *lines: str) -> None:
        self._progress.clear()
        sys.stdout.write("".join(f"{text}\n" for text in lines))
        sys.stdout.flush()

    def finish(self) -> None:
        """Print what is left to say."""
        if self._options.json and self._options.node_rank == 0:
            self._print(json.dumps(self.as_json(), indent=2))
            return
        for unable in self._unable:
            self._print("", f"{unable['backend']} has no {unable['operation']}: {unable['reason']}")

    def as_json(self) -> dict[str, object]:
        """Everything, for programs."""
        return {
            "world_size": self._world_size,
            "hosts": self._options.hosts or self._options.nnodes,
            "rate": self._options.rate,
            "one_way_us": self._one_way_s * 1e6 if self._hosts else None,
            "cores": len(os.sched_getaffinity(0)),
            "torch": self._torch,
            "dtype": "float32",
            "backends": self._backends,
            "rounds": self._options.rounds,
            "results": [figure.as_json() for figure in self._figures],
            "unable": self._unable,
        }


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the launchers that still run; they end their ranks."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    for process in running:
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def refuse_what_cannot_work(options: argparse.Namespace) -> None:
    """Find what is missing before any rank is started."""
    backends = options.backends.split(",")
    if importlib.util.find_spec("torch") is None:
        raise Refusal(f"torch is not installed for {sys.executable}", f"{sys.executable} -m pip install torch")
    if "mpi" in backends and shutil.which("mpirun") is None:
        raise Refusal("mpi needs `mpirun`, which is not on PATH", "install Open MPI, or leave mpi out of --backends")
    if "nccl" in backends and (gpus := gpu_count()) < options.nproc:
        hint = f"--nproc {gpus}, or leave nccl out of --backends" if gpus >= 2 else "leave nccl out of --backends"
        raise Refusal(f"nccl needs a GPU for every rank: {options.nproc} ranks, this machine shows {gpus} GPUs", hint)
    if options.nproc * (options.hosts or options.nnodes) < 2:
        raise Refusal("a single rank has no peer to exchange data with", "--nproc 2, or several hosts")
    if options.hosts:
        hosts.refuse_where_there_can_be_none(options.hosts)
    if "mpi" in backends and (options.hosts or options.nnodes > 1):
        raise Refusal("mpi runs on one host only", "leave mpi out of --backends")
    largest = max(map(int, options.sizes.split(",")))
    ranks = options.nproc * max(options.hosts, 1)
    needed = largest * BUFFERS * ranks
    if (free := available_memory()) is not None and needed > free:
        raise Refusal(
            f"{ranks} ranks with buffers of {spell_size(largest)} need about {needed >> 20} MiB of memory, "
            f"{free >> 20} MiB are free",
            "a smaller --sizes, or fewer ranks with --nproc",
        )


def gpu_count() -> int:
    """GPUs that the driver shows to this process; 0 without a driver. CUDA_VISIBLE_DEVICES counts."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def available_memory() -> int | None:
    """Bytes that can be had without swapping; None where the kernel does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    values = [line.split()[1] for line in text.splitlines() if line.startswith("MemAvailable:")]
    return int(values[0]) * 1024 if values else None


def parse_options() -> argparse.Namespace:
    """Read what the binary passes on; it has checked all of it."""
    parser = argparse.ArgumentParser(prog="instep bench collectives")
    parser.add_argument("--nproc", type=int, required=True)
    parser.add_argument("--backends", required=True)
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--ops", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--hosts", type=int, default=0)
    parser.add_argument("--rate")
    parser.add_argument("--delay-us", type=float, default=0.0)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr")
    parser.add_argument("--master-port", type=int)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> int:
    """Run the benchmark; return its exit status."""
    options = parse_options()
    # A terminated benchmark must take its ranks along: turn SIGTERM into an ordinary unwinding.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        refuse_what_cannot_work(options)
        with tempfile.TemporaryDirectory(prefix="instep-bench-") as folder:
            run = Run(options, Path(folder))
            run.carry_out()
            run.finish()
    except KeyboardInterrupt:
        return 130
    except Refusal as refusal:
        sys.stderr.write(f"error: {refusal}\nhint: {refusal.hint}\n")
        return 1
    except _binary.BinaryNotFoundError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
