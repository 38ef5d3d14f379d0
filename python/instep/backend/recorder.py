"""The flight recorder of this process: what `instep diagnose` reads when a job hangs.

There is one for all groups, made with the first of them: in the folder of `instep run`, or, without it, in one for all
children of our parent. Where it cannot be made, training goes on without it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading

from instep._native import FlightRecorder

_MOST_FRAMES = 100
_MOST_THREADS = 64

_recorder: FlightRecorder | None = None
_made_by: int | None = None


def of_this_process(place: tuple[int, int] | None) -> FlightRecorder | None:
    """Give the recorder, made at the first call: `place` is rank and size, where the group is the job's."""
    global _recorder, _made_by
    if _made_by != os.getpid():
        _made_by = os.getpid()
        _recorder = None if os.environ.get("INSTEP_RECORDER", "1") == "0" else _make(place)
    return _recorder


def _make(place: tuple[int, int] | None) -> FlightRecorder | None:
    rank, size = place if place is not None else (_number("RANK"), _number("WORLD_SIZE"))
    try:
        return FlightRecorder(
            folder=os.environ.get("INSTEP_RECORDER_DIR") or None,
            rank=rank,
            world_size=size or 0,
            job=os.environ.get("TORCHELASTIC_RUN_ID", ""),
            incarnation=_number("TORCHELASTIC_RESTART_COUNT") or 0,
            host=socket.gethostname(),
            stacks=stacks,
        )
    except OSError:
        return None


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() and len(text) < 10 else None


def stacks() -> str:
    """Give what every thread does, as JSON: file, line and function of its frames, the innermost first."""
    own = threading.get_ident()
    # Without the lock of `threading.enumerate`, which whoever hangs may hold.
    known = getattr(threading, "_active", {}).copy()
    found = []
    for thread, frame in list(sys._current_frames().items())[:_MOST_THREADS]:
        if thread == own:
            continue
        frames: list[list[str | int]] = []
        while frame is not None and len(frames) < _MOST_FRAMES:
            frames.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])
            frame = frame.f_back  # type: ignore[assignment]  # the outermost has none
        name = known[thread].name if thread in known else ""
        found.append({"name": name, "main": thread == threading.main_thread().ident, "frames": frames})
    return json.dumps({"threads": found})


def end() -> None:
    """Say that this process ends by itself."""
    if _recorder is not None:
        _recorder.end()
