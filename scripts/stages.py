"""Runs the stages of a check: each when what it needs is done, several at a time, until one fails.

One running stage at a time has the terminal and its output is shown as it comes; the output of the others is kept and
shown when the terminal is free. A failure ends the other stages at once. A table at the end says what ran, how long it
took and the totals of test runners.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from project import BOLD, DIM, GREEN, RED, ROOT, cargo_environment, colour, fail, say

ANSI = re.compile(r"\x1b\[[0-9;]*m")
# The line of a tool's output that tells most: nextest's, pytest's and cargo test's totals.
TOTALS = re.compile(r"^\s*Summary \[[^]]*\] (.+)$|^=+ (\d.* in .+?) =+$|^test result: (.+)$")
# More at a time than a developer's machine has cores would only slow each other down.
MOST_AT_ONCE = 2


@dataclass(frozen=True)
class Stage:
    """One check: the command, and what to do when it fails."""

    name: str
    command: Sequence[str]
    hint: str
    environment: Mapping[str, str] = field(default_factory=dict)
    # Names of stages that must have passed before; those that are not part of this check do not count.
    needs: frozenset[str] = frozenset()
    # Only one stage at a time may use each of these.
    uses: frozenset[str] = frozenset()
    # Nothing else runs beside it.
    alone: bool = False
    # Repeat the tool's own last line ("12 passed in 3 s") in the closing table.
    show_totals: bool = False


@dataclass
class Running:
    """A stage that was started."""

    stage: Stage
    process: subprocess.Popen[str]
    started: float
    lines: list[str] = field(default_factory=list)
    totals: str = ""
    status: int | None = None
    seconds: float = 0.0


class Check:
    """The stages of one check and how far they are."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._waiting = list(stages)
        self._count = len(stages)
        self._names = {stage.name for stage in stages}
        self._started: list[Running] = []
        # Guards what follows it, and wakes the loop when a stage has ended.
        self._changed = threading.Condition()
        self._shown: Running | None = None

    def run(self) -> None:
        """Run the stages until all have passed or one has failed; then end the script with that one's error."""
        began = time.monotonic()
        failed = None
        try:
            with self._changed:
                while not (failed := next((run for run in self._started if run.status), None)):
                    for stage in tuple(self._waiting):
                        if self._may_start(stage):
                            self._start(stage)
                    if not self._active():
                        break
                    self._changed.wait()
        except KeyboardInterrupt:
            fail("interrupted", status=128 + signal.SIGINT)
        finally:
            self._stop()
        if failed:
            sys.stdout.write("".join(failed.lines))
        self._table(time.monotonic() - began)
        if failed:
            cause = f"`{shlex.join(failed.stage.command)}` ended with status {failed.status}, see above"
            fail(f"{failed.stage.name} failed", cause=cause, hint=failed.stage.hint)

    def _active(self) -> list[Stage]:
        return [run.stage for run in self._started if run.status is None]

    def _may_start(self, stage: Stage) -> bool:
        passed = {run.stage.name for run in self._started if run.status == 0}
        active = self._active()
        return (
            stage.needs & self._names <= passed
            and len(active) < MOST_AT_ONCE
            and not any(other.alone or other.uses & stage.uses for other in active)
            and not (stage.alone and active)
        )

    def _start(self, stage: Stage) -> None:
        try:
            process = subprocess.Popen(
                stage.command,
                cwd=ROOT,
                env={**colours(), **cargo_environment(), **stage.environment},
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        except FileNotFoundError:
            fail(f"cannot run {stage.name}", cause=f"there is no {stage.command[0]}", hint="`make build` makes it")
        self._waiting.remove(stage)
        run = Running(stage, process, time.monotonic())
        self._started.append(run)
        title = f"[{len(self._started)}/{self._count}] {stage.name}"
        run.lines.append(f"{colour(title, BOLD)}  {colour(shlex.join(stage.command), DIM)}\n")
        self._show()
        threading.Thread(target=self._follow, args=(run,), daemon=True).start()

    def _follow(self, run: Running) -> None:
        """Take a stage's output until it ends."""
        for line in run.process.stdout or ():
            plain = ANSI.sub("", line).rstrip()
            with self._changed:
                if run.stage.show_totals and (found := TOTALS.search(plain)):
                    run.totals = next(filter(None, found.groups())).strip()
                run.lines.append(line)
                self._show()
        status = run.process.wait()
        with self._changed:
            run.status, run.seconds = status, time.monotonic() - run.started
            if self._shown is not run:
                run.lines.append(colour(f"[{run.stage.name}: {run.seconds:.1f} s]\n", DIM))
            self._show()
            self._changed.notify_all()

    def _show(self) -> None:
        """Give the terminal to a stage when it is free: to one that has ended, or else to the eldest."""
        while True:
            if self._shown is None:
                unseen = [run for run in self._started if run.lines]
                ended = (run for run in unseen if run.status is not None)
                self._shown = next(ended, unseen[0] if unseen else None)
            if self._shown is None:
                return
            sys.stdout.write("".join(self._shown.lines))
            sys.stdout.flush()
            self._shown.lines.clear()
            if self._shown.status is None:
                return
            self._shown = None

    def _stop(self) -> None:
        """End what still runs: another stage has failed, or somebody has pressed Ctrl-C."""
        for run in self._started:
            if run.status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(run.process.pid, signal.SIGTERM)

    def _table(self, seconds: float) -> None:
        say("")
        for run in self._started:
            mark = {0: colour("ok  ", GREEN), None: "    "}.get(run.status, colour("FAIL", RED))
            took = f"{run.seconds:7.1f} s" if run.status is not None else "stopped  "
            say(f"  {mark}  {run.stage.name:<14} {took}  {run.totals}".rstrip())
        if self._waiting:
            say(f"        {len(self._waiting)} more not run")
        say(f"        {'total':<14} {seconds:7.1f} s")


def colours() -> dict[str, str]:
    """Ask tools to keep their colours although their output passes through this script, if it ends on a terminal."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return {}
    return {"CARGO_TERM_COLOR": "always", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}
