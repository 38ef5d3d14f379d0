#!/usr/bin/env python3
"""A worker that reports what its launcher gave it, then behaves as its arguments say.

Standard library only, so that it starts in milliseconds. It writes `$PROBE_OUT/<attempt>-<rank>.json` (what it
saw at start), meets the other workers of the attempt there, performs its actions in order, and exits 0 unless an
action says otherwise. Arguments that do not start with `do:` are for the launcher tests to look at, and ignored.

An action is `do:VERB[=VALUE][@RANK][@first]`: only on that rank, only on the first attempt.

    out=TEXT  err=TEXT   write a line to standard output / standard error
    exit=CODE            exit at once
    kill=SIGNAL          die by this signal
    error=TEXT           write an error file as torch's `record` does, exit 1
    oldstyle=TEXT        the same in the older shape `{"message": TEXT, "timestamp": N}`
    record=TEXT          raise through torch's own `record` (imports torch)
    wait                 sleep until a signal comes, note it, die by it
    graceful             sleep until a signal comes, note it, exit 0
    stubborn             ignore SIGTERM, SIGINT and sleep
    master               write MASTER_ADDR to standard output
    listener             write where MASTER_PORT listens: on loopback, on every address, nowhere
    alone                do not wait for the other workers
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

DEADLINE_S = 40.0
POLL_S = 0.01
# Python itself ignores these two in every process.
IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
FORWARDABLE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)

ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "none")
RANK = os.environ.get("RANK", f"pid{os.getpid()}")
OUT = Path(os.environ["PROBE_OUT"])


def write_line(fd: int, text: str) -> None:
    """One write per line, so that lines of several workers never mix."""
    os.write(fd, f"probe: {text}\n".encode())


def publish(name: str, value: object) -> None:
    temporary = OUT / f".{name}.{os.getpid()}"
    temporary.write_text(json.dumps(value))
    temporary.rename(OUT / name)


def environment_changes() -> dict[str, str | None]:
    """Variables that differ from the launcher's own environment; removed ones are None."""
    base: dict[str, str] = json.loads(Path(os.environ["PROBE_BASE"]).read_text())
    changed: dict[str, str | None] = {k: v for k, v in os.environ.items() if base.get(k) != v}
    changed.update({k: None for k in base if k not in os.environ})
    return changed


def open_descriptors() -> list[int]:
    """Descriptors above standard error that the launcher leaked into this process."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        descriptor = int(entry.name)
        if descriptor > 2:
            try:
                os.fstat(descriptor)
            except OSError:  # the descriptor of the listing itself
                continue
            found.append(descriptor)
    return sorted(found)


def signal_set(field: str) -> list[str]:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            bits = int(line.split()[1], 16)
            names = [s for s in signal.Signals if bits >> (s - 1) & 1 and s not in IGNORED_BY_PYTHON]
            return sorted(s.name for s in names)
    return []


def observed() -> dict[str, object]:
    umask = os.umask(0)
    os.umask(umask)
    return {
        "env": environment_changes(),
        "node": os.environ.get("PROBE_NODE"),
        "argv": sys.argv,
        "command": sys.orig_argv,
        "cwd": str(Path.cwd()),
        "parent": os.getppid(),
        "session_leader": os.getsid(0) == os.getpid(),
        "group_leader": os.getpgrp() == os.getpid(),
        "terminals": [os.isatty(fd) for fd in (0, 1, 2)],
        "cpus": len(os.sched_getaffinity(0)),
        "leaked_descriptors": open_descriptors(),
        "blocked_signals": signal_set("SigBlk:"),
        "ignored_signals": signal_set("SigIgn:"),
        "umask": oct(umask),
        "nice": os.nice(0),
    }


def meet() -> None:
    """Wait until every worker of this attempt has reported."""
    expected = int(os.environ.get("WORLD_SIZE", "1"))
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        present = [p for p in OUT.glob(f"{ATTEMPT}-*.json") if not p.name.endswith(".end.json")]
        if len(present) >= expected:
            return
        time.sleep(POLL_S)
    write_line(2, f"rank {RANK} waited in vain for {expected} workers of attempt {ATTEMPT}")
    sys.exit(99)


def install_handlers(die: bool) -> None:
    """Must be in place before the report is published: the observer signals as soon as it sees the report."""

    def note(number: int, _frame: FrameType | None) -> None:
        publish(f"{ATTEMPT}-{RANK}.end.json", {"signal": signal.Signals(number).name})
        write_line(1, f"rank {RANK} got {signal.Signals(number).name}")
        if not die:
            os._exit(0)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in FORWARDABLE:
        signal.signal(number, note)


def sleep_until_deadline(_value: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        time.sleep(POLL_S * 10)


def kill_self(name: str) -> None:
    os.kill(os.getpid(), signal.Signals[name])
    time.sleep(DEADLINE_S)


def write_error_file(text: str) -> None:
    """The format of torch/distributed/elastic/multiprocessing/errors/error_handler.py."""
    try:
        raise RuntimeError(text)
    except RuntimeError as error:
        details = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
        message = {"message": f"{type(error).__name__}: {error}", "extraInfo": details}
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        Path(path).write_text(json.dumps({"message": message}))
    sys.exit(1)


def write_oldstyle_error_file(text: str) -> None:
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": text, "timestamp": int(time.time())}))
    sys.exit(1)


def raise_through_record(text: str) -> None:
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main() -> None:
        raise ValueError(text)

    main()


def write_listener(_value: str) -> None:
    """Reads the kernel's tables (proc(5), /proc/net/tcp): local address and port in hex, state 0A is LISTEN."""
    port = int(os.environ["MASTER_PORT"])
    addresses = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, _, local_port = local.partition(":")
            if state == "0A" and int(local_port, 16) == port:
                addresses.add("every address" if set(address) == {"0"} else "loopback")
    write_line(1, f"master port listens on {' and '.join(sorted(addresses)) or 'nothing'}")


VERBS: dict[str, Callable[[str], None]] = {
    "out": lambda text: write_line(1, text),
    "err": lambda text: write_line(2, text),
    "exit": lambda code: sys.exit(int(code)),
    "kill": kill_self,
    "error": write_error_file,
    "oldstyle": write_oldstyle_error_file,
    "record": raise_through_record,
    "wait": sleep_until_deadline,
    "graceful": sleep_until_deadline,
    "stubborn": sleep_until_deadline,
    "master": lambda _value: write_line(1, f"master is {os.environ['MASTER_ADDR']}"),
    "listener": write_listener,
    "alone": lambda _value: None,
}


def actions() -> list[tuple[str, str]]:
    """The actions meant for this rank and this attempt, in order."""
    chosen = []
    for argument in sys.argv[1:]:
        if not argument.startswith("do:"):
            continue
        action, *conditions = argument.removeprefix("do:").split("@")
        if not all(ATTEMPT == "0" if c == "first" else c == RANK for c in conditions):
            continue
        verb, _, value = action.partition("=")
        chosen.append((verb, value))
    return chosen


def main() -> None:
    report = observed()
    chosen = actions()
    verbs = {verb for verb, _ in chosen}
    if "stubborn" in verbs:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    elif verbs & {"wait", "graceful"}:
        install_handlers(die="wait" in verbs)
    write_line(1, f"rank {RANK} attempt {ATTEMPT} on stdout")
    write_line(2, f"rank {RANK} attempt {ATTEMPT} on stderr")
    publish(f"{ATTEMPT}-{RANK}.json", report)
    if "alone" not in verbs:
        meet()
    for verb, value in chosen:
        VERBS[verb](value)


if __name__ == "__main__":
    main()
