"""The whole wire between two hosts: instep with one thread, with several, encrypted, and gloo, in turns in one run.

    sudo .venv/bin/python bench/wire.py [--rate 2.5gbit] [--sizes 8,26214400] [--json FILE]
    .venv/bin/python bench/wire.py --loopback

The hosts are network namespaces of this machine with a rank each (root, iproute2). With `--loopback` they are ranks
that use TCP on loopback as if they shared no memory: for machines where namespaces cannot be made. Each rank has its
part of the cores, so that four cores are two hosts with two.

Columns: `one` is INSTEP_NETWORK_LANES=1, `instep` what a rank does by itself, `encrypted` the same with
INSTEP_ENCRYPT=1. `--backends` also takes `instep8` or `encrypted2`: with so many threads. Medians of all rounds, the
best round in brackets. A JSON file has all rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from instep.bench import hosts
from instep.bench.case import Case, Figure, spell_size
from instep.bench.hosts import Hosts
from instep.bench.reports import Reader, Refusal, Writer
from instep.bench.table import spell_time

WORLD = 2
SIZES = (8, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20, 25 << 20, 100 << 20, 256 << 20)
ONE, OURS, ENCRYPTED, GLOO = "one", "instep", "encrypted", "gloo"
ENCRYPTION = {"INSTEP_ENCRYPT": "1", "INSTEP_SECRET": "only for this benchmark"}
SILENCE_S = 120.0


def variables_of(name: str) -> dict[str, str] | None:
    """What is set while the group of a column is made; None if it is not one of instep."""
    if name == ONE:
        return {"INSTEP_NETWORK_LANES": "1"}
    if not (column := re.fullmatch(rf"({OURS}|{ENCRYPTED})([1-8]?)", name)):
        return None
    lanes = {"INSTEP_NETWORK_LANES": column[2]} if column[2] else {}
    return lanes | (ENCRYPTION if column[1] == ENCRYPTED else {})


@contextlib.contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables for a while."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def own_cores(rank: int) -> set[int]:
    """This rank's part of the cores; all of them if there are fewer than ranks."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // WORLD
    return set(cores[rank * each : (rank + 1) * each] or cores)


def be_a_rank(options: argparse.Namespace) -> int:
    """Measure as one of the ranks."""
    if not options.share_cores:
        os.sched_setaffinity(0, own_cores(int(os.environ["RANK"])))
    import torch

    from instep.bench.contender import Contender, TorchContender
    from instep.bench.rank import Bench

    class WireBench(Bench):
        def _join(self, name: str) -> Contender:
            variables = variables_of(name)
            with environment(variables or {}):
                contender = TorchContender(name if variables is None else "instep")
            contender.name = name
            return contender

    torch.set_num_threads(1)
    reports = Writer(Path(options.folder))
    try:
        WireBench(options, reports).run()
    except Refusal as refusal:
        reports.send("error", message=str(refusal), hint=refusal.hint)
        return 1
    return 0


def commands(options: argparse.Namespace, folder: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """What starts each rank, and its variables."""
    words = [sys.executable, str(Path(__file__).resolve()), "--folder", folder, "--rounds", str(options.rounds)]
    words += ["--sizes", options.sizes, "--ops", options.ops, "--backends", options.backends]
    words += ["--share-cores"] if options.share_cores else []
    # Each is alone on its host. Other programs' settings for instep would be for all columns.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("INSTEP_")}
    package_parent = str(Path(hosts.__file__).resolve().parents[2])
    search_path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), package_parent])
    common = {"WORLD_SIZE": str(WORLD), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1] if options.loopback else hosts.PORT)
    for rank in range(WORLD):
        variables = {**inherited, **common, "PYTHONPATH": search_path, "RANK": str(rank), "MASTER_PORT": port}
        if options.loopback:
            # Over TCP, whatever memory they share.
            place = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "INSTEP_TRANSPORT": "tcp"}
            yield words, {**variables, **place}
        else:
            place = {"MASTER_ADDR": hosts.address_of(0), "GLOO_SOCKET_IFNAME": hosts.interface_of(rank)}
            yield ["ip", "netns", "exec", options.namespaces.namespace(rank), *words], {**variables, **place}


class Table:
    """What the ranks report, a line for each size."""

    def __init__(self, backends: list[str]) -> None:
        self.backends = backends
        self.figures: list[Figure] = []
        self._case: dict[str, Any] = {}
        self._pending: dict[str, Figure] = {}

    def on(self, report: dict[str, Any]) -> None:
        """Take a report."""
        match report["kind"]:
            case "case":
                self._case, self._pending = report, {}
            case "times":
                case, name = Case(self._case["operation"], WORLD, self._case["count"]), report["backend"]
                self._pending[name] = Figure(case, name, tuple(report["rounds_s"]), self._case["calls"][name])
            case "done":
                self.figures += self._pending.values()
                self._show()
            case "unable":
                print(f"{report['backend']} has no {report['operation']}: {report['reason']}")
            case "error":
                raise Refusal(report["message"], report["hint"])

    def _show(self) -> None:
        case = next(iter(self._pending.values())).case
        cells = [f"{case.operation:<15}{spell_size(case.size_bytes):>6}"]
        for name in self.backends:
            if figure := self._pending.get(name):
                cells.append(f"{spell_time(figure.time_s):>10} ({spell_time(min(figure.rounds_s)):>9})")
            else:
                cells.append(f"{'-':>22}")
        row = ratios(self._pending)
        cells += [f"{f'{row[name]:.2f}' if name in row else '-':>{max(len(name), 6)}}" for name in RATIOS]
        print("  ".join(cells), flush=True)

    def heading(self) -> str:
        """The line above."""
        columns = [f"{name:>22}" for name in self.backends] + [f"{name:>6}" for name in RATIOS]
        return "  ".join([f"{'operation':<15}{'bytes':>6}", *columns])


# Over 1 is good, but for encryption: 0.6 of plain is what it is to keep.
RATIOS = {"instep/one": (ONE, OURS), "encrypted/instep": (OURS, ENCRYPTED), "instep/gloo": (GLOO, OURS)}


def ratios(figures: dict[str, Figure]) -> dict[str, float]:
    """How fast the second of each pair is, as a multiple of the first."""
    known = {name: pair for name, pair in RATIOS.items() if all(backend in figures for backend in pair)}
    return {name: figures[slow].time_s / figures[fast].time_s for name, (slow, fast) in known.items()}


def measure(options: argparse.Namespace) -> Table:
    """Start the ranks and follow them to their end."""
    found = Table(options.backends.split(","))
    cores = len(os.sched_getaffinity(0))
    each = "all of them each" if options.share_cores else f"{len(own_cores(0))} for each"
    where = "on loopback" if options.loopback else f"in namespaces, {options.rate or 'no limit'}"
    print(f"2 hosts with one rank each {where}; {cores} cores, {each}; medians of {options.rounds}, best in brackets")
    print(found.heading(), flush=True)
    with tempfile.TemporaryDirectory(prefix="instep-bench-") as folder, tempfile.TemporaryFile("w+") as output:
        reader = Reader(Path(folder))
        ranks = [
            subprocess.Popen(words, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            for words, variables in commands(options, folder)
        ]
        try:
            heard, ended = time.monotonic(), False
            while not ended:
                ended = all(rank.poll() is not None for rank in ranks) or any(rank.poll() for rank in ranks)
                for report in reader.new_reports(0 if ended else 0.2):
                    heard = time.monotonic()
                    found.on(report)
                if time.monotonic() - heard > SILENCE_S:
                    raise Refusal(f"no rank has reported anything for {SILENCE_S:.0f} s", "try smaller --sizes")
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
            reader.close()
        if any(rank.returncode for rank in ranks):
            output.seek(0)
            raise Refusal(f"a rank failed:\n{output.read()[-4000:]}", "run `instep doctor` to check this machine")
    return found


def main() -> int:
    """Measure, print the table, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loopback", action="store_true", help="no namespaces: TCP on loopback")
    parser.add_argument("--share-cores", action="store_true", help="every rank may use all cores")
    parser.add_argument("--rate", help="what a host may send, as tc spells it: 2.5gbit")
    parser.add_argument("--ops", default="all_reduce")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--backends", default=",".join((ONE, OURS, ENCRYPTED, GLOO)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        return be_a_rank(options)
    try:
        if options.loopback:
            found = measure(options)
        else:
            hosts.refuse_where_there_can_be_none(WORLD)
            options.namespaces = Hosts(WORLD, options.rate, 0.0)
            try:
                options.namespaces.create()
                found = measure(options)
            finally:
                options.namespaces.remove()
    except Refusal as refusal:
        print(f"error: {refusal}\nhint: {refusal.hint}", file=sys.stderr)
        return 1
    if options.json:
        rows = [
            {**figure.as_json(), "rounds_us": [1e6 * round_s for round_s in figure.rounds_s]}
            for figure in found.figures
        ]
        about = {"cores": len(os.sched_getaffinity(0)), "cores_each": len(own_cores(0)), "rate": options.rate}
        about |= {"loopback": options.loopback, "share_cores": options.share_cores, "rounds": options.rounds}
        options.json.write_text(json.dumps({**about, "results": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
