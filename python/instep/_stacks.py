"""Lets `instep diagnose` see what a worker does that has no group of the backend instep: Python's fault handler.

Torch calls `offer` at the end of its own import, as an entry point of the group `torch.backends`. In workers of
`instep run`, and nowhere else, it puts Python's fault handler on a signal that nobody uses, with a file of this process
in the job's folder: the handler then writes the frames of all threads to it, without the interpreter and without ending
anything. A script that has taken the signal before keeps it, and its process is not asked.
"""

from __future__ import annotations

import os

# SIGRTMIN + 15. `crates/diagnosis/src/dump.rs` sends it.
SIGNAL = 49
FOLDER = "INSTEP_RECORDER_DIR"
# Open for as long as the process lives.
_files: list[int] = []


def offer() -> None:
    """Be ready to be asked, if this process is a worker of `instep run`."""
    folder = os.environ.get(FOLDER)
    if not folder or "RANK" not in os.environ or _files:
        return
    import faulthandler
    import signal

    if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.open(f"{folder}/stacks-{os.getpid()}", flags, 0o600)
    except OSError:
        return
    _files.append(file)
    faulthandler.register(SIGNAL, file=file, all_threads=True)
