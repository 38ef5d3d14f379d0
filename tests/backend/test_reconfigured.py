"""DDP on a group that has lost a rank and was rebuilt without it."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from instep import backend, errors


def trains_on_with_those_left(rank: int, world: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    model = torch.nn.Linear(1, 1, bias=False)
    ddp = DistributedDataParallel(model)

    def gradient() -> float:
        model.zero_grad(set_to_none=True)
        ddp(torch.tensor([[float(rank)]])).sum().backward()
        assert model.weight.grad is not None
        return model.weight.grad.item()

    assert gradient() == sum(range(world)) / world
    if rank == world - 1:
        os._exit(0)
    with pytest.raises(errors.PeerLost):
        gradient()
    left = world - 1
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    backend.reconfigure(group, store, rank, left, 1)
    # The average is that of the ranks left, for the module whose backward pass failed as for a new one.
    ddp._update_process_group(group)
    assert gradient() == sum(range(left)) / left
    ddp = DistributedDataParallel(model)
    assert gradient() == sum(range(left)) / left


def test_ddp_goes_on_with_the_ranks_that_are_left() -> None:
    run_ranks(3, trains_on_with_those_left, may_end=2)
