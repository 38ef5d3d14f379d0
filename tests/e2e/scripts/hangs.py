"""Ranks that hang in many ways, one after the other, and ranks that die: `hangs.py FOLDER WAY...`.

In every way of hanging some ranks wait in an operation until the file FOLDER/go-NUMBER appears. Then what hangs is let
go, or its groups are aborted, and the next way begins. A way of dying ends the job.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from instep import errors

WORLD = 3
LATE = 1

folder = Path(sys.argv[1])
go = folder / "go-none"
released = threading.Event()


def new_group(ranks: list[int] | None = None) -> dist.ProcessGroup:
    return dist.new_group(ranks, backend="instep")


def reduce(group: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(4), group=group)


def rank() -> int:
    return dist.get_rank()


def begin_release() -> None:
    """Set `released` when the file appears, on a thread of its own."""
    released.clear()

    def watch(path: Path) -> None:
        while not path.exists():
            time.sleep(0.05)
        released.set()

    threading.Thread(target=watch, args=(go,), daemon=True).start()


def on_release(action: Callable[[], object]) -> None:
    def wait() -> None:
        released.wait()
        action()

    threading.Thread(target=wait, daemon=True).start()


def shell_that_waits() -> str:
    return f"while [ ! -e {go} ]; do sleep 0.05; done"


def late(does: Callable[[], object]) -> Callable[[], None]:
    """One rank does this first; the others wait for it."""

    def way() -> None:
        group = new_group()
        if rank() == LATE:
            does()
        reduce(group)

    return way


# One rank in user code.


def sleep() -> None:
    while not go.exists():
        time.sleep(0.5)


def event_wait() -> None:
    released.wait()


def lock() -> None:
    taken = threading.Lock()
    taken.acquire()
    on_release(taken.release)
    taken.acquire()


def thread_join() -> None:
    thread = threading.Thread(target=released.wait, daemon=True)
    thread.start()
    thread.join()


def subprocess_wait() -> None:
    subprocess.run(["sh", "-c", shell_that_waits()], check=True)


def waitpid() -> None:
    child = subprocess.Popen(["sh", "-c", shell_that_waits()])
    os.waitpid(child.pid, 0)


def file_lock() -> None:
    path = folder / "locked"
    holder = subprocess.Popen(["flock", str(path), "sh", "-c", f"touch {path}.held; {shell_that_waits()}"])
    while not Path(f"{path}.held").exists():
        time.sleep(0.01)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    holder.wait()


def busy_loop() -> None:
    while not released.is_set():
        pass


def holds_the_interpreter() -> None:
    ctypes.PyDLL(None).system(shell_that_waits().encode())


def checkpoint_write() -> None:
    path = folder / f"disk-{go.name}"
    os.mkfifo(path)
    subprocess.Popen(["sh", "-c", f"{shell_that_waits()}; cat {path} > /dev/null"])
    with path.open("wb") as file:
        torch.save(torch.ones(4), file)


# One rank that waits for data.


def queue_get() -> None:
    items: queue.Queue[int] = queue.Queue()
    on_release(lambda: items.put(1))
    items.get()


def socket_read() -> None:
    ours, theirs = socket.socketpair()
    on_release(lambda: theirs.send(b"data"))
    ours.recv(4)


def pipe_read() -> None:
    reader, writer = os.pipe()
    on_release(lambda: os.write(writer, b"data"))
    os.read(reader, 4)


def asks_the_user() -> None:
    reader, writer = os.pipe()
    os.dup2(reader, 0)
    sys.stdin = os.fdopen(0)
    on_release(lambda: os.write(writer, b"yes\n"))
    input()


def http_request() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = server.accept()
        connection.recv(1000)
        released.wait()
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        connection.close()

    threading.Thread(target=answer, daemon=True).start()
    urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/")


class Slow(Dataset[int]):
    """A data set whose second item takes its time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:  # noqa: D105
        return 2

    def __getitem__(self, index: int) -> int:  # noqa: D105
        while index == 1 and not self.path.exists():
            time.sleep(0.05)
        return index


def loader_worker() -> None:
    list(DataLoader(Slow(go), num_workers=1))


def loader_inline() -> None:
    list(DataLoader(Slow(go)))


# Ranks that wait for each other, or for nobody.


def missed_barrier() -> None:
    group = new_group()
    if rank() != LATE:
        dist.barrier(group)
    else:
        released.wait()
        dist.barrier(group)


def skipped_iteration() -> None:
    inner, outer = new_group(), new_group()
    on_release(lambda: (inner.abort(), outer.abort()))
    for step in range(3):
        if rank() == LATE and step == 1:
            continue
        reduce(inner)
    reduce(outer)


def receive_without_send() -> None:
    group, buffer = new_group(), torch.ones(4)
    if rank() == 0:
        dist.recv(buffer, LATE, group=group)
    elif rank() == LATE:
        sleep()
        dist.send(buffer, 0, group=group)


def send_without_receive() -> None:
    group, buffer = new_group(), torch.ones(4_000_000)
    if rank() == 0:
        dist.send(buffer, LATE, group=group)
    elif rank() == LATE:
        sleep()
        dist.recv(buffer, 0, group=group)


def both_receive() -> None:
    group = new_group()
    on_release(group.abort)
    if rank() < 2:
        dist.recv(torch.ones(4), 1 - rank(), group=group)


def two_groups() -> None:
    groups = [new_group([0, 1]), new_group([0, 1])]
    if rank() < 2:
        on_release(lambda: [group.abort() for group in groups])
        for group in groups if rank() == 0 else reversed(groups):
            reduce(group)


def three_groups() -> None:
    pairs = [new_group([0, 1]), new_group([1, 2]), new_group([0, 2])]
    # Each rank begins with another of its two.
    mine = [(pairs[0], pairs[2]), (pairs[1], pairs[0]), (pairs[2], pairs[1])][rank()]
    on_release(lambda: [group.abort() for group in mine])
    for group in mine:
        reduce(group)


def chain() -> None:
    first, second = new_group([0, 1]), new_group([1, 2])
    if rank() == 2:
        sleep()
    if rank() > 0:
        reduce(second)
    if rank() < 2:
        reduce(first)


def queued_then_sleep() -> None:
    ahead, group = new_group(), new_group()
    if rank() == LATE:
        work = dist.all_reduce(torch.ones(4), group=ahead, async_op=True)
        sleep()
        reduce(group)
        work.wait()
    else:
        reduce(group)
        reduce(ahead)


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stopped_inside() -> None:
    group = new_group()
    if rank() == LATE:
        threading.Timer(0.3, stopped).start()
    if rank() == 2:
        time.sleep(1)
    reduce(group)


# Ranks that are gone: the job fails, and what they left is read afterwards.


def dying(does: Callable[[], object]) -> Callable[[], None]:
    def way() -> None:
        group = new_group()
        reduce(group)
        if rank() == LATE:
            time.sleep(0.3)
            does()
        reduce(group)
        time.sleep(60)

    return way


def raises() -> None:
    raise ValueError("a bug")


def goes_on_alone() -> None:
    group = new_group()
    try:
        if rank() == LATE:
            raises()
        reduce(group)
    except ValueError:
        sys.exit(0)


def another_call() -> None:
    group = new_group()
    reduce(group)
    if rank() == LATE:
        dist.barrier(group)
    else:
        reduce(group)


ON_THE_WAY: list[Callable[[], None]] = [
    sleep,
    event_wait,
    lock,
    thread_join,
    subprocess_wait,
    waitpid,
    file_lock,
    busy_loop,
    holds_the_interpreter,
    checkpoint_write,
    queue_get,
    socket_read,
    pipe_read,
    asks_the_user,
    http_request,
    loader_worker,
    loader_inline,
    stopped,
]
HANGS: dict[str, Callable[[], None]] = {
    "missed_barrier": missed_barrier,
    "skipped_iteration": skipped_iteration,
    "receive_without_send": receive_without_send,
    "send_without_receive": send_without_receive,
    "both_receive": both_receive,
    "two_groups": two_groups,
    "three_groups": three_groups,
    "chain": chain,
    "queued_then_sleep": queued_then_sleep,
    "stopped_inside": stopped_inside,
    **{does.__name__: late(does) for does in ON_THE_WAY},
}


def reduces_until_it_fails() -> None:
    while True:
        reduce(dist.group.WORLD)
        (folder / f"reduced-{rank()}").touch()


DEATHS: dict[str, Callable[[], None]] = {
    "killed": dying(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "crashed": dying(lambda: ctypes.string_at(0)),
    "aborted": dying(os.abort),
    "left_at_once": dying(lambda: os._exit(0)),
    "left": dying(lambda: sys.exit(0)),
    "raised": dying(raises),
    "goes_on_alone": goes_on_alone,
    "another_call": another_call,
    "reduces_until_it_fails": reduces_until_it_fails,
}


def main() -> None:
    global go
    dist.init_process_group("instep")
    for number, way in enumerate(sys.argv[2:]):
        go = folder / f"go-{number}"
        begin_release()
        if way in DEATHS:
            DEATHS[way]()
            return
        with contextlib.suppress(errors.Aborted):
            HANGS[way]()
        released.wait()
    dist.destroy_process_group()


main()
