"""A worker without torch that does what its arguments say, one after the other.

puppet.py FOLDER STEP ...

A step may begin with the ranks and the attempts it is for: `1: exit 3`, `1@0: exit 3`, `@0-2: exit 3`.

    ready               write FOLDER/<attempt>.<rank>.ready, which holds the process id
    await N             wait until N workers of this attempt are ready
    see NAME            wait until FOLDER/NAME exists
    environment         write the environment to FOLDER/<attempt>.<rank>.environment
    ignore SIGNAL ...   take no notice of these signals
    answer SIGNAL ...   at one of these signals write FOLDER/<attempt>.<rank>.<SIGNAL> and exit with 0
    child               start a process that ignores SIGTERM; its id is in FOLDER/<attempt>.<rank>.child
    count               write how many files the launcher has open to FOLDER/<attempt>.<rank>.files
    say TEXT            print a line
    complain TEXT       print a line on standard error
    crowd N             print N lines of 100 characters
    betray SIGNAL       send the signal to the launcher
    die SIGNAL          send the signal to itself
    exit CODE           end
    hold                stay for ever; so that nothing is left if a test goes wrong, that is two minutes, then exit 99

After the last step it exits with 0.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

STEP = re.compile(r"(?:(?P<rank>\d+)?(?:@(?P<first>\d+)(?:-(?P<last>\d+))?)?: )?(?P<verb>[a-z]+)(?: (?P<rest>.*))?")
FOR_EVER_S = 120.0
CHILD = f"""
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep({FOR_EVER_S})
"""


class Puppet:
    """One worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rank = int(os.environ["RANK"])
        self.attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    def write(self, name: str, text: str) -> None:
        """Leave a file that appears with all of its content."""
        path = self.folder / f"{self.attempt}.{self.rank}.{name}"
        unfinished = path.with_name(f".{path.name}")
        unfinished.write_text(text)
        unfinished.replace(path)

    def perform(self, step: str) -> None:
        parsed = STEP.fullmatch(step)
        if parsed is None:
            raise SystemExit(f"puppet: cannot understand the step {step!r}")
        first, last = parsed["first"], parsed["last"] or parsed["first"]
        other_rank = parsed["rank"] is not None and int(parsed["rank"]) != self.rank
        other_attempt = first is not None and not int(first) <= self.attempt <= int(last)
        if not other_rank and not other_attempt:
            getattr(self, f"do_{parsed['verb']}")(parsed["rest"] or "")

    def do_ready(self, _: str) -> None:
        self.write("ready", str(os.getpid()))

    def do_await(self, count: str) -> None:
        wait_until(lambda: len(list(self.folder.glob(f"{self.attempt}.*.ready"))) >= int(count))

    def do_see(self, name: str) -> None:
        wait_until((self.folder / name).exists)

    def do_environment(self, _: str) -> None:
        self.write("environment", json.dumps(dict(os.environ)))

    def do_ignore(self, names: str) -> None:
        for name in names.split():
            signal.signal(signal.Signals[name], signal.SIG_IGN)

    def do_answer(self, names: str) -> None:
        for name in names.split():
            signal.signal(signal.Signals[name], self.answered)

    def answered(self, number: int, _frame: object) -> None:
        self.write(signal.Signals(number).name, "")
        sys.exit(0)

    def do_child(self, _: str) -> None:
        process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.DEVNULL)
        self.write("child", str(process.pid))

    def do_count(self, _: str) -> None:
        self.write("files", str(len(list(Path(f"/proc/{os.getppid()}/fd").iterdir()))))

    def do_say(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def do_complain(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")

    def do_crowd(self, count: str) -> None:
        for number in range(int(count)):
            sys.stdout.write(f"rank {self.rank} line {number} ".ljust(99, "x") + "\n")

    def do_betray(self, name: str) -> None:
        sys.stdout.flush()
        os.kill(os.getppid(), signal.Signals[name])

    def do_die(self, name: str) -> None:
        os.kill(os.getpid(), signal.Signals[name])
        signal.pause()

    def do_exit(self, code: str) -> None:
        sys.exit(int(code))

    def do_hold(self, _: str) -> None:
        wait_until(lambda: False)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait; the limit is there for tests that went wrong."""
    deadline = time.monotonic() + FOR_EVER_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(99)
        time.sleep(0.005)


def main() -> None:
    puppet = Puppet(Path(sys.argv[1]))
    for step in sys.argv[2:]:
        puppet.perform(step)


if __name__ == "__main__":
    main()
