"""A rank that fails inside a training step: the others get the error of this package, whatever waits for them in torch.

Every case trains in a group of its own. Between the gradients of the second layer and those of the first, the last rank
leaves the group, comes too late, calls something else or aborts; the others are then inside DDP's reducer, a
communication hook, FSDP or a functional collective.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ranks import run_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

from instep import errors
from instep.backend.groups import HAS_BACKEND_CLASS

Wrap = Callable[[nn.Module, dist.ProcessGroup], nn.Module]
Mishap = Callable[[dist.ProcessGroup], object]
TIMEOUT_S = 1.0


class Interrupted(torch.autograd.Function):
    """Calls something on the way back."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, values: torch.Tensor, call: object) -> torch.Tensor:
        context.call = call  # type: ignore[attr-defined]
        return values.clone()

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if context.call is not None:  # type: ignore[attr-defined]
            context.call()  # type: ignore[attr-defined]
        return gradient, None


class Net(nn.Module):
    """Two layers, and between them what `on_the_way_back` says."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.on_the_way_back: Callable[[], object] | None = None

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.second(Interrupted.apply(self.first(values), self.on_the_way_back))


def ddp(**options: object) -> Wrap:
    # Buckets so small that the second layer's gradients travel before the first layer's are there.
    return lambda net, group: DistributedDataParallel(net, process_group=group, bucket_cap_mb=0.0005, **options)


def hooked(hook: Callable[..., object], **state: object) -> Wrap:
    def wrap(net: nn.Module, group: dist.ProcessGroup) -> nn.Module:
        # One bucket: PowerSGD begins operations in callbacks, which several buckets would run in any order.
        found = DistributedDataParallel(net, process_group=group, gradient_as_bucket_view=True)
        found.register_comm_hook(powerSGD_hook.PowerSGDState(group, **state) if state else group, hook)
        return found

    return wrap


def builtin_hook(net: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    found = DistributedDataParallel(net, process_group=group)
    found._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    return found


def fsdp(net: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    return FullyShardedDataParallel(
        net,
        process_group=group,
        device_id=torch.device("cpu"),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
    )


def fsdp2(net: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    mesh = DeviceMesh.from_group(group, "cpu")
    fully_shard(net.first, mesh=mesh)
    fully_shard(net.second, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def functional_collectives(net: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    for parameter in net.parameters():
        parameter.register_hook(lambda gradient: functional.all_reduce(gradient, "sum", group) + 0)
    return net


def compiled(net: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    # The layers alone: what happens between them is nothing that the compiler may look at.
    net.first, net.second = (torch.compile(layer, backend="aot_eager") for layer in (net.first, net.second))
    return DistributedDataParallel(net, process_group=group)


FRAMEWORKS: dict[str, Wrap] = {
    "ddp": ddp(),
    "ddp with unused parameters": ddp(find_unused_parameters=True),
    "ddp with bucket views": ddp(gradient_as_bucket_view=True),
    "ddp with a static graph": ddp(static_graph=True),
    "all_reduce hook": hooked(default_hooks.allreduce_hook),
    "fp16 hook": hooked(default_hooks.fp16_compress_hook),
    "power sgd hook": hooked(
        powerSGD_hook.powerSGD_hook, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=0.5
    ),
    "builtin hook": builtin_hook,
    "fsdp": fsdp,
    "fsdp2": fsdp2,
    "functional collectives": functional_collectives,
}
SLOW: dict[str, Wrap] = {"compiled ddp": compiled}

MISHAPS: dict[type[errors.CollectiveError], Mishap] = {
    errors.PeerLost: lambda _: os._exit(0),
    errors.Mismatch: lambda group: dist.all_reduce(torch.ones(3), dist.ReduceOp.MAX, group=group),
    errors.Aborted: lambda group: group.abort(),
    # The others' limit has passed when this rank goes on.
    errors.CollectiveTimeout: lambda _: time.sleep(2 * TIMEOUT_S),
}


def step(net: nn.Module) -> None:
    net(torch.ones(4, 16)).sum().backward()


def case(name: str, expected: type[errors.CollectiveError]) -> None:
    """One mishap in one framework."""
    last = dist.get_rank() == dist.get_world_size() - 1
    dist.barrier()  # the case before may have left one rank far behind
    group = dist.new_group(timeout=timedelta(seconds=30))
    torch.manual_seed(0)
    net = Net()
    wrapped = (FRAMEWORKS | SLOW)[name](net, group)
    for _ in range(3):  # buckets are arranged anew after the first step, and PowerSGD starts later
        step(wrapped)
    if last:
        net.on_the_way_back = lambda: MISHAPS[expected](group)
    if expected is errors.CollectiveTimeout:
        group.set_timeout(timedelta(seconds=TIMEOUT_S))
        dist.barrier()
    begun = time.monotonic()
    with pytest.raises(errors.CollectiveError if last else expected) as caught:
        step(wrapped)
    assert time.monotonic() - begun < 20
    if not last:
        assert caught.value.ranks, f"{name}: {caught.value}"


def every_framework_is_aborted(_: int, __: int) -> None:
    for name in FRAMEWORKS:
        case(name, errors.Aborted)


def groups_fail_in_every_way(_: int, __: int) -> None:
    for expected in (errors.Mismatch, errors.CollectiveTimeout):
        for name in ("ddp", "power sgd hook", "fsdp2"):
            case(name, expected)


def test_training_raises_the_error_of_the_collective() -> None:
    run_ranks(2, every_framework_is_aborted, groups_fail_in_every_way)


@pytest.mark.skipif(not HAS_BACKEND_CLASS, reason="before torch 2.14 no group has several backends")
def test_training_raises_the_error_of_the_collective_beside_another_backend() -> None:
    run_ranks(2, every_framework_is_aborted, backend="cpu:instep,cuda:gloo")


def compiled_training_is_aborted(_: int, __: int) -> None:
    case("compiled ddp", errors.Aborted)


@pytest.mark.soak
def test_compiled_training_raises_the_error_of_the_collective() -> None:
    run_ranks(2, compiled_training_is_aborted, seconds=170)


def ddp_loses_a_peer(_: int, __: int) -> None:
    case("ddp", errors.PeerLost)


def a_hook_loses_a_peer(_: int, __: int) -> None:
    case("fp16 hook", errors.PeerLost)


def fsdp2_loses_a_peer(_: int, __: int) -> None:
    case("fsdp2", errors.PeerLost)


@pytest.mark.parametrize("check", [ddp_loses_a_peer, a_hook_loses_a_peer, fsdp2_loses_a_peer])
def test_training_raises_that_a_peer_is_lost(check: Callable[[int, int], None]) -> None:
    run_ranks(3, check, may_end=2)
