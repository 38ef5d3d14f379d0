"""Whether this process is to take a lost rank's place and has not taken it yet.

`instep run --recover step` says so in the environment of the processes that it starts in place of others; the first
processes of all ranks have incarnation 0.
"""

from __future__ import annotations

import os

_has_joined = False


def incarnation() -> int:
    """How many processes have been this rank before, since the workers were last started all together."""
    value = os.environ.get("INSTEP_INCARNATION", "0")
    return int(value) if value.isdecimal() else 0


def is_waiting() -> bool:
    """Whether the peers' groups do not know this process yet."""
    return incarnation() > 0 and not _has_joined


def has_joined() -> None:
    """The process has taken its place: groups that the script makes from now on, all ranks make together."""
    global _has_joined
    _has_joined = True
