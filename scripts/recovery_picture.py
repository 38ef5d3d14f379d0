#!/usr/bin/env python3
"""Draws what happens when a rank is lost, from a real training: docs/pictures/recovery.svg.

    .venv/bin/python scripts/recovery_picture.py [--spares 1] [--ranks 3] [--png FILE]

Trains a small model under `instep run --recover step`, kills a rank in the middle of a step, and draws what each rank
did until the next steps. When the lost rank got another process and when all ranks trained again is what the launcher
says in `--events`; when steps began and were committed is what the ranks say. Run it on a quiet machine: durations are
those of the machine. `--png` also makes an image, with Chromium, to look at.
"""

from __future__ import annotations

import argparse
import dataclasses
import html
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "recovery.svg"
PATIENCE_S = 300
# Steps before the kill, so that the first ones, which allocate, are over; and after it.
BEFORE, AFTER = 12, 6
TRAINING = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import instep.elastic

rank, incarnation = os.environ["RANK"], os.environ.get("INSTEP_INCARNATION", "0")
marks = open(f"{sys.argv[1]}/{rank}.{incarnation}.marks", "a", buffering=1)

def mark(what):
    print(time.time(), what, session.steps, file=marks)

torch.set_num_threads(1)
dist.init_process_group("instep")
torch.manual_seed(1)
layers = [torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(8)]
model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(512, 1)))
optimizer = torch.optim.AdamW(model.parameters())
session = instep.elastic.Session(model, optimizer)
batches = [torch.randn(512, 512) for _ in range(4)] * 1000
mark(f"loop:{os.getpid()}")
for batch in session.batches(batches):
    with session.step():
        mark("begin")
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        mark("commit")
"""


@dataclasses.dataclass(frozen=True)
class Mark:
    """What a process of a rank said."""

    rank: int
    incarnation: int
    time: float
    what: str
    step: int


@dataclasses.dataclass(frozen=True)
class Story:
    """What happened."""

    ranks: int
    lost: int
    killed: float
    marks: list[Mark]
    events: list[dict]

    @property
    def step(self) -> int:
        """The step that was interrupted."""
        begun = [mark.step for mark in self.of(self.lost, "begin") if mark.time < self.killed]
        return begun[-1]

    def of(self, rank: int, what: str) -> list[Mark]:
        """The marks of one kind that the processes of a rank made."""
        return [mark for mark in self.marks if mark.rank == rank and mark.what == what]

    def event(self, name: str) -> float:
        """When the launcher saw something, after the kill."""
        return next(event["time"] for event in self.events if event["event"] == name and event["time"] > self.killed)

    def again(self, rank: int) -> float:
        """When a rank began the interrupted step again."""
        return next(mark.time for mark in self.of(rank, "begin") if mark.step == self.step and mark.time > self.killed)

    def committed(self, rank: int) -> float:
        """When a rank had done it."""
        return next(mark.time for mark in self.of(rank, "commit") if mark.step == self.step)


def read_marks(folder: Path) -> list[Mark]:
    """What all processes have said so far, a line at a time."""
    found = []
    for path in folder.glob("*.marks"):
        rank, incarnation = map(int, path.name.split(".")[:2])
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                moment, what, step = line.split()
                found.append(Mark(rank, incarnation, float(moment), what, int(step)))
    return sorted(found, key=lambda mark: mark.time)


def record(ranks: int, spares: str) -> Story:
    """Train, kill a rank, and see what follows."""
    lost = 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script, events, errors = folder / "train.py", folder / "events", folder / "errors"
        script.write_text(TRAINING)
        command = [
            ROOT / ".venv/bin/instep",
            "run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
            "--recover",
            "step",
        ]
        command += ["--spares", spares, "--events", events, script, folder]
        with errors.open("wb") as stream:
            job = subprocess.Popen(
                [*map(str, command)],
                stdout=stream,
                stderr=stream,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

        def wait(ready: Callable[[], bool], what: str) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not ready():
                if job.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{what} did not come:\n{errors.read_text()}")
                time.sleep(0.002)

        def done(rank: int) -> int:
            return max(
                (mark.step for mark in read_marks(folder) if (mark.rank, mark.what) == (rank, "commit")), default=0
            )

        try:
            wait(lambda: min(map(done, range(ranks))) >= BEFORE, "the first steps")
            said = "hot spares are ready" if spares == "hot" else "skips the imports"
            wait(lambda: spares == "0" or said in errors.read_text(), "spares")
            seen = read_marks(folder)
            begun = [mark.time for mark in seen if (mark.rank, mark.what) == (lost, "begin")]
            length = statistics.median(later - earlier for earlier, later in itertools.pairwise(begun[-8:]))
            process = next(
                int(mark.what.split(":")[1]) for mark in seen if mark.what.startswith("loop") and mark.rank == lost
            )
            last = read_marks(folder)[-1]
            wait(
                lambda: [m for m in read_marks(folder) if (m.rank, m.what) == (lost, "begin")][-1].step > last.step + 1,
                "a step",
            )
            time.sleep(length * 0.4)
            killed = time.time()
            os.kill(process, signal.SIGKILL)
            step = done(0)
            wait(lambda: min(map(done, range(ranks))) >= step + AFTER + 1, "the steps after it")
        finally:
            job.send_signal(signal.SIGTERM)
            job.wait()
        found = [json.loads(line) for line in events.read_text().splitlines()]
        return Story(ranks, lost, killed, read_marks(folder), found)


# What a rank does, its colour, and what that is called.
COLOURS = {
    "train": ("#3b82c4", "trains"),
    "undone": ("#a9c8e6", "work that is done again"),
    "wait": ("#e3e5e8", "waits"),
    "none": ("#ffffff", "has no process"),
    "start": ("#e0a13c", "next process starts"),
    "transfer": ("#8d6cc0", "ranks meet, state is handed on"),
}


@dataclasses.dataclass(frozen=True)
class Span:
    """What a rank did for a while."""

    kind: str
    start: float
    end: float
    label: str = ""


def spans(story: Story, rank: int, first: float, last: float) -> list[Span]:
    """What a rank did, one after the other."""
    found = []
    commits = {mark.step: mark.time for mark in story.of(rank, "commit")}
    for mark in story.of(rank, "begin"):
        interrupted = mark.step == story.step and mark.time < story.killed
        if not interrupted:
            found.append(Span("train", mark.time, commits.get(mark.step, last), f"step {mark.step}"))
        else:
            found.append(Span("undone", mark.time, story.killed, f"step {mark.step}"))
    loop = next(mark.time for mark in story.marks if mark.rank == story.lost and mark.incarnation > 0)
    if rank == story.lost:
        replaced = story.event("rank_replaced")
        found += [Span("none", story.killed, replaced), Span("start", replaced, loop)]
    else:
        found.append(Span("wait", story.killed, loop))
    found.append(Span("transfer", loop, story.again(rank)))
    cut = [dataclasses.replace(span, start=max(span.start, first), end=min(span.end, last)) for span in found]
    return sorted((span for span in cut if span.end > span.start), key=lambda span: span.start)


class Canvas:
    """An SVG in the making: texts in places where nothing else is."""

    left, right, width, lane, gap = 78, 24, 960, 40, 18

    def __init__(self, story: Story) -> None:
        self.story = story
        step = statistics.median(
            story.of(0, "commit")[index].time - story.of(0, "begin")[index].time for index in range(BEFORE)
        )
        self.first = story.killed - 2.4 * step
        # So that what is said of the last moment fits right of it.
        plot = self.width - self.left - self.right
        committed = max(story.committed(rank) for rank in range(story.ranks))
        self.last = self.first + (committed - self.first) * plot / (plot - 180)
        self.parts: list[str] = []
        self.used: set[str] = set()
        self.bottom = 0.0

    def x(self, moment: float) -> float:
        """Where a moment is."""
        return self.left + (moment - self.first) / (self.last - self.first) * (self.width - self.left - self.right)

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """Write."""
        named = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{html.escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, style: str) -> None:
        """Draw a rectangle."""
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {style}/>')

    def draw(self) -> str:
        """The whole picture."""
        top = self.moments(30)
        bottom = self.lanes(top)
        self.axis(bottom)
        self.legend(bottom + 58)
        height = self.bottom + 18
        style = (
            "text { font: 15px ui-sans-serif, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #22272e }"
            " .light { fill: #ffffff } .small { font-size: 13px; fill: #59616b }"
        )
        said = (
            f"Rank {self.story.lost} of {self.story.ranks} is killed in step {self.story.step}; all ranks do it again"
        )
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height:.0f}" role="img"'
        card = f'<rect width="{self.width}" height="{height:.0f}" rx="8" fill="#ffffff" stroke="#d0d7de"/>'
        return "\n".join([f'{head} aria-label="{said}">', f"<style>{style}</style>", card, *self.parts, "</svg>", ""])

    def moments(self, y: float) -> float:
        """What happened when, each on a line of its own: they may be close to each other."""
        story = self.story
        committed = max(story.committed(rank) for rank in range(story.ranks))
        named = [
            (story.killed, f"rank {story.lost} is killed in step {story.step}"),
            (story.event("rank_replaced"), f"noticed: its next process starts, {self.after('rank_replaced')}"),
            (story.event("step_recovered"), f"all have the same state, {self.after('step_recovered')}"),
            (committed, f"step {story.step} is committed"),
        ]
        below = y + 24 * len(named)
        end = below + story.ranks * (self.lane + self.gap)
        for row, (moment, text) in enumerate(named):
            x, line = self.x(moment), y + 24 * row
            style = 'stroke="#59616b" stroke-dasharray="3 3" fill="none"'
            self.parts.append(f'<path d="M{x:.1f} {line - 5:.1f} V{end - self.gap:.1f}" {style}/>')
            self.text(x + 7, line, text)
        return below

    def after(self, event: str) -> str:
        """How long after the kill."""
        seconds = self.story.event(event) - self.story.killed
        return f"{seconds:.2f} s later" if seconds >= 0.1 else f"{seconds * 1000:.0f} ms later"

    def lanes(self, y: float) -> float:
        """What each rank did."""
        for rank in range(self.story.ranks):
            self.text(18, y + self.lane / 2 + 5, f"rank {rank}")
            for span in spans(self.story, rank, self.first, self.last):
                x, width = self.x(span.start), self.x(span.end) - self.x(span.start)
                if width < 2:
                    continue
                border = 'stroke="#b42318" stroke-dasharray="4 3"' if span.kind == "none" else 'stroke="#ffffff"'
                self.used.add(span.kind)
                self.box(x, y, width, self.lane, f'fill="{COLOURS[span.kind][0]}" {border}')
                if width > 8.6 * len(span.label) and span.label:
                    kind = "light" if span.kind == "train" else ""
                    self.text(x + width / 2, y + self.lane / 2 + 5, span.label, kind, "middle")
            y += self.lane + self.gap
        return y

    def axis(self, y: float) -> None:
        """The seconds since the kill."""
        span = self.last - self.first
        every = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if span / step <= 9)
        self.parts.append(f'<path d="M{self.left} {y} H{self.width - self.right}" stroke="#59616b" fill="none"/>')
        tick = -int((self.story.killed - self.first) / every)
        while (moment := self.story.killed + tick * every) <= self.last:
            x = self.x(moment)
            self.parts.append(f'<path d="M{x:.1f} {y} v5" stroke="#59616b" fill="none"/>')
            if self.left + 20 < x < self.width - self.right - 12:
                self.text(x, y + 20, f"{tick * every:.{1 if every < 1 else 0}f} s", "small", "middle")
            tick += 1

    def legend(self, y: float) -> None:
        """What the colours mean, in as many lines as that takes."""
        x = float(self.left)
        for colour, name in (named for kind, named in COLOURS.items() if kind in self.used):
            width = 22 + 8.2 * len(name) + 20
            if x + width > self.width - self.right:
                x, y = float(self.left), y + 24
            border = "#b42318" if colour == "#ffffff" else colour
            self.box(x, y - 12, 14, 14, f'fill="{colour}" stroke="{border}"')
            self.text(x + 22, y, name)
            x += width
        self.bottom = y


def main(arguments: Iterable[str]) -> None:
    """Record, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--spares", default="1", help="as of instep run")
    parser.add_argument("--tries", type=int, default=3, help="a kill may strike after the step's vote: then try again")
    parser.add_argument("--png", type=Path, metavar="FILE", help="also make an image of it")
    options = parser.parse_args([*arguments])
    for _ in range(options.tries):
        story = record(options.ranks, options.spares)
        try:
            picture = Canvas(story).draw()
        except StopIteration:
            continue  # the step was not done again, because all ranks had voted
        PICTURE.write_text(picture)
        print(f"{PICTURE.relative_to(ROOT)}: step {story.step}")
        break
    else:
        raise SystemExit("no kill struck in the middle of a step")
    if options.png:
        size = f"--window-size={Canvas.width},600"
        chromium = ["chromium-headless-shell", "--no-sandbox", "--disable-gpu", "--force-device-scale-factor=2"]
        command = [*chromium, size, f"--screenshot={options.png.absolute()}", PICTURE.as_uri()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main(sys.argv[1:])
