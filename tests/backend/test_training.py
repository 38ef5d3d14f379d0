"""What people train with, on the instep backend: results must be those of the same training without it."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import own_folder, run_ranks
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor, all_reduce, reduce_scatter_tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

BATCH = 4


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(net: nn.Module, values: torch.Tensor) -> torch.Tensor:
    return net(values).square().mean()


def reference(world: int, steps: int = 3) -> list[torch.Tensor]:
    """The parameters after training on what all ranks see, in one process."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(net, torch.cat([batch(step, rank) for rank in range(world)])).backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


def train(net: nn.Module, rank: int, optimizer: torch.optim.Optimizer | None = None, steps: int = 3) -> None:
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(net, batch(step, rank)).backward()
        optimizer.step()


def close(found: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float = 1e-5) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=tolerance, atol=tolerance)


def ddp(rank: int, world: int) -> None:
    for options in (
        {},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.0005},
        {"broadcast_buffers": False, "gradient_as_bucket_view": True, "static_graph": True},
    ):
        net = DistributedDataParallel(model(), **options)
        train(net, rank)
        close(list(net.parameters()), reference(world))


def ddp_with_a_part_unused(rank: int, world: int) -> None:
    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(8, 2), nn.Linear(8, 2)

        def forward(self, values: torch.Tensor, left: bool) -> torch.Tensor:
            return self.left(values) if left else self.right(values)

    net = DistributedDataParallel(Forked(), find_unused_parameters=True)
    for step in range(3):
        net(batch(step, rank), (step + rank) % 2 == 0).sum().backward()
    gathered = [torch.empty(2, 8) for _ in range(world)]
    for layer in (net.module.left, net.module.right):
        assert layer.weight.grad is not None
        dist.all_gather(gathered, layer.weight.grad)
        close(gathered[1:], gathered[:-1])


def ddp_without_synchronisation(rank: int, world: int) -> None:
    net = DistributedDataParallel(model())
    with net.no_sync():
        loss_of(net, batch(0, rank)).backward()
    alone = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
    loss_of(net, batch(1, rank)).backward()
    both = model()
    for step in range(2):
        for peer in range(world):
            (loss_of(both, batch(step, peer)) / world).backward()
    close([p.grad for p in net.parameters()], [p.grad for p in both.parameters()])
    assert len(alone) == len(list(net.parameters()))


def ddp_with_uneven_inputs(rank: int, _: int) -> None:
    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
    with Join([net, optimizer]):
        for step in range(2 + rank):
            optimizer.zero_grad()
            loss_of(net, batch(step, rank)).backward()
            optimizer.step()
    weight = next(net.parameters()).detach().clone()
    dist.broadcast(weight, src=0)
    close([weight], [next(net.parameters()).detach()])


def ddp_with_hooks(rank: int, world: int) -> None:
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=8, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    hooks: list[tuple[object, Callable[..., object], float]] = [
        (None, default_hooks.allreduce_hook, 1e-5),
        (None, default_hooks.fp16_compress_hook, 1e-2),
        (None, default_hooks.bf16_compress_hook, 3e-2),
        (None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 1e-2),
        (state, powerSGD_hook.powerSGD_hook, 0.2),
    ]
    for hook_state, hook, tolerance in hooks:
        net = DistributedDataParallel(model(), gradient_as_bucket_view=True, static_graph=True)
        net.register_comm_hook(hook_state, hook)
        train(net, rank, steps=4)
        close(list(net.parameters()), reference(world, steps=4), tolerance)
    net = DistributedDataParallel(model())
    net._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    train(net, rank)
    close(list(net.parameters()), reference(world))


def gradients_travel_while_others_are_computed(rank: int, _: int) -> None:
    """The first bucket is reduced before the last gradient is there."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(_: object, values: torch.Tensor) -> torch.Tensor:
            return values.clone()

        @staticmethod
        def backward(_: object, gradient: torch.Tensor) -> torch.Tensor:
            time.sleep(0.3)
            return gradient

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.second(Slow.apply(self.first(values)))

    net = DistributedDataParallel(Net(), bucket_cap_mb=0.0001)
    done: dict[int, float] = {}
    begun: dict[int, float] = {}

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        index = bucket.index()
        begun[index] = time.monotonic()
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()

        def note(finished: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            done[index] = time.monotonic()
            return finished.value()[0]

        return future.then(note)

    hook.__annotations__.clear()  # torch wants its own types there, not their names
    net.register_comm_hook(None, hook)
    for _ in range(2):  # buckets are arranged anew after the first time
        begun.clear()
        done.clear()
        net(batch(0, rank)).sum().backward()
    assert len(done) > 1
    assert done[min(done)] < begun[max(begun)]


def sparse_gradients(rank: int, world: int) -> None:
    net = DistributedDataParallel(nn.Embedding(10, 4, sparse=True))
    before = net.module.weight.detach().clone()
    net(torch.tensor([rank, 9])).sum().backward()
    gradient = net.module.weight.grad
    assert gradient is not None
    assert gradient.is_sparse
    expected = torch.zeros_like(before)
    expected[:world] = 1 / world
    expected[9] = 1
    close([gradient.to_dense()], [expected])


def sync_batch_norm_and_buffers(rank: int, _: int) -> None:
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)))
    for step in range(2):
        net(batch(step, rank)).sum().backward()
    mean = net.module[1].running_mean.clone()
    dist.broadcast(mean, src=0)
    net(batch(3, rank))  # buffers are brought into line before each forward


def fsdp(rank: int, world: int) -> None:
    for options in ({}, {"use_orig_params": True}):
        net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), **options)
        train(net, rank)
        with FullyShardedDataParallel.summon_full_params(net):
            close(list(net.parameters()), reference(world))


def fsdp2(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    train(net, rank)
    close([parameter.full_tensor() for parameter in net.parameters()], reference(world))


def zero_redundancy(rank: int, world: int) -> None:
    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    train(net, rank, optimizer)
    alone = model()
    adam = torch.optim.Adam(alone.parameters(), lr=0.01)
    for step in range(3):
        adam.zero_grad()
        loss_of(alone, torch.cat([batch(step, peer) for peer in range(world)])).backward()
        adam.step()
    close(list(net.parameters()), list(alone.parameters()))
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(net.parameters()))


def distributed_tensors(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shards",))
    torch.manual_seed(2)
    left, right = torch.randn(2 * world, 6), torch.randn(6, 5)
    product = distribute_tensor(left, mesh, [Shard(0)]) @ distribute_tensor(right, mesh, [Replicate()])
    close([product.full_tensor()], [left @ right])
    close([product.redistribute(placements=[Shard(1)]).full_tensor()], [left @ right])
    column = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    close([column.redistribute(placements=[Replicate()]).to_local()], [left @ right])
    group = mesh.get_group()
    close([all_reduce(torch.ones(3), "sum", group)], [torch.full((3,), float(world))])
    close([all_gather_tensor(torch.full((1,), float(rank)), 0, group)], [torch.arange(float(world))])
    close([reduce_scatter_tensor(torch.ones(world), "avg", 0, group)], [torch.ones(1)])


def checkpoints(rank: int, world: int) -> None:
    folder = own_folder("checkpoint")
    mesh = init_device_mesh("cpu", (world,))
    values = torch.arange(12.0 * world).reshape(2 * world, 6)
    state = {"weight": distribute_tensor(values, mesh, [Shard(0)]), "step": torch.tensor(7)}
    dcp.save(state, checkpoint_id=folder / "plain")
    dcp.async_save(state, checkpoint_id=folder / "background").result()
    for name in ("plain", "background"):
        loaded = {"weight": distribute_tensor(torch.zeros_like(values), mesh, [Shard(0)]), "step": torch.tensor(0)}
        dcp.load(loaded, checkpoint_id=folder / name)
        close([loaded["weight"].full_tensor(), loaded["step"]], [values, torch.tensor(7)])
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


def compiled(rank: int, world: int) -> None:
    net = DistributedDataParallel(model())
    train(torch.compile(net, backend="aot_eager"), rank)
    close(list(net.parameters()), reference(world))

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(values: torch.Tensor) -> torch.Tensor:
        return all_reduce(values * 2, "sum", dist.group.WORLD) + 1

    close([step(torch.ones(4))], [torch.full((4,), 2.0 * world + 1)])


def copies_of_a_model(rank: int, _: int) -> None:
    net = DistributedDataParallel(model())
    train(net, rank)
    again = copy.deepcopy(net.module)
    close(list(again.parameters()), list(net.parameters()))


def test_data_parallel() -> None:
    run_ranks(
        2,
        ddp,
        ddp_with_a_part_unused,
        ddp_without_synchronisation,
        ddp_with_uneven_inputs,
        ddp_with_hooks,
        gradients_travel_while_others_are_computed,
        sparse_gradients,
        sync_batch_norm_and_buffers,
        copies_of_a_model,
        seconds=120,
    )


def test_sharded_training_and_checkpoints() -> None:
    run_ranks(2, fsdp, fsdp2, zero_redundancy, distributed_tensors, checkpoints, seconds=120)


@pytest.mark.timeout(300)
def test_compiled_training() -> None:
    run_ranks(2, compiled, seconds=240)
