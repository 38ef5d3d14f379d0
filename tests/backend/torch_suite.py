"""Runs torch's own backend-agnostic tests, which come with torch, on the instep backend.

    .venv/bin/python tests/backend/torch_suite.py --world 2 [--only NAME] [--json FILE] [--namespaces NAME,NAME]

The suite asks for the name of a backend and skips what that one is known not to do. Ours compares equal to `gloo` and
`mpi`, so that everything which any backend for CPUs is tested for runs. torch starts new processes for every test; here
the same ranks do one after the other, which is ten times as fast, and only a test that fails is repeated in new ones.
With `--namespaces` each rank enters a network of its own before it makes a group, as if it were on a host of its own.

Ends with 1 if a test fails or is skipped for a reason that is not in `ALLOWED_SKIPS`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import sys
import tempfile
import time
import traceback
import unittest
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from torch.distributed import Store

    # A class of tests, made when torch's are loaded.
    Suite = Any

BACKEND = "instep"
SUITE = "torch.testing._internal.distributed.distributed_test"
# Seconds that one test may take, many times what any of them needs.
PATIENCE = 100.0

# From linux/sched.h.
CLONE_NEWNET = 0x40000000

# Why a test may be skipped: the reason as torch gives it, and what it means for us.
ALLOWED_SKIPS = {
    r"Need at least \d accelerator devices?|accelerator is not available": "there is no GPU",
    r"Only (Nccl|NCCL)( backend)? supports |NCCL (Batch )?Send Recv Only|internal test flaky": "about NCCL alone",
    r"requires backend instep to be one of \{'nccl'\}": "about NCCL alone",
    r"MPI doesn't support GPU barrier|requires file:// initialization|Requires file://": "not for this configuration",
    r"small world size|[Tt]est requires (an exact )?world size of 4|odd world size": "for other numbers of ranks",
    r"^https://github\.com/pytorch/pytorch/|Test is failing, see": "switched off in torch, for all backends",
    r"no torchvision": "needs another package",
}


class Wide(str):
    """The name of our backend, equal to those whose tests we want."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Whether it is one of the names."""
        return isinstance(other, str) and str(other) in (str(self), "gloo", "mpi")

    def __ne__(self, other: object) -> bool:
        """Whether it is none of them."""
        return not self == other

    def __hash__(self) -> int:
        """That of gloo, to be found in sets of names."""
        return hash("gloo")


def load_suite() -> Suite:
    """Load torch's tests under our name; WORLD_SIZE must be set."""
    from torch.testing._internal import common_distributed

    from instep.backend import register

    register()  # the tests ask whether the backend is known
    for feature, backends in common_distributed.DistTestCases.backend_feature.items():
        if feature == "plugin" or "gloo" in backends:
            backends.add(BACKEND)
    sys.modules.pop(SUITE, None)
    # It reads its configuration while it is imported, and what it skips is decided then.
    with mock.patch.object(os, "environ", {**os.environ, "BACKEND": Wide(BACKEND)}):
        __import__(SUITE)
    tests = sys.modules[SUITE]

    class Suite(tests.TestDistBackend, tests.DistributedTest._DistTestBase):  # type: ignore[name-defined,misc]
        """All tests, for one rank; parent and barrier are ours."""

        def _barrier(self, *_: object, timeout: float = 10, **__: object) -> None:
            store, prefix = self.meeting
            self.barriers += 1
            key = f"{prefix}/barrier/{self.barriers}"
            if store.add(key, 1) == int(self.world_size):
                store.set(f"{key}/open", "")
            store.wait([f"{key}/open"], timedelta(seconds=timeout))

    return Suite


# In the ranks.


def serve(orders: Connection, rank: int, world: int, port: int, folder: str, namespace: str) -> None:
    """Do the tests that the parent names, until it closes the pipe."""
    os.environ.update(
        WORLD_SIZE=str(world), BACKEND=BACKEND, TEMP_DIR=folder, MASTER_ADDR="127.0.0.1", MASTER_PORT="29500"
    )
    import logging
    import warnings

    import torch
    import torch.distributed as dist

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    suite = load_suite()
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    if namespace:
        # The connection to the store stays where it was made.
        enter(namespace)
    orders.send("ready")
    while True:
        try:
            name, number = orders.recv()
        except EOFError:
            return
        before = dict(os.environ)
        orders.send(one_test(suite, name, f"{number}", rank, world, store, folder))
        os.environ.clear()
        os.environ.update(before)


def enter(namespace: str) -> None:
    """Move this thread, and what it starts, to another network."""
    with Path("/run/netns", namespace).open() as inside:
        if ctypes.CDLL(None, use_errno=True).setns(inside.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns", namespace)


def one_test(suite: Suite, name: str, prefix: str, rank: int, world: int, store: Store, folder: str) -> tuple[str, str]:
    """Run one test in this rank; what became of it, and why."""
    import torch.distributed as dist
    from torch.testing._internal import common_distributed, common_utils

    test = suite(name)
    test.rank = rank
    test.meeting = (store, prefix)
    test.barriers = 0
    test.file_name = f"{folder}/file-{prefix}"
    seconds = sys.modules[SUITE].CUSTOM_PG_TIMEOUT.get(name, sys.modules[SUITE].default_pg_timeout)
    try:
        dist.set_debug_level_from_env()
        dist.init_process_group(
            BACKEND,
            store=dist.PrefixStore(f"{prefix}/group", store),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=seconds),
        )
        test._barrier(timeout=PATIENCE)
        common_utils.set_rng_seed()
        getattr(test, name)()
        test._barrier(timeout=PATIENCE)
    except unittest.SkipTest as skip:
        return "skip", str(skip)
    except SystemExit as code:
        for skip in common_distributed.TEST_SKIPS.values():
            if skip.exit_code == code.code:
                return "skip", skip.message
        return "fail", f"exit status {code.code}"
    except BaseException:
        return "fail", traceback.format_exc()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return "pass", ""


# In the parent.


@dataclass
class Outcome:
    """What became of a test."""

    name: str
    status: str
    reason: str
    seconds: float


class Ranks:
    """A set of ranks that do tests."""

    def __init__(self, world: int, namespaces: list[str]) -> None:
        import torch.distributed as dist

        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.folder = tempfile.TemporaryDirectory()
        for name in ("barrier", "test_dir", "init_dir"):
            Path(self.folder.name, name).mkdir()
        self.number = 0
        self.members: list[tuple[ForkServerProcess, Connection]] = []
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.testing._internal.common_distributed", "instep.backend"])
        for rank in range(world):
            ours, theirs = context.Pipe()
            namespace = namespaces[rank] if namespaces else ""
            arguments = (theirs, rank, world, self.store.port, self.folder.name, namespace)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.members.append((process, ours))
        for _, pipe in self.members:
            pipe.recv()

    def test(self, name: str) -> tuple[str, str]:
        """Have all ranks do a test; the worst of what they say."""
        self.number += 1
        for _, pipe in self.members:
            pipe.send((name, self.number))
        answers: list[tuple[str, str]] = []
        left = {pipe: rank for rank, (_, pipe) in enumerate(self.members)}
        deadline = time.monotonic() + PATIENCE
        while left:
            ready = wait(list(left), timeout=max(deadline - time.monotonic(), 0))
            if not ready:
                answers.append(("fail", f"ranks {sorted(left.values())} have not answered"))
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = left.pop(pipe)
                try:
                    answers.append(pipe.recv())
                except EOFError:
                    answers.append(("fail", f"rank {rank} is gone"))
                if answers[-1][0] == "fail":
                    deadline = time.monotonic() + 2  # the others may wait for it
        for status in ("fail", "skip"):
            for answer in answers:
                if answer[0] == status:
                    return answer
        return "pass", ""

    def end(self) -> None:
        """End the ranks."""
        for process, pipe in self.members:
            pipe.close()
            process.kill()
            process.join()
        self.folder.cleanup()


def run_suite(world: int, only: str, namespaces: list[str]) -> list[Outcome]:
    """Run the tests whose name contains `only`, each rank in its namespace if there are some."""
    os.environ["WORLD_SIZE"] = str(world)
    os.environ["BACKEND"] = BACKEND
    suite = load_suite()
    names = [name for name in unittest.TestLoader().getTestCaseNames(suite) if only in name]
    outcomes = []
    ranks = Ranks(world, namespaces)
    try:
        for name in names:
            begun = time.monotonic()
            method = getattr(suite, name)
            if getattr(method, "__unittest_skip__", False):  # decided when it was loaded
                status, reason = "skip", method.__unittest_skip_why__
            else:
                status, reason = ranks.test(name)
            if status == "fail":
                # It may have found something that an earlier test left behind.
                ranks.end()
                ranks = Ranks(world, namespaces)
                status, reason = ranks.test(name)
                if status == "fail":
                    ranks.end()
                    ranks = Ranks(world, namespaces)
            if status == "skip" and not any(re.search(allowed, reason) for allowed in ALLOWED_SKIPS):
                status, reason = "fail", f"skipped for a reason that is not allowed: {reason}"
            outcomes.append(Outcome(name, status, reason, time.monotonic() - begun))
    finally:
        ranks.end()
    return outcomes


def main() -> int:
    """Run the suite and say what became of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--least", type=int, default=0, help="how many must pass")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--namespaces", default="", help="one for each rank")
    arguments = parser.parse_args()
    begun = time.monotonic()
    namespaces = [name for name in arguments.namespaces.split(",") if name]
    outcomes = run_suite(arguments.world, arguments.only, namespaces)
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in ("pass", "fail", "skip")}
    for outcome in outcomes:
        if outcome.status == "fail":
            print(f"FAIL {outcome.name}\n{outcome.reason}\n")
    print(f"world {arguments.world}: {counts} in {time.monotonic() - begun:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(outcome) for outcome in outcomes], indent=1))
    return int(counts["fail"] > 0 or counts["pass"] < arguments.least)


if __name__ == "__main__":
    sys.exit(main())
