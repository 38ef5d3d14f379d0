"""The commands of a document: how pages mark them, and a shell that runs a page's commands in order.

Comments on the line before a code block say what is special about it:

- `<!-- file: NAME -->`: the block is the content of a file, written when the page comes to it.
- `<!-- not run: REASON -->`: the commands of the block cannot run in the tests, for this reason.
- `<!-- terminal: NAME -->`: the block runs in a terminal of its own while the page goes on. The page waits for its end
  last of all, and it must end well. With `<!-- terminal: NAME, until: TEXT -->` the page first waits for this output.

A page that has `<!-- folder: PATH -->` begins in a copy of that folder of the repository, any other in an empty one.

A page has a network, process ids and a home of its own: ports are free, `pkill` finds nothing else, and all that is
left running ends with the page.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conftest import ROOT, Runner

BLOCK = re.compile(r"(?:^<!-- ([a-z ]+): ([^\n]*?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOLDER = re.compile(r"^<!-- folder: (\S+) -->$", re.MULTILINE)
COMMANDS = ("bash", "console")
# What else a block of commands might be called, and would then not be run.
MISNAMED = ("", "sh", "shell", "zsh")
# A line of an indented block that somebody would type.
TYPED = re.compile(
    r"^    ((?:\w+=\S+ )*(?:instep|det|torchrun|python3?|pip|make|docker|curl|ssh|cd|export|source) \S.*)$",
    re.MULTILINE,
)
END_OF_COMMAND = "end-of-command"
UNTIL_S = 120


@dataclass(frozen=True)
class Step:
    """A command, and the output shown below it."""

    command: str
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """A code block, and what its page says about it."""

    kind: str
    text: str
    mark: str
    value: str

    @property
    def is_commands(self) -> bool:
        """Whether somebody would type it into a shell."""
        return self.kind in COMMANDS and self.mark != "file"

    @property
    def steps(self) -> list[Step]:
        """Its commands."""
        return console_steps(self.text) if self.kind == "console" else [Step(line) for line in script_lines(self.text)]


def blocks(text: str) -> list[Block]:
    """The code blocks of a page, in order."""
    return [Block(kind, content, mark, value) for mark, value, kind, content in BLOCK.findall(text)]


def console_steps(text: str) -> list[Step]:
    """Read a console block."""
    found: list[Step] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Step(line.removeprefix("$ ")))
        elif found:
            found[-1] = Step(found[-1].command, (*found[-1].shown, line))
        else:
            raise ValueError(f"a console block begins with a command, not with {line!r}")
    return found


def script_lines(text: str) -> list[str]:
    """The commands of a bash block: one on each line, unless a backslash continues it."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def unfit(text: str) -> list[str]:
    """What keeps the commands of a page from being run: marks that nobody knows, commands outside of code blocks."""
    marks = ("", "file", "not run", "terminal")
    wrong = [f"unknown mark <!-- {block.mark}: … -->" for block in blocks(text) if block.mark not in marks]
    without_reason = [block for block in blocks(text) if block.mark == "not run" and not block.value.strip()]
    wrong += ["a reason is missing behind `not run:`" for _ in without_reason]
    misnamed = [block for block in blocks(text) if block.kind in MISNAMED and block.mark != "file"]
    wrong += [f"a block called {block.kind!r} is not run: call it bash, console or text" for block in misnamed]
    outside = TYPED.findall(BLOCK.sub("", text))
    return wrong + [f"`{line}` is indented: make it a bash or console block, so that it is run" for line in outside]


class Page:
    """A page that is carried out in a folder of its own."""

    def __init__(self, text: str, folder: Path, path: str) -> None:
        """`folder` must not exist; `path` is the PATH of the shell."""
        self._text = text
        self._folder = folder / "page"
        self._private = folder / "private"
        self._path = path
        self.ran: list[Step] = []

    def run(self, run: Runner, timeout: float) -> list[tuple[Step, str, int]]:
        """Run every command that has no reason not to be; give what each printed, and its status."""
        self._private.mkdir(parents=True)
        begin = FOLDER.search(self._text)
        if begin is None:
            self._folder.mkdir()
        else:
            ignored = shutil.ignore_patterns("__pycache__", "*.pt")
            shutil.copytree(ROOT / begin[1], self._folder, ignore=ignored)
        (self._private / "home").mkdir()
        script = self._private / "page.sh"
        script.write_text("\n".join(self._script()))
        done = run(*own_machine(), "bash", script, cwd=self._folder, env=self._environment(), timeout=timeout)
        parts = re.split(rf"{END_OF_COMMAND} (\d+)\n", done.stdout)
        outcomes = [(parts[at], int(parts[at + 1])) for at in range(0, len(parts) - 1, 2)]
        assert len(outcomes) == len(self.ran), done
        return [(step, printed, status) for step, (printed, status) in zip(self.ran, outcomes, strict=True)]

    def _environment(self) -> dict[str, str | None]:
        foreign = [name for name in os.environ if name.startswith(("INSTEP_", "DET_", "PET_", "XDG_"))]
        home = {"HOME": str(self._private / "home"), "NO_COLOR": "1"}
        venv = {"PATH": self._path, "VIRTUAL_ENV": str(ROOT / ".venv")}
        return {**dict.fromkeys([*foreign, "PYTHON_EXEC", "PYTHONPATH"]), **home, **venv}

    def _script(self) -> Iterator[str]:
        # A program that asks for a password must not wait for one.
        yield "exec 2>&1 </dev/null"
        terminals = []
        for number, block in enumerate(blocks(self._text)):
            if block.mark == "file":
                content = self._private / f"{number}.file"
                content.write_text(block.text)
                yield f"mkdir -p {shlex.quote(str(Path(block.value).parent))}"
                yield f"cp {content} {shlex.quote(block.value)}"
            elif block.is_commands and block.mark == "terminal":
                terminals.append(block)
                yield from self._background(number, block)
            elif block.is_commands and block.mark != "not run":
                for step in block.steps:
                    yield from self._foreground(step)
        for name in [block.value.partition(", until: ")[0] for block in terminals]:
            log = self._private / f"terminal-{name}.log"
            yield from self._foreground(Step(f"wait $terminal_{name} || (cat {log}; exit 1)"))

    def _foreground(self, step: Step) -> Iterator[str]:
        self.ran.append(step)
        yield step.command
        # The parentheses hand the status on, for a following `echo $?`.
        yield f"status=$?; echo {END_OF_COMMAND} $status; (exit $status)"

    def _background(self, number: int, block: Block) -> Iterator[str]:
        name, _, until = block.value.partition(", until: ")
        script, log = self._private / f"{number}.sh", self._private / f"terminal-{name}.log"
        script.write_text("\n".join(["set -e", *(step.command for step in block.steps)]))
        yield f"bash {script} >{log} 2>&1 & terminal_{name}=$!"
        if until:
            seen = f"grep -qsF -e {shlex.quote(until)} {log}"
            wait = f"for _ in {{1..{UNTIL_S * 10}}}; do {seen} && break; sleep 0.1; done"
            yield from self._foreground(Step(f"{wait}; {seen} || (cat {log}; exit 1)"))


def own_machine() -> list[str]:
    """What a page's shell is started with: other network, other processes, and nothing of them outlives the shell."""
    mapped = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    isolated = ["unshare", *mapped, "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*isolated, "bash", "-c", 'ip link set lo up && exec "$@"', "bash"]
