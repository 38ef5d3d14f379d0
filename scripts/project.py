"""Where things are in this project, and how its scripts run commands and report failures.

Shared by the scripts of this folder. Standard library only: they run before anything is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
DIST = ROOT / "dist"
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
REQUIREMENTS = ROOT / "requirements"
# What clones of this project on one machine share, so that a fresh clone builds in seconds.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "instep"

RED, GREEN, BOLD, DIM = "31", "32", "1", "2"


def colour(text: str, code: str) -> str:
    """Colour `text` when the output is a terminal that wants colour."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def say(text: str) -> None:
    """Print one line of progress, at once."""
    print(text, flush=True)


def fail(what: str, *, cause: str = "", hint: str = "", status: int = 1) -> NoReturn:
    """End the script with the three parts of a good error: what failed, why, what to do next."""
    print(f"{colour('error:', RED)} {what}", file=sys.stderr)
    if cause:
        print(f"  cause: {cause}", file=sys.stderr)
    if hint:
        print(f"  hint: {hint}", file=sys.stderr)
    sys.exit(status)


def target_dir() -> Path:
    """Give cargo's target folder: outside the clone unless the caller says otherwise."""
    chosen = os.environ.get("INSTEP_TARGET_DIR") or os.environ.get("CARGO_TARGET_DIR")
    return Path(chosen).absolute() if chosen else CACHE / "target"


def cargo_environment() -> dict[str, str]:
    """Give the environment for cargo commands of development (tests, clippy, docs)."""
    return {**os.environ, "CARGO_TARGET_DIR": str(target_dir())}


def run(
    command: Sequence[str | Path],
    *,
    what: str,
    hint: str = "",
    env: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> None:
    """Run a command in the project's root; on failure, end the script saying what failed and how to go on."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=env,
            text=True,
            stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.STDOUT if quiet else None,
            check=False,
        )
    except FileNotFoundError:
        fail(f"cannot {what}", cause=f"there is no command `{words[0]}`", hint=hint)
    if done.returncode != 0:
        if quiet:
            print(done.stdout, file=sys.stderr)
        fail(f"cannot {what}", cause=f"`{shlex.join(words)}` ended with status {done.returncode}", hint=hint)


def digest(paths: Iterable[Path], *extra: str) -> str:
    """Hash the names and contents of files, and of everything below folders."""
    total = hashlib.sha256()
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                total.update(f"{file}\0{file.stat().st_mode & 0o111}\0".encode())
                total.update(file.read_bytes())
    for text in extra:
        total.update(f"{text}\0".encode())
    return total.hexdigest()


def stamped(stamp: Path, value: str) -> bool:
    """Tell whether `stamp` records exactly `value`."""
    return stamp.is_file() and stamp.read_text() == value


@contextlib.contextmanager
def locked(path: Path, why: str) -> Iterator[None]:
    """Hold a lock file, so that two builds on one machine take turns instead of mixing their files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting: {why}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
