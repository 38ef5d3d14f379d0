"""Ranks as processes, for tests; forked from a server that has torch loaded, so that a set of them takes no second.

    run_ranks(2, check_all_reduce, check_broadcast)

Every rank makes the default group, calls the checks one after the other with its rank and the world size, and leaves.
The first failure of any rank fails the test with that rank's traceback; the others are ended.
"""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

Check = Callable[[int, int], None]
_context = get_context("forkserver")
# All that ranks would import else, each for itself: DDP and optimizers want the compiler, the modules of tests pytest.
_context.set_forkserver_preload(
    [
        "torch._dynamo",
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "torch.distributed.optim",
        "torch.distributed.tensor",
        "torch.nn.parallel",
        # The backend that a test of a mixed group has for CUDA.
        "torch.testing._internal.distributed.fake_pg",
        "instep.backend",
        "pytest",
    ]
)


def run_ranks(
    world: int,
    *checks: Check,
    backend: str | None = "instep",
    seconds: float = 60.0,
    timeout: float = 30.0,
    environment: Mapping[str, str] | None = None,
    may_end: int | None = None,
) -> None:
    """Run the checks in so many ranks, within `seconds`; `timeout` is the group's. One rank may end as it likes."""
    __tracebackhide__ = True
    with tempfile.TemporaryDirectory() as folder:
        ranks: list[tuple[ForkServerProcess, Connection]] = []
        for rank in range(world):
            ours, theirs = _context.Pipe()
            arguments = (theirs, checks, rank, world, backend, f"{folder}/store", timeout, dict(environment or {}))
            process = _context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            ranks.append((process, ours))
        try:
            failure = _await(ranks, seconds, may_end)
        finally:
            for process, _ in ranks:
                process.kill()
                process.join()
    if failure is not None:
        pytest.fail(failure, pytrace=False)


def _await(ranks: list[tuple[ForkServerProcess, Connection]], seconds: float, may_end: int | None) -> str | None:
    deadline = time.monotonic() + seconds
    left = {ours: rank for rank, (_, ours) in enumerate(ranks)}
    while left:
        ready = wait(list(left), timeout=max(deadline - time.monotonic(), 0))
        if not ready:
            return f"still running after {seconds} s: ranks {sorted(left.values())}"
        for ours in ready:
            assert isinstance(ours, Connection)
            rank = left.pop(ours)
            try:
                trace = ours.recv()
            except EOFError:
                ranks[rank][0].join(timeout=5)
                trace = f"the process ended by itself, with status {ranks[rank][0].exitcode}"
            if trace is not None and rank != may_end:
                return f"rank {rank}: {trace}"
    return None


def _serve(
    pipe: Connection,
    checks: tuple[Check, ...],
    rank: int,
    world: int,
    backend: str | None,
    store: str,
    timeout: float,
    environment: dict[str, str],
) -> None:
    import torch
    import torch.distributed as dist

    from instep._replacement import install

    try:
        os.environ.update(environment)
        torch.set_num_threads(1)
        torch.manual_seed(0)
        if "TORCH_DISTRIBUTED_DEBUG" in environment:
            dist.set_debug_level_from_env()
        if "INSTEP_REPLACE" in environment:
            install()  # as `import torch` has it done where the variable is set before
        dist.init_process_group(
            backend,
            store=dist.FileStore(store, world),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout),
        )
        for check in checks:
            try:
                check(rank, world)
            except BaseException as error:
                raise AssertionError(f"in {check.__name__}") from error
        dist.destroy_process_group()
    except BaseException:
        pipe.send(traceback.format_exc())
        os._exit(1)
    pipe.send(None)


def own_folder(name: str) -> Path:
    """A folder that all ranks of a check share, made by whoever comes first."""
    import torch.distributed as dist

    found: list[str | None] = [tempfile.mkdtemp(prefix=name) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found, src=0)
    assert found[0] is not None
    return Path(found[0])
