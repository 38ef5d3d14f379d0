"""Runs one case under one launcher and returns what a user could see of it, comparable across launchers.

An observation is plain data:

    exit        exit status of the launcher of each node
    workers     "<attempt>/<rank>" -> environment changes, argv, command, process facts, `ended_by` signal
                (for cases of free node order: "<attempt>/node<i>.<local rank>", ranks replaced by "<any>")
    ranks       whether ranks are numbered without gaps, node after node (one entry per attempt)
    stdout      lines on the launchers' standard output, sorted
    stderr      lines of workers (marked "probe:") on the launchers' standard error, sorted
    logs        path below the log directories -> lines of the file, parsed error file, or None for an empty folder
    parent_error  the error file of the launcher itself, if it was told to write one
    failures    ranks and exit codes in the launcher's final report (torchrun's format only)
    leftovers   workers still alive when the last launcher had exited
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import tty
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import Case
from normalise import Places

from ports import free_port

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 75.0
POLL_S = 0.02
LEFTOVER_GRACE_S = 1.5
# Every launcher runs on so many CPUs, so that `--nproc-per-node=cpu` means the same everywhere.
CPUS = 2
RANK_VARIABLES = ("RANK", "GROUP_RANK", "ROLE_RANK")
LOG_FOLDERS = ("logs", "a", "tmp")
# Left in the temporary directory by some imports of torch; nothing to do with launching.
TORCH_CACHE = "torchinductor_"
# Python's own helper of a spawned process, which ends a moment after it.
PYTHON_HELPER = b"resource_tracker"
TORCH_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True)
class Launcher:
    """A launcher under test, as the two commands it offers, and the environment its workers find torch in."""

    name: str
    run: tuple[str, ...]
    launch: tuple[str, ...]
    venv: Path

    @classmethod
    def torchrun(cls, venv: Path) -> Launcher:
        python = str(venv / "bin/python")
        return cls(
            "torchrun", (python, "-m", "torch.distributed.run"), (python, "-m", "torch.distributed.launch"), venv
        )

    @classmethod
    def instep(cls, binary: Path, venv: Path) -> Launcher:
        return cls("instep", (str(binary), "run"), (str(binary), "launch"), venv)


@dataclass(frozen=True)
class Observation:
    """What was seen, and the text of the launchers' standard error for people to read."""

    fields: dict[str, Any]
    stderr: str


@dataclass(frozen=True)
class Node:
    """The launcher started for one node, and the folder that is its working directory."""

    directory: Path
    process: subprocess.Popen[bytes]
    # Copies what a terminal shows, until nobody has the terminal open.
    copier: threading.Thread | None = None


def observe(case: Case, launcher: Launcher) -> Observation:
    directory = Path(tempfile.mkdtemp(prefix="compat-")).resolve()
    out = directory / "out"
    out.mkdir()
    places = Places(directory, launcher.venv, HERE, free_port())
    nodes: list[Node] = []
    try:
        for index, options in enumerate(case.nodes):
            nodes.append(start(case, launcher, places, index, options))
        statuses = wait_for(case, nodes, out)
        leftovers = kill_workers(out)
        for node in nodes:
            if node.copier is not None:
                node.copier.join(TIMEOUT_S)
        return collect(case, places, nodes, statuses, leftovers)
    finally:
        for node in nodes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.process.pid, signal.SIGKILL)
            node.process.wait()
        kill_workers(out)
        shutil.rmtree(directory, ignore_errors=True)


def start(case: Case, launcher: Launcher, places: Places, index: int, options: tuple[str, ...]) -> Node:
    directory = places.directory / f"node{index}"
    (directory / "tmp").mkdir(parents=True)

    def fill(text: str) -> str:
        for name, value in {
            "{probe}": places.here / "probe.py",
            "{here}": places.here,
            "{dir}": directory,
            "{port}": places.port,
            "{python}": launcher.venv / "bin/python",
            "{venv}": launcher.venv,
        }.items():
            text = text.replace(name, str(value))
        return text

    for name, content in case.files.items():
        file = directory / name
        file.write_text(fill(content))
        file.chmod(0o755)
    base = base_environment(launcher, directory) | {k: fill(v) for k, v in case.env.items()}
    base_file = directory / "base.json"
    base |= {"PROBE_OUT": str(places.directory / "out"), "PROBE_BASE": str(base_file), "PROBE_NODE": str(index)}
    base_file.write_text(json.dumps(base))
    command = [*(launcher.launch if case.command == "launch" else launcher.run), *map(fill, options + case.script)]
    copier = None
    if case.terminal:
        terminal, copier = open_terminal(directory / "stdout")
        stdin = stdout = stderr = terminal
    else:
        stdin, stdout, stderr = open_files(directory)
    try:
        process = subprocess.Popen(
            command,
            env=base,
            cwd=fill(case.cwd),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=settle,
        )
    finally:
        for descriptor in {stdin, stdout, stderr}:
            os.close(descriptor)
    return Node(directory, process, copier)


def base_environment(launcher: Launcher, directory: Path) -> dict[str, str]:
    """An activated virtual environment and nothing else, so that the caller's settings do not matter."""
    return {
        "PATH": f"{launcher.venv}/bin:/usr/local/bin:/usr/bin:/bin",
        "VIRTUAL_ENV": str(launcher.venv),
        "HOME": str(directory),
        "LANG": "C.UTF-8",
        "TMPDIR": str(directory / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def open_files(directory: Path) -> tuple[int, int, int]:
    """Files rather than pipes: nobody has to read them, and a worker that outlives its launcher holds nothing up."""
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return (
        os.open(os.devnull, os.O_RDONLY),
        os.open(directory / "stdout", append),
        os.open(directory / "stderr", append),
    )


def open_terminal(shown: Path) -> tuple[int, threading.Thread]:
    """A terminal, and the thread that copies to a file what it shows."""
    controller, worker = pty.openpty()
    tty.setraw(worker)

    def copy() -> None:
        with shown.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while data := os.read(controller, 65536):
                file.write(data)
        os.close(controller)

    copier = threading.Thread(target=copy, daemon=True)
    copier.start()
    return worker, copier


def settle() -> None:
    """In the child: the same CPUs and signals whoever runs the tests (a shell's background job ignores SIGINT)."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:CPUS]))
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def reports(out: Path) -> list[Path]:
    return sorted(p for p in out.glob("[!.]*.json") if not p.name.endswith(".end.json"))


def wait_for(case: Case, nodes: list[Node], out: Path) -> list[int | str]:
    """Exit statuses of all launchers; "timeout" for one that had to be killed."""
    deadline = time.monotonic() + TIMEOUT_S
    pending = case.signal
    while time.monotonic() < deadline and any(node.process.poll() is None for node in nodes):
        if pending and len(reports(out)) >= pending.after_workers:
            for node in nodes:
                node.process.send_signal(signal.Signals[pending.name])
            pending = None
        time.sleep(POLL_S)
    return ["timeout" if (status := node.process.poll()) is None else status for node in nodes]


def kill_workers(out: Path) -> int:
    """Ends every process that belongs to this run; returns how many workers did not end with their launcher."""
    deadline = time.monotonic() + LEFTOVER_GRACE_S
    while any((alive := processes(out)).values()) and time.monotonic() < deadline:
        # The kernel ends workers whose launcher was killed, but not in the same instant.
        time.sleep(POLL_S)
    for process in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return sum(alive.values())


def processes(out: Path) -> dict[int, bool]:
    """Processes of this run, known by the variable they all inherit, and whether each is a worker."""
    mark = f"PROBE_OUT={out}".encode()
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found[int(entry.name)] = PYTHON_HELPER not in (entry / "cmdline").read_bytes()
    return found


def collect(case: Case, places: Places, nodes: list[Node], statuses: list[int | str], leftovers: int) -> Observation:
    out = places.directory / "out"
    raw = {path.stem: json.loads(path.read_text()) for path in reports(out)}
    ends = {path.name.removesuffix(".end.json"): json.loads(path.read_text()) for path in out.glob("*.end.json")}
    launchers = {node.process.pid for node in nodes}
    stdout = [line for node in nodes for line in read_lines(node.directory / "stdout")]
    stderr = [line for node in nodes for line in read_lines(node.directory / "stderr")]
    if case.terminal:
        stdout = worker_lines(stdout)
    fields: dict[str, Any] = {
        "exit": sorted(statuses, key=str) if case.free_order else statuses,
        "workers": {},
        "ranks": rank_order(raw),
        "stdout": sorted(places.line(line) for line in stdout) if not asks_help(case) else bool(stdout),
        "stderr": sorted(places.line(line) for line in worker_lines(stderr)),
        "logs": log_tree(places, nodes, case.free_order),
        "parent_error": {
            f"node{index}": read_error(places, path)
            for index, node in enumerate(nodes)
            if (path := node.directory / "parent-error.json").exists()
        },
        "failures": reported_failures(stderr),
        "leftovers": leftovers,
    }
    for key, report in raw.items():
        attempt, rank = key.split("-", 1)
        report["parent_is_launcher"] = report.pop("parent") in launchers
        report["ended_by"] = ends.get(key, {}).get("signal")
        env = {name: places.environment(name, value) for name, value in sorted(report.pop("env").items())}
        env.pop(TORCH_CACHE_VARIABLE, None)
        for ours in ("INSTEP_RECORDER_DIR", "INSTEP_SECRET"):  # documented
            env.pop(ours, None)
        name = rank
        if case.free_order:
            name = f"node{report['node']}.{env['LOCAL_RANK']}"
            env |= dict.fromkeys(RANK_VARIABLES, "<any>")
        if case.free_order or len(case.nodes) == 1:
            del report["node"]
        text = {k: [places.text(v) for v in report.pop(k)] for k in ("argv", "command")}
        cwd = places.text(report.pop("cwd"))
        fields["workers"][f"{attempt}/{name}"] = {"env": env, **text, "cwd": cwd, **report}
    if case.free_order:
        fields["stdout"], fields["stderr"] = (
            [re.sub(r"rank \d+", "rank <any>", line) for line in fields[k]] for k in ("stdout", "stderr")
        )
        fields["stdout"].sort()
        fields["stderr"].sort()
        fields["failures"] = [{**failure, "rank": "<any>"} for failure in fields["failures"]]
    return Observation(fields, "\n".join(stderr))


def asks_help(case: Case) -> bool:
    return bool({"-h", "--help"} & set(case.nodes[0]))


def read_lines(path: Path) -> list[str]:
    """Lines as a reader of the console sees them; an unfinished last line is marked."""
    if not path.exists():
        return []
    text = path.read_bytes().decode(errors="replace").replace("\r\n", "\n")
    lines = text.split("\n")
    last = lines.pop()
    return [*lines, f"{last}<no newline>"] if last else lines


def worker_lines(lines: list[str]) -> list[str]:
    """Lines of workers; a report quotes their last ones behind a bar."""
    return [line for line in lines if "probe:" in line and not line.startswith("    | ")]


def rank_order(raw: dict[str, Any]) -> dict[str, bool]:
    """Per attempt: ranks are 0..n-1, and each node holds a contiguous block in the order of group ranks."""
    attempts: dict[str, list[tuple[int, int, int]]] = {}
    for key, report in raw.items():
        env = report["env"]
        with contextlib.suppress(KeyError, TypeError, ValueError):
            place = (int(env["GROUP_RANK"]), int(key.split("-")[1]))
            attempts.setdefault(key.split("-")[0], []).append((*place, int(env["WORLD_SIZE"])))
    result = {}
    for attempt, entries in attempts.items():
        ordered = sorted(entries)
        sizes = Counter(group for group, _, _ in ordered)
        result[attempt] = (
            [rank for _, rank, _ in ordered] == list(range(len(ordered)))
            and all(world == len(ordered) for _, _, world in ordered)
            and sorted(sizes) == list(range(len(sizes)))
        )
    return result


def log_tree(places: Places, nodes: list[Node], free_order: bool) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for index, node in enumerate(nodes):
        for folder in LOG_FOLDERS:
            for path in sorted((node.directory / folder).rglob("*")):
                if (path.is_dir() and any(path.iterdir())) or path.name.startswith(TORCH_CACHE):
                    continue
                name = f"node{index}/" + places.log_path(str(path.relative_to(node.directory)))
                while name in tree:
                    name += " again"
                tree[name] = log_content(places, path, free_order)
    return tree


def log_content(places: Places, path: Path, free_order: bool) -> object:
    if path.is_dir():
        return None
    if path.name == "error.json":
        return read_error(places, path)
    lines = read_lines(path)
    if "stderr" in path.name:
        lines = worker_lines(lines)
    lines = [places.line(line) for line in lines]
    if free_order:
        lines = [re.sub(r"rank \d+", "rank <any>", line) for line in lines]
    # A filtered file gathers several workers in whatever order they wrote.
    return sorted(lines) if path.name.startswith("filtered") else lines


def read_error(places: Places, path: Path) -> object:
    text = path.read_text()
    try:
        return places.error(json.loads(text))
    except json.JSONDecodeError:
        return f"not JSON: {places.text(text)}"


REPORTED = re.compile(r"rank\s+: (\d+) \(local_rank: (\d+)\)\s+exitcode\s+: (-?\d+)")


def reported_failures(stderr: list[str]) -> list[dict[str, Any]]:
    """Failures named in torchrun's final report, the root cause marked."""
    text = "\n".join(stderr)
    found = []
    for block in text.split("FAILED\n")[1:]:
        others, _, root = block.partition("Root Cause")
        for part, is_root in ((others, False), (root, True)):
            for rank, local_rank, code in REPORTED.findall(part):
                found.append({"rank": int(rank), "local_rank": int(local_rank), "exit": int(code), "root": is_root})
    return sorted(found, key=lambda failure: (failure["rank"], failure["exit"]))
