"""torch's own way to give a group other peers: `dist._get_reconfigure_handle` and `dist._reconfigure`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import own_folder, run_ranks
from torch.nn.parallel import DistributedDataParallel

from instep import errors

pytestmark = pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason="torch has it since 2.14")


def handles_of(store: dist.Store, ranks: Iterable[int], when: str, rank: int) -> list[str]:
    """The handles of these processes, which each of them says."""
    store.set(f"{when}/{rank}", dist._get_reconfigure_handle())
    return [store.get(f"{when}/{peer}").decode() for peer in ranks]


def sum_of_ranks() -> float:
    tensor = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(tensor)
    return tensor.item()


def average(model: torch.nn.Module, ddp: DistributedDataParallel, value: float) -> float:
    model.zero_grad(set_to_none=True)
    ddp(torch.tensor([[float(value)]])).sum().backward()
    (parameter,) = model.parameters()
    assert parameter.grad is not None
    return parameter.grad.item()


def survivors_go_on_without_the_killed_rank(rank: int, world: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    assert dist._supports_reconfigure()
    before = handles_of(store, range(world), "before", rank)
    model = torch.nn.Linear(1, 1, bias=False)
    ddp = DistributedDataParallel(model)
    assert average(model, ddp, rank) == 1.0
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(errors.PeerLost):
        average(model, ddp, rank)
    left = [handle for peer, handle in enumerate(before) if peer != 1]
    assert dist._get_reconfigure_handle() in left
    dist._reconfigure(41, left, timeout=timedelta(seconds=100)).wait()
    assert (dist.get_rank(), dist.get_world_size()) == (rank // 2, 2)
    assert sum_of_ranks() == 3.0
    parts = [torch.zeros(1), torch.zeros(1)]
    dist.all_gather(parts, torch.tensor([float(rank)]))
    assert [part.item() for part in parts] == [0.0, 2.0]
    # The same module on the same group, and a new one.
    ddp._update_process_group(dist.group.WORLD)
    assert average(model, ddp, rank) == 1.0
    assert average(model, DistributedDataParallel(model), 3 * rank) == 3.0


def begin_without_peers(world: int, rank: int, folder: Path) -> dist.Store:
    dist.destroy_process_group()
    store = dist.FileStore(str(folder / "again"), world)
    dist.init_process_group(
        "instep", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=100), enable_reconfigure=True
    )
    return store


def a_newcomer_takes_the_place_of_the_killed_rank(rank: int, world: int) -> None:
    store = begin_without_peers(world, rank, own_folder("reconfigure"))
    with pytest.raises(errors.NotConnected, match=r"dist\._reconfigure"):
        dist.barrier()
    handles = handles_of(store, range(world), "handles", rank)
    model = torch.nn.Linear(1, 1, bias=False)
    if rank != 2:
        dist._reconfigure(1 << 40, handles[:2]).wait()
        ddp = DistributedDataParallel(model)
        assert average(model, ddp, rank) == 0.5
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(errors.PeerLost):
            average(model, ddp, rank)
    # A number need only be new; ranks without an order keep the one in which they made the group.
    dist._reconfigure(7, {handles[2], handles[0]}).wait()
    assert dist.get_rank() == rank // 2
    assert sum_of_ranks() == 3.0
    assert average(model, DistributedDataParallel(model), rank) == 1.0
    # Apart, and together again in another order.
    dist._reconfigure(10 + rank, [handles[rank]]).wait()
    assert (dist.get_rank(), dist.get_world_size(), sum_of_ranks()) == (0, 1, 1.0)
    dist._reconfigure(20, [handles[2], handles[0]]).wait()
    assert (dist.get_rank(), sum_of_ranks()) == (1 - rank // 2, 3.0)


def wrong_use_is_refused(rank: int, world: int) -> None:
    store = begin_without_peers(world, rank, own_folder("wrong"))
    handles = handles_of(store, range(world), "handles", rank)
    for wrong, what in (
        ([handles[1 - rank]], "not among the 1 given"),
        ([handles[0], handles[1], handles[0]], "twice"),
        (["10.0.0.1:400", handles[rank]], "no handle of the backend instep"),
    ):
        with pytest.raises(errors.InvalidCall, match=what):
            dist._reconfigure(1, wrong)
    # Each wants to be rank 0.
    with pytest.raises(errors.ConnectFailed, match=r"waited 0\.5 s for rank 1 of 2"):
        dist._reconfigure(2, [handles[rank], handles[1 - rank]], timeout=timedelta(seconds=0.5))
    third = str(handles[0]).replace("instep:0:", "instep:2:x")
    with pytest.raises((errors.InvalidCall, errors.ConnectFailed), match=r"other handles|rank 2 of 3"):
        dist._reconfigure(3, handles if rank == 0 else [*handles, third], timeout=timedelta(seconds=0.5))
    # None of which has done any harm.
    dist._reconfigure(4, handles).wait()
    assert sum_of_ranks() == 3.0
    with pytest.raises(errors.InvalidCall, match="with uuid 4 before"):
        dist._reconfigure(4, handles)
    assert sum_of_ranks() == 3.0
    # A group whose size torch remembers.
    group = dist.new_group(backend="cuda:instep")
    assert not dist._supports_reconfigure(group)
    with pytest.raises(errors.InvalidCall, match="may have other backends"):
        dist._reconfigure(5, handles, group)


def test_ranks_go_on_without_a_killed_one() -> None:
    run_ranks(3, survivors_go_on_without_the_killed_rank, may_end=1, seconds=150)


def test_a_newcomer_takes_the_place_of_a_killed_rank() -> None:
    run_ranks(3, a_newcomer_takes_the_place_of_the_killed_rank, may_end=1, seconds=150)


def test_wrong_use_is_refused_and_does_no_harm() -> None:
    run_ranks(2, wrong_use_is_refused)
