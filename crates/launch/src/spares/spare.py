"""Makes a spare of a starting interpreter: imports modules ahead, waits, and becomes a worker when it is woken.

The launcher starts a spare with the very command line of a worker (`python -u train.py ...`) and with this file, as
`sitecustomize` in an archive, at the head of `PYTHONPATH`. So it runs while the interpreter starts, before anything is
known of the script. When it is woken it returns, and the interpreter goes on to the script by itself: `__main__`,
`sys.argv`, tracebacks and everything else are a fresh interpreter's because this is one. Of this file nothing stays,
except in a hot spare, which goes on by itself once all ranks have sessions, and waits where the script's loop begins.

The channel is a Unix socket with message boundaries:

    spare -> launcher    here          this file runs, nothing has been imported
    launcher -> spare    go            limits are lifted, import
    spare -> launcher    failed TEXT   the end
                         ready         imported; a hot spare may now be woken, or goes on:
                         rehearsing    the script runs up to its loop
                         parked        and waits there
    launcher -> spare    wake          with four descriptors: stdout, stderr, working directory, environment

The end of the channel is the end of the spare. It never runs the script without having been woken.
"""

import os
import sys
from _socket import CMSG_SPACE, socket

WOKEN_WITH = 4  # descriptors


def _settings():
    """Take what the launcher said, and leave the environment and the search path as a worker finds them."""
    channel, archive, nice, had_path, hot, modules, script = os.environ.pop("INSTEP_SPARE").split(":", 6)
    entry = "/proc/self/fd/" + archive
    if had_path == "1":
        os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"][len(entry) + 1 :]
    else:
        del os.environ["PYTHONPATH"]
    sys.path.remove(entry)
    sys.path_importer_cache.pop(entry, None)
    sys.modules["zipimport"]._zip_directory_cache.pop(entry, None)
    os.close(int(archive))
    os.set_inheritable(int(channel), False)
    return socket(fileno=int(channel)), nice, hot == "1", modules.split(","), script


def _real_customization():
    """Run the site's own `sitecustomize`, which this file hides; give what it raised."""
    this = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except Exception as error:
        # Where the error is raised, the module it came from must be there to be forgotten.
        sys.modules["sitecustomize"] = this
        return error
    return None


def _import(modules, script):
    """Import as the script would: its folder is the first place to look at."""
    if not script:
        folder = os.getcwd()
    elif os.path.isdir(script):
        folder = script
    else:
        folder = os.path.dirname(os.path.realpath(script))
    sys.path.insert(0, folder)
    try:
        for name in modules:
            try:
                __import__(name)
            except BaseException as error:
                return "cannot import {}: {}: {}".format(name, type(error).__name__, error)
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    return None


def _give_priority_back(nice):
    """Undo the low priority, also for threads that modules have started."""
    if nice:
        for thread in os.listdir("/proc/self/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), int(nice))


def _become(rights, before, rehearsed):
    """Take over the worker's streams and environment, and its folder where the script has not chosen another."""
    size = len(rights) // WOKEN_WITH
    received = [int.from_bytes(rights[at : at + size], sys.byteorder) for at in range(0, len(rights), size)]
    out, err, folder, variables = received
    os.dup2(out, 1)
    os.dup2(err, 2)
    if not rehearsed:
        os.fchdir(folder)
    text = os.pread(variables, os.fstat(variables).st_size, 0)
    for number in received:
        os.close(number)
    # What imports have set in the environment stays, as it would in a worker that imports the same.
    after = dict(entry.split(b"=", 1) for entry in text.split(b"\0") if b"=" in entry)
    for name in before:
        if name not in after:
            os.environb.pop(name, None)
    for name, value in after.items():
        if before.get(name) != value:
            os.environb[name] = value


def _await_call(channel, nice, before, rehearsed):
    """Wait until the launcher makes this a worker."""
    data, ancillary, _, _ = channel.recvmsg(16, CMSG_SPACE(4 * WOKEN_WITH))
    if data != b"wake":
        os._exit(0)
    _become(ancillary[0][2], before, rehearsed)
    _give_priority_back(nice)
    channel.close()


def _rehearses(channel, nice, before):
    """Whether the script may run up to its loop, before anybody is lost; it then waits there."""
    from instep.elastic import hot_spare

    if not hot_spare.sessions_begin(channel.fileno()):
        return False  # somebody was lost already, or the launcher is gone
    channel.send(b"rehearsing")

    def wait():
        channel.send(b"parked")
        _await_call(channel, nice, before, rehearsed=True)

    hot_spare.wait_with(wait)
    return True


def _live():
    """Go from the start to the moment at which the interpreter may go on; give what must be raised then."""
    channel, nice, hot, modules, script = _settings()
    channel.send(b"here")
    if channel.recv(16) != b"go":
        os._exit(0)
    before = dict(os.environb)
    raised = _real_customization()
    failed = _import(modules, script)
    if failed:
        channel.send(("failed " + failed).encode(errors="replace")[:4000])
        os._exit(1)
    channel.send(b"ready")
    if not (hot and _rehearses(channel, nice, before)):
        _await_call(channel, nice, before, rehearsed=False)
    return raised


def _guarded():
    try:
        return _live()
    except BaseException as error:
        # Whatever it is: the script must not run in a process that nobody woke.
        os.write(2, "a spare interpreter failed: {!r}\n".format(error).encode(errors="replace"))
        os._exit(1)


_raised = _guarded()
if _raised is not None:
    # Without a `sitecustomize` of the site this is the ImportError that Python expects and passes over.
    raise _raised
