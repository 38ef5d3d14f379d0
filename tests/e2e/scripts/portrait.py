"""Writes down everything by which a script can tell how its interpreter was started, then waits to be ended.

    portrait.py FOLDER [END]

Round N leaves FOLDER/N.json; the file FOLDER/go ends round 0 by END: `raise`, `exit7`, or (the default) a signal.
"""

import sys

BEFORE_IMPORTS = sorted(sys.modules)

import atexit  # noqa: E402
import ctypes  # noqa: E402
import gc  # noqa: E402
import inspect  # noqa: E402
import json  # noqa: E402
import multiprocessing.connection  # noqa: E402
import os  # noqa: E402
import pickle  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402


class Thing:
    """Pickled by reference to `__main__`."""

    def __init__(self, number: int) -> None:
        """Remember the number."""
        self.number = number


def in_child(pipe: multiprocessing.connection.Connection, thing: Thing) -> None:
    """What a spawned process sees of the class in `__main__`."""
    pipe.send([type(thing).__module__, thing.number])


def spawned() -> list:
    """Start a process by `spawn`, which imports this file again."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=in_child, args=(theirs, Thing(5)))
    child.start()
    answer = ours.recv()
    child.join()
    return [answer, child.exitcode]


def descriptors() -> dict:
    """What is open, without the numbers that differ from run to run."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = Path(str(entry.readlink()).split(":")[0]).name
        except OSError:
            continue  # the listing itself
    return found


def status() -> dict:
    """Signals and threads as the kernel has them."""
    wanted = ("SigBlk", "SigIgn", "SigCgt", "Threads", "Cpus_allowed", "NoNewPrivs")
    pairs = (line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {name: value.strip() for name, value, *_ in pairs if name in wanted}


def portrait() -> dict:
    """Everything."""
    main = sys.modules["__main__"]
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_char_p
    streams = {}
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        raw = getattr(stream, "buffer", None)
        streams[name] = [
            *(str(getattr(stream, key, None)) for key in ("name", "mode", "encoding", "errors", "line_buffering")),
            *(str(getattr(stream, key, None)) for key in ("write_through", "newlines")),
            *(stream.isatty(), stream.seekable(), stream is getattr(sys, f"__{name}__"), type(raw).__name__),
            *(str(getattr(raw, key, None)) for key in ("name", "mode", "closefd")),
        ]
    own = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE", "INSTEP_SECRET", "INSTEP_TEST_MARK")
    return {
        "argv": [sys.argv, sys.orig_argv, Path("/proc/self/cmdline").read_text()],
        "path": sys.path,
        "importers": sorted(map(str, sys.path_importer_cache)),
        "interpreter": [sys.executable, sys.prefix, str(sys.flags), sys.warnoptions, str(sys._xoptions)],
        "main": {
            name: value if isinstance(value, str) else type(value).__name__
            for name, value in vars(main).items()
            if name.startswith("__") and name != "__doc__"
        },
        "main is __main__": vars(main) is globals(),
        "frames": [len(inspect.stack()), [frame.name for frame in traceback.extract_stack()]],
        "source": len(inspect.getsource(Thing)),
        "pickle": type(pickle.loads(pickle.dumps(Thing(4)))) is Thing,
        "spawned": spawned(),
        "signals": {
            number.name: str(signal.getsignal(number))
            for number in sorted(signal.valid_signals())
            if isinstance(number, signal.Signals)
        },
        "status": status(),
        "descriptors": descriptors(),
        "streams": streams,
        "folder": [str(Path.cwd()), os.umask(0o77)],
        "limits": {
            name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")
        },
        "priority": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
        "groups": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), os.getppid()],
        "environment": {name: value for name, value in os.environ.items() if name not in own},
        "in C": {name: str(library.getenv(name.encode())) for name in ("RANK", "PYTHONPATH", "INSTEP_SPARE", "PWD")},
        "threads": [
            threading.current_thread().name,
            threading.current_thread() is threading.main_thread(),
            threading.active_count(),
        ],
        "collector": [gc.isenabled(), gc.get_threshold(), sys.getrecursionlimit(), sys.getswitchinterval()],
        "hooks": [
            sys.excepthook is sys.__excepthook__,
            sys.displayhook is sys.__displayhook__,
            str(sys.gettrace()),
            len(sys.meta_path),
            len(sys.path_hooks),
            len(warnings.filters),
        ],
        "customized": [getattr(sys.modules.get("sitecustomize"), "__file__", None), "usercustomize" in sys.modules],
    }


def main() -> None:
    """Leave the portrait, and end as told."""
    folder, end = Path(sys.argv[1]), (sys.argv[2:] or ["signal"])[0]
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    report = portrait()
    report["preloaded"] = "decimal" in BEFORE_IMPORTS
    report["remains"] = [name for name in BEFORE_IMPORTS if "spare" in name or "instep" in name]
    path = folder / f"{count}.json"
    path.with_suffix(".partial").write_text(json.dumps(report))
    path.with_suffix(".partial").rename(path)
    atexit.register(print, "at exit")
    while count == "0" and not (folder / "go").exists():
        time.sleep(0.01)
    if end == "raise":
        raise ValueError("as told")
    if end == "exit7":
        sys.exit(7)
    if count == "0":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
