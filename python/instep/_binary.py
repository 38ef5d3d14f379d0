"""Finds the native `instep` binary and hands this process over to it."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

NAME = "instep"
# Exit status of a shell that cannot find a command.
NOT_FOUND = 127


class BinaryNotFoundError(FileNotFoundError):
    """The native binary is in none of the places an installation puts it."""


def candidates() -> Iterator[Path]:
    """Name the places where an installation puts the binary, nearest to this interpreter first."""
    # Not resolved: in a virtual environment the interpreter is a link, and the binary lies beside the link.
    yield Path(sys.executable).parent / NAME
    yield Path(sysconfig.get_path("scripts")) / NAME
    # `pip install --user` and `pip install --target`
    yield Path(sysconfig.get_path("scripts", f"{os.name}_user")) / NAME
    yield Path(__file__).parent.parent / "bin" / NAME


def find() -> Path:
    """Find the native binary: beside this interpreter, in its scripts folder, then on PATH."""
    tried = list(dict.fromkeys(candidates()))
    for path in tried:
        if os.access(path, os.X_OK) and path.is_file():
            return path
    if found := shutil.which(NAME):
        return Path(found)
    places = ", ".join(str(path.parent) for path in tried)
    raise BinaryNotFoundError(
        f"cannot find the native binary `{NAME}`\n"
        f"  cause: not in {places}, nor on PATH\n"
        f"  hint: reinstall with `{sys.executable} -m pip install --force-reinstall instep`,"
        " or put the folder that contains it on PATH"
    )


def execute(arguments: Sequence[str]) -> NoReturn:
    """Become the native binary: same process, so that signals and exit statuses need no forwarding."""
    try:
        binary = find()
    except BinaryNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 (this is the command line)
        sys.exit(NOT_FOUND)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(binary, [NAME, *arguments])


def python_option() -> list[str]:
    """Tell the launcher to start workers with this interpreter, unless PYTHON_EXEC names another."""
    return [] if os.environ.get("PYTHON_EXEC") else ["--python", sys.executable]
