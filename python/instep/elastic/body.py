"""Looks at the script for code that would run for a step that is done again.

A `with` can swallow an error, but what stands behind it in the loop's body still runs. On the ranks that do a step
again it would run once too often: a scheduler would be ahead, a variable that the step assigns would be missing. So a
session that recovers allows nothing behind `with session.step()` but what begins with `if session.redo: continue`.
"""

from __future__ import annotations

import ast
import functools
import linecache
from types import FrameType

from instep.errors import SessionMisuse

_Block = list[ast.stmt]
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def check(frame: FrameType | None) -> None:
    """Refuse code behind the step that `frame` enters, up to the loop around it; also in functions that call it."""
    while frame is not None:
        found = _behind(frame.f_code.co_filename, frame.f_lineno)
        if found is None:
            return  # no source to look at
        line, in_loop = found
        if line is not None:
            raise SessionMisuse(
                f"{frame.f_code.co_filename}:{line}: this would also run for a step that was lost and is done again\n"
                "hint: move it into `with session.step():`, or put `if session.redo: continue` before it"
            )
        if in_loop:
            return
        frame = frame.f_back


@functools.lru_cache(maxsize=256)
def _behind(file: str, line: int) -> tuple[int | None, bool] | None:
    """The first line that follows the statement at a line inside its loop, or its function; whether there is a loop."""
    lines = linecache.getlines(file)
    try:
        blocks = _blocks(ast.parse("".join(lines)).body, line) if lines else []
    except SyntaxError:
        return None
    for block, place, is_loop in reversed(blocks):
        following = _first(block[place + 1 :])
        if following is not None or is_loop:
            return following, is_loop
    return (None, False) if blocks else None


def _blocks(body: _Block, line: int) -> list[tuple[_Block, int, bool]]:
    """The blocks around a line, the innermost last, of its function; with which statement, and whether a loop's."""
    found: list[tuple[_Block, int, bool]] = []
    block, is_loop = body, False
    while True:
        place = next((at for at, each in enumerate(block) if each.lineno <= line <= (each.end_lineno or line)), None)
        if place is None:
            return found
        statement = block[place]
        if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            found = []  # what is around it does not run with it
        else:
            found.append((block, place, is_loop))
        inner = [value for value in _inner(statement) if value[0].lineno <= line <= (value[-1].end_lineno or line)]
        # A step that begins here is not behind itself: its own body does not count.
        if not inner or _enters(statement, line):
            return found
        block, is_loop = inner[0], isinstance(statement, _LOOPS)


def _enters(statement: ast.stmt, line: int) -> bool:
    """Whether a line is that of a `with`, not of its body."""
    return isinstance(statement, (ast.With, ast.AsyncWith)) and line < statement.body[0].lineno


def _inner(statement: ast.stmt) -> list[_Block]:
    """The blocks of a statement."""
    blocks = [getattr(statement, name, None) for name in ("body", "orelse", "finalbody")]
    blocks += [handler.body for handler in getattr(statement, "handlers", [])]
    blocks += [case.body for case in getattr(statement, "cases", [])]
    return [block for block in blocks if isinstance(block, list) and block]


def _first(behind: _Block) -> int | None:
    """The line of the first statement that does something, unless the step's end is asked for before."""
    for statement in behind:
        if _is_guard(statement):
            return None
        harmless = isinstance(statement, (ast.Pass, ast.Continue, ast.Return)) or (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        )
        if not harmless:
            return statement.lineno
    return None


def _is_guard(statement: ast.stmt) -> bool:
    """Whether it is `if session.redo: continue`."""
    return (
        isinstance(statement, ast.If)
        and isinstance(statement.test, ast.Attribute)
        and statement.test.attr == "redo"
        and isinstance(statement.body[-1], (ast.Continue, ast.Return))
    )
