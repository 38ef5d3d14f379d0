"""DDP and FSDP2 by ranks that share one GPU, against the same training in one process.

    instep run --nproc-per-node 2 tests/gpu/training.py

Needs a GPU, so that it is run by hand. Ends with 0 if the parameters are those of the single process.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import instep  # noqa: F401  # torch before 2.14 does not find the backend by itself

STEPS, SAMPLES, WIDTH = 20, 48, 512


def model() -> nn.Sequential:
    """The same one everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1)
    ).cuda()


def train(trained: nn.Module, rank: int, world: int) -> None:
    """Some steps on this rank's share of the samples."""
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        features = torch.randn(SAMPLES, WIDTH, generator=generator).cuda()[rank::world]
        optimizer.zero_grad()
        (trained(features) - features.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


def compare(name: str, trained: nn.Module, expected: nn.Module) -> None:
    """Whether all parameters are what one process makes of them, but for the order of sums."""
    for (what, found), wanted in zip(trained.named_parameters(), expected.parameters(), strict=True):
        whole = found.full_tensor() if isinstance(found, DTensor) else found
        torch.testing.assert_close(
            whole, wanted, rtol=2e-3, atol=2e-4, msg=lambda text, what=what: f"{name} {what}: {text}"
        )


def main() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("instep")
    rank, world = dist.get_rank(), dist.get_world_size()
    alone = model()
    train(alone, 0, 1)
    replicated = DistributedDataParallel(model(), device_ids=[0])
    train(replicated, rank, world)
    compare("DDP", replicated.module, alone)
    sharded = model()
    for layer in sharded:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(sharded)
    train(sharded, rank, world)
    compare("FSDP2", sharded, alone)
    if rank == 0:
        print(f"DDP and FSDP2 with {world} ranks train to the result of one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
