"""Wrong calls, ranks that are gone or late: a clear error on every rank that is left, never a hang."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from instep import errors


def refused(call: Callable[[], object], match: str) -> None:
    """The call is refused here, without a word to the others."""
    with pytest.raises(errors.InvalidCall, match=match) as caught:
        call()
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, dist.DistBackendError)


def calls_that_make_no_sense(_: int, world: int) -> None:
    group = dist.group.WORLD
    refused(lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND), "BAND is not defined for f32")
    refused(lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e5m2)), "SUM is not defined for torch.float8_e5m2")
    refused(lambda: group.broadcast(torch.ones(2), root=world), f"root {world} is not one of the {world} ranks")
    refused(lambda: group.reduce(torch.ones(2), root=-1), "root -1 is not")
    refused(lambda: group.allgather([torch.empty(2)] * (world + 1), torch.ones(2)), f"{world + 1} parts given")
    refused(
        lambda: group.all_gather_single(torch.empty(2 * world + 1), torch.ones(2)),
        "the output has . elements, and must have 2 for each",
    )
    refused(lambda: group.all_to_all_single(torch.empty(4), torch.ones(4), [4], [4]), "1 split sizes given")
    refused(lambda: group.all_to_all_single(torch.empty(4), torch.ones(4), [1] * world, [2] * world), "do not add up")
    refused(lambda: group.allgather([torch.empty(2).double()] * world, torch.ones(2)), "must have one type")
    refused(lambda: dist.all_reduce(torch.ones(2, device="meta")), "meta device")
    refused(lambda: group.broadcast(torch.eye(2).to_sparse_csr(), root=0), "layout torch.sparse_csr")
    refused(lambda: group.broadcast(torch.eye(2).to_sparse(), root=0), "to_dense")
    refused(lambda: group.send(torch.ones(2), world), f"{world}")
    # None of that has hurt the group.
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor[0] == world


def mismatch(call: Callable[[dist.ProcessGroup], object], first: str, second: str) -> None:
    """In a group of its own, which does not survive this."""
    group = dist.new_group()
    with pytest.raises(errors.Mismatch) as caught:
        call(group)
    assert first in str(caught.value)
    assert second in str(caught.value)
    assert "hint:" in str(caught.value)
    assert caught.value.ranks
    with pytest.raises(errors.CollectiveError):
        dist.all_reduce(torch.ones(1), group=group)


def calls_that_differ(rank: int, _: int) -> None:
    one = rank == 1
    mismatch(lambda group: dist.all_reduce(torch.ones(3 if one else 2), group=group), "all_reduce(2 ", "all_reduce(3 ")
    mismatch(
        lambda group: dist.all_reduce(torch.ones(2).to(torch.int32 if one else torch.float32), group=group),
        "i32",
        "f32",
    )
    mismatch(lambda group: dist.broadcast(torch.ones(2), src=int(one), group=group), "root 0", "root 1")
    mismatch(
        lambda group: dist.barrier(group=group) if one else dist.all_reduce(torch.ones(2), group=group),
        "barrier",
        "all_reduce",
    )
    mismatch(
        lambda group: dist.all_reduce(
            torch.ones(2), dist.ReduceOp.MAX if one else dist.ReduceOp.SUM, group=group, async_op=True
        ).wait(),
        "MAX",
        "SUM",
    )


def late_ranks(rank: int, world: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        begun = time.monotonic()
        with pytest.raises(errors.CollectiveTimeout, match="had not started it") as caught:
            dist.all_reduce(torch.ones(2), group=group)
        assert time.monotonic() - begun < 20
        assert caught.value.ranks == tuple(range(1, world))
        assert caught.value.operation == "all_reduce"
    dist.barrier()
    with pytest.raises(errors.CollectiveTimeout):
        dist.all_reduce(torch.ones(2), group=group)
    work = dist.all_reduce(torch.ones(2), async_op=True) if rank == 0 else None
    if work is not None:
        with pytest.raises(errors.Unfinished):
            work.wait(timedelta(seconds=0.1))
    dist.group.WORLD.monitored_barrier()  # through the store, whatever else is under way
    if work is None:
        dist.all_reduce(torch.ones(2))
    else:
        work.wait()


def aborted_groups(rank: int, _: int) -> None:
    group = dist.new_group()
    work = dist.all_reduce(torch.ones(2), group=group, async_op=True) if rank == 0 else None
    if work is not None:
        threading.Timer(0.2, group.abort).start()
        with pytest.raises(errors.Aborted, match="aborted by rank 0"):
            work.wait()
        assert isinstance(work.exception(), errors.Aborted)
        assert work.is_completed()
        assert not work.is_success()
        with pytest.raises(RuntimeError, match="Aborted: the group was aborted by rank 0"):
            work.get_future().wait()
        chained = torch.futures.collect_all([work.get_future()])
        with pytest.raises(RuntimeError, match="aborted by rank 0"):
            chained.wait()
    dist.barrier()
    group.shutdown()
    with pytest.raises(errors.NotConnected):
        dist.all_reduce(torch.ones(2), group=group)
    group.shutdown()


def shutdown_under_a_call(rank: int, _: int) -> None:
    group = dist.new_group()
    if rank == 0:
        threading.Timer(0.2, group.shutdown).start()
        with pytest.raises(errors.CollectiveError):
            dist.all_reduce(torch.ones(2), group=group)
    dist.barrier()


def a_rank_leaves(rank: int, world: int) -> None:
    if rank == world - 1:
        dist.barrier()
        dist.destroy_process_group()
        return
    dist.barrier()
    with pytest.raises(errors.PeerLost, match=f"lost rank {world - 1} on ") as caught:
        for _ in range(2):
            dist.all_reduce(torch.ones(2))
    assert caught.value.ranks == (world - 1,)
    assert caught.value.host
    with pytest.raises(errors.PeerLost):
        dist.barrier()


def a_rank_dies_in_training(rank: int, world: int) -> None:
    net = DistributedDataParallel(nn.Linear(4, 4))
    net(torch.ones(2, 4)).sum().backward()
    if rank == world - 1:
        os._exit(0)
    begun = time.monotonic()
    with pytest.raises(errors.PeerLost, match=f"lost rank {world - 1}"):
        for _ in range(3):
            net(torch.ones(2, 4)).sum().backward()
    assert time.monotonic() - begun < 10


def test_wrong_calls() -> None:
    run_ranks(2, calls_that_make_no_sense, calls_that_differ, aborted_groups, shutdown_under_a_call)


def test_late_ranks() -> None:
    run_ranks(3, late_ranks)


def test_a_rank_that_leaves() -> None:
    run_ranks(3, a_rank_leaves, may_end=2)


def test_a_rank_that_dies_in_training() -> None:
    run_ranks(3, a_rank_dies_in_training, may_end=2)


def test_a_rank_that_never_comes() -> None:
    begun = time.monotonic()
    with pytest.raises(errors.ConnectFailed, match=r"waited 0\.5 s for rank 1 of 2 to join"):
        dist.init_process_group("instep", store=dist.HashStore(), rank=0, world_size=2, timeout=timedelta(seconds=0.5))
    assert time.monotonic() - begun < 10
    if dist.is_initialized():
        dist.destroy_process_group()


def test_errors_survive_pickling() -> None:
    error = errors.PeerLost("lost rank 1", ranks=[1], host="here", operation="all_reduce", sequence=3)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.ranks, copy.host, copy.sequence) == (str(error), (1,), "here", 3)
