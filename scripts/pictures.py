"""Makes docs/pictures/*.svg: terminals photographed during real runs of instep.

.venv/bin/python scripts/pictures.py [NAME ...]

Every picture is what the built binary and its workers wrote to a pseudo-terminal. The workers do what they say: every
number was measured or computed. Changed is only what belongs to the machine: its name becomes node-a, its folders
~/project and ~/venv, the suffix of its kernel goes. nodes.svg shows two launchers on one machine, says so, and names
the second one node-b and their port 29603; demo.svg leaves out lines where it has dots. Times and speeds are those of
the machine at that moment: take the pictures on one that has nothing else to do.

The pictures need nothing from elsewhere: no fonts, no links.
"""

from __future__ import annotations

import fcntl
import importlib.util
import io
import os
import pty
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from project import ROOT, VENV, fail, say

if importlib.util.find_spec("rich") is None:
    fail("rich is not installed in this Python", hint="`make build`, then .venv/bin/python scripts/pictures.py")

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PICTURES = ROOT / "docs" / "pictures"
INSTEP = VENV / "bin" / "instep"
COLUMNS = 92
# On both sides of what the terminal shows.
MARGIN = 1
DEADLINE_S = 180.0
MAX_BYTES = 60_000
HOST_NAME = re.compile(rf"(?<![\w.-]){re.escape(socket.gethostname())}(?![\w.-])")
# The pictures of runs show this as typed before: without it the launcher says what it chose.
EXPORTED = {"OMP_NUM_THREADS": "1"}

THEME = TerminalTheme(
    background=(17, 21, 28),
    foreground=(212, 218, 226),
    normal=[
        (72, 81, 94),
        (255, 107, 107),
        (105, 209, 138),
        (240, 184, 92),
        (108, 166, 255),
        (203, 146, 255),
        (92, 205, 214),
        (212, 218, 226),
    ],
)
# Rich's own format loads fonts from a server. Any monospaced font will do: each run of letters is given its length.
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="A terminal: ALT">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
.{unique_id}-title {{
  font-size: 16px;
  font-family: ui-sans-serif, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
}}
{styles}
</style>
<defs>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""

TRAIN = """\
import time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
data = torch.randn(4096, 64)
target = torch.tanh(data @ torch.randn(64, 1) / 8)
share = slice(dist.get_rank(), None, dist.get_world_size())
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
if dist.get_rank() == 0:
    print(f"training on {dist.get_world_size()} ranks, {len(data)} samples")
for epoch in range(1000):
    began = time.monotonic()
    for features, wanted in zip(data[share].split(32), target[share].split(32)):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(features), wanted)
        loss.backward()
        optimizer.step()
    dist.all_reduce(loss := loss.detach())
    if dist.get_rank() == 0:
        speed = len(data) / (time.monotonic() - began)
        print(f"epoch {epoch:2}   loss {loss.item() / dist.get_world_size():.5f}   {speed:6,.0f} samples/s")
"""

# Reads its share of the data, of which one file lacks a column.
FAILS = """\
import csv, os, time


def load(rank):
    with open(f"shard-{rank}.csv") as file:
        for row in csv.reader(file):
            if len(row) != 3:
                raise ValueError(f"{file.name}: expected 3 columns, got {len(row)}")


load(int(os.environ["RANK"]))
time.sleep(60)
"""

# Every rank tells all it knows, as scripts do that were written for one process.
FOLDS = """\
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
data = torch.randn(4093, 64)
target = torch.tanh(data @ torch.randn(64, 1) / 8)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)))
print(f"torch {torch.__version__.partition('+')[0]}, gloo, {ranks} ranks")
print(f"model: {sum(weights.numel() for weights in model.parameters()):,} parameters")
dist.barrier()
data, target = data[rank::ranks], target[rank::ranks]
print(f"my share of the data: {len(data)} samples")
dist.barrier()
if len(data) % 32:
    print(f"the last batch is smaller: {len(data) % 32} of 32 samples")
dist.barrier()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(5):
    for features, wanted in zip(data.split(32), target.split(32)):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(features), wanted)
        loss.backward()
        optimizer.step()
    dist.all_reduce(loss := loss.detach())
    print(f"epoch {epoch}   loss {loss.item() / ranks:.5f}")
    dist.barrier()
if rank == 0:
    torch.save(model.state_dict(), "model.pt")
    print("saved model.pt")
dist.destroy_process_group()
"""

JOINS = """\
import os

print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: hello from node {os.environ['GROUP_RANK']}")
"""


class Terminal:
    """A command of instep on a pseudo-terminal."""

    def __init__(self, words: str, folder: Path) -> None:
        """Start it in `folder`."""
        self.text = ""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        unwanted = ("PET_", "TORCHELASTIC_", "NO_COLOR", "COLUMNS", "LINES", "PYTHON_EXEC")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
        own = {"VIRTUAL_ENV": str(VENV), "TERM": "xterm-256color", **EXPORTED}
        self._process = subprocess.Popen(
            [str(INSTEP), *shlex.split(words)],
            cwd=folder,
            env={**kept, **own},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        """Use it in a `with` statement: what still runs at its end is ended."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self.read_until(lambda _: False)
        self._process.wait(DEADLINE_S)
        os.close(self._ours)

    def read_until(self, condition: Callable[[str], object]) -> str:
        """Read until the text satisfies the condition, or to its end; give what is on the screen then."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition(self.text):
            if time.monotonic() > deadline:
                fail("timed out waiting for the expected output", cause=repr(self.text[-2000:]))
            if not select.select([self._ours], [], [], 0.05)[0]:
                continue
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # everybody at the other end is gone
                break
            self.text += data.decode(errors="replace")
        return self.text

    def read(self) -> str:
        """Read to the end."""
        return self.read_until(lambda _: False)


def has_status(text: str) -> bool:
    """Whether the last line is the status line."""
    return "running" in text.rpartition("\n")[2]


def friendly(text: str, folder: Path, host: str = "node-a") -> str:
    """Take out what belongs to this machine alone."""
    text = text.replace("\r\n", "\n").replace(str(folder), "~/project").replace(str(VENV), "~/venv")
    text = re.sub(r"~/venv/bin/python[\d.]*", "~/venv/bin/python", text)
    text = HOST_NAME.sub(host, text)
    return re.sub(r"(kernel\s+\d+\.\d+\.\d+)\S*", r"\1", text)


def typed(words: str) -> Text:
    """What the user typed; `\\n` breaks a long command."""
    exports = [f"export {name}={value}" for name, value in EXPORTED.items()] if words.startswith("run") else []
    lines = []
    for command in (*exports, f"instep {words}"):
        lines.append(Text("$ ", style="green").append(command.replace("\n", " \\\n    "), style="bold white"))
    return Text("\n").join(lines)


def shown(text: str) -> Text:
    """What the terminal shows of an output: colours, and the last of the lines written over each other."""
    screen = Text.from_ansi(text)
    screen.rstrip()
    return screen


def save(name: str, title: str, picture: RenderableType, columns: int = COLUMNS) -> None:
    """Write docs/pictures/NAME.svg."""
    console = Console(
        record=True,
        width=columns + 2 * MARGIN,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    console.print(Padding(picture, (0, MARGIN, 1, MARGIN)))
    svg = console.export_svg(
        title=title, theme=THEME, code_format=FORMAT.replace("ALT", title), unique_id=f"instep-{name}"
    )
    svg = "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"
    left = [word for word in (str(ROOT), str(Path.home()), "http://", "https://", "@font-face") if word in strip(svg)]
    left += HOST_NAME.findall(svg)
    if left or len(svg.encode()) > MAX_BYTES:
        fail(f"{name}.svg cannot be published", cause=f"it has {left}, and {len(svg.encode())} bytes")
    PICTURES.mkdir(parents=True, exist_ok=True)
    (PICTURES / f"{name}.svg").write_text(svg)
    say(f"  docs/pictures/{name}.svg  {len(svg.encode()) / 1000:.0f} kB")


def strip(svg: str) -> str:
    """Leave out the one address that an SVG has to name."""
    return svg.replace('xmlns="http://www.w3.org/2000/svg"', "")


def run(folder: Path) -> None:
    """Photograph four workers that train, and the status line."""
    (folder / "train.py").write_text(TRAIN)
    words = "run --standalone --nproc-per-node=4 --max-restarts=3 train.py"
    with Terminal(words, folder) as terminal:
        text = terminal.read_until(lambda text: "epoch 11" in text and has_status(text))
    save("run", "instep run", Group(typed(words), shown(friendly(text, folder))))


def failure(folder: Path) -> None:
    """Photograph the report of a failed run."""
    (folder / "train.py").write_text(FAILS)
    for rank in range(4):
        (folder / f"shard-{rank}.csv").write_text("text,label\n" if rank == 1 else "text,label,weight\n")
    words = "run --standalone --nproc-per-node=4 train.py"
    with Terminal(words, folder) as terminal:
        text = terminal.read()
    save("failure", "a rank fails", Group(typed(words), shown(friendly(text, folder))))


def fold(folder: Path) -> None:
    """Photograph eight ranks that say the same."""
    (folder / "train.py").write_text(FOLDS)
    words = "run --standalone --nproc-per-node=8 --fold train.py"
    with Terminal(words, folder) as terminal:
        text = terminal.read()
    save("fold", "instep run --fold", Group(typed(words), shown(friendly(text, folder))))


def doctor(folder: Path) -> None:
    """Photograph what instep finds on this machine."""
    with Terminal("doctor", folder) as terminal:
        screen = shown(friendly(terminal.read(), folder))
    # As wide as its longest line: a table with broken lines is hard to read.
    columns = max(COLUMNS, *(len(line) for line in screen.plain.splitlines()))
    save("doctor", "instep doctor", Group(typed("doctor"), screen), columns)


def demo(folder: Path) -> None:
    """Photograph the first part of the demo: the kill, the next steps, and how it ended."""
    with Terminal("demo", folder) as terminal:
        lines = friendly(terminal.read(), folder).splitlines()
    kill = next(number for number, line in enumerate(lines) if "killing rank" in line)
    last = max(number for number, line in enumerate(lines) if "| loss" in line)
    end = next(number for number, line in enumerate(lines) if "recorded" in line)
    dots = Text("    ...", style="dim")
    parts = [lines[kill - 2 : kill + 6], lines[last:end]]
    middle = [element for part in parts for element in (dots, shown("\n".join(part)))]
    save("demo", "instep demo", Group(typed("demo"), shown(lines[0]), *middle))


def dry_run(folder: Path) -> None:
    """Photograph what would be started."""
    words = (
        "run --dry-run --nnodes=2 --nproc-per-node=8 --rdzv-id=456\n"
        "--rdzv-backend=c10d --rdzv-endpoint=node-a:29603 train.py --epochs 50"
    )
    with Terminal(words, folder) as terminal:
        text = terminal.read()
    save("dry-run", "instep run --dry-run", Group(typed(words), shown(friendly(text, folder))))


def nodes(folder: Path) -> None:
    """Photograph two nodes that meet: two launchers on this machine, one terminal each."""
    (folder / "train.py").write_text(JOINS)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = (
        "run --nnodes=2 --nproc-per-node=2 --rdzv-id=456\n"
        f"--rdzv-backend=c10d --rdzv-endpoint={socket.gethostname()}:{port} train.py"
    )
    with ExitStack() as terminals:
        first = terminals.enter_context(Terminal(words, folder))
        first.read_until(lambda text: "waiting" in text)
        second = terminals.enter_context(Terminal(words, folder))
        texts = [first.read(), second.read()]
    command = typed(friendly(words, folder).replace(str(port), "29603"))
    panes: list[RenderableType] = []
    for host, text in zip(("node-a", "node-b"), texts, strict=True):
        title = Text(host, style="bold cyan")
        panes += [Rule(title, align="left", style="bright_black"), command, shown(friendly(text, folder, host)), ""]
    save("nodes", "two nodes (two launchers on one machine)", Group(*panes[:-1]))


ALL = {"run": run, "failure": failure, "fold": fold, "doctor": doctor, "demo": demo, "dry-run": dry_run, "nodes": nodes}


def main() -> None:
    """Make all pictures, or those that are named."""
    names = sys.argv[1:] or list(ALL)
    for name in names:
        if name not in ALL:
            fail(f"there is no picture {name}", hint=f"there are {', '.join(ALL)}")
    if not INSTEP.exists():
        fail(f"there is no {INSTEP}", hint="`make build` first")
    for name in names:
        with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
            ALL[name](Path(folder).resolve())


if __name__ == "__main__":
    main()
