"""Every operation on CUDA tensors against the same one on the CPU, by ranks that share one GPU.

    instep run --nproc-per-node 2 tests/gpu/correctness.py

Needs a GPU, so that it is run by hand. Ends with 0 and the number of comparisons if all are equal to the bit.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import instep  # noqa: F401  # torch before 2.14 does not find the backend by itself
from instep.backend import link_of

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
WHOLE = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
# The last one takes several chunks of the arena.
SIZES = [0, 1, 7, 1000, 65_537, 9_000_001]
# And this one of the memory that tensors travel through.
SEVERAL_CHUNKS = 3_000_001


def make(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """The same values wherever it is asked for."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        return torch.randn(count, generator=generator, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, (count,), generator=generator).to(dtype)


def reductions(dtype: torch.dtype) -> Iterator[object]:
    """What is defined for a type."""
    if dtype is torch.bool:
        yield from (ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
        return
    yield from (ReduceOp.SUM, ReduceOp.AVG)
    if not dtype.is_complex:
        yield from (ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX)
    if not dtype.is_complex and not dtype.is_floating_point:
        yield from (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
    if dtype.is_floating_point:
        yield dist._make_nccl_premul_sum(0.37)


def compare(what: str, run: Callable[[torch.device], list[torch.Tensor]]) -> int:
    """Run something on both devices and compare the bits."""
    expected, found = run(torch.device("cpu")), run(torch.device("cuda", 0))
    for one, other in zip(expected, found, strict=True):
        theirs = other.cpu()
        same = one.numel() == 0 or torch.equal(one.view(torch.uint8), theirs.view(torch.uint8))
        if not same:
            wrong = (one != theirs).nonzero().flatten()
            raise SystemExit(
                f"rank {dist.get_rank()}: {what}: {wrong.numel()} of {one.numel()} differ, first {wrong[:3]}"
            )
    return len(expected)


def reduce_everything(rank: int, world: int) -> int:
    """All reductions of all types."""
    done = 0
    for dtype in [*FLOATS, *WHOLE, *COMPLEX, torch.bool]:
        for count, operation in itertools.product(SIZES if dtype is torch.float32 else SIZES[:-1], reductions(dtype)):
            given = make(dtype, count * world, rank)
            done += compare(f"{dtype} {count} {operation}", functools.partial(reduce_one, given, operation, world))
    return done


def reduce_one(given: torch.Tensor, operation: object, world: int, device: torch.device) -> list[torch.Tensor]:
    """One reduction of one type, everywhere and in parts."""
    everywhere = given.to(device, copy=True)
    dist.all_reduce(everywhere, operation)
    part = torch.empty(given.numel() // world, dtype=given.dtype, device=device)
    dist.reduce_scatter_tensor(part, given.to(device), operation)
    return [everywhere, part]


def move_everything(rank: int, world: int) -> int:
    """All moves, of some sizes."""
    done = 0
    some = itertools.product([torch.float32, torch.int8, torch.complex128, torch.bool], SIZES[:-1])
    for dtype, count in [*some, (torch.float32, SEVERAL_CHUNKS)]:

        def moves(device: torch.device, dtype: torch.dtype = dtype, count: int = count) -> list[torch.Tensor]:
            mine = make(dtype, count, rank).to(device)
            shared = make(dtype, count, rank + 50).to(device)
            dist.broadcast(shared, world - 1)
            gathered = torch.empty(count * world, dtype=dtype, device=device)
            dist.all_gather_into_tensor(gathered, mine)
            apart = [torch.empty_like(mine) for _ in range(world)]
            dist.all_gather(apart, mine)
            collected = [torch.zeros_like(mine) for _ in range(world)]
            dist.gather(mine, collected if rank == 0 else None, 0)
            given = torch.zeros_like(mine)
            dist.scatter(
                given, [make(dtype, count, 70 + to).to(device) for to in range(world)] if rank == 0 else None, 0
            )
            sizes = [[(count + 3 * one + other) % (count + 5) for other in range(world)] for one in range(world)]
            outputs = [torch.empty(sizes[source][rank], dtype=dtype, device=device) for source in range(world)]
            inputs = [make(dtype, sizes[rank][to], 100 * rank + to).to(device) for to in range(world)]
            dist.all_to_all(outputs, inputs)
            strided = make(dtype, count * 2, rank).to(device)[::2]
            dist.broadcast(strided, 0)
            sent = torch.zeros_like(mine)
            if world > 1:
                work = dist.isend(mine, (rank + 1) % world)
                dist.recv(sent, (rank - 1) % world)
                work.wait()
            return [
                shared,
                gathered,
                *apart,
                *collected,
                given,
                *outputs,
                strided.clone(memory_format=torch.contiguous_format),
                sent,
            ]

        done += compare(f"moves {dtype} {count}", moves)
    return done


def ordered_with_streams(rank: int, world: int, count: int) -> int:
    """What is computed before and after an operation, on any stream, is ordered with it; futures, too."""
    rounds = 30
    side = torch.cuda.Stream()
    expected = 0.0
    tensor = torch.zeros(count, device="cuda")
    for number in range(rounds):
        with torch.cuda.stream(side if number % 2 else torch.cuda.default_stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream() if number % 2 else side)
            for _ in range(20):
                tensor = tensor.mul(1.0) + 1.0
            work = dist.all_reduce(tensor, async_op=True)
            if number % 3 == 0:
                work.get_future().wait()
            else:
                work.wait()
            tensor = tensor / world
        expected += 20.0
    torch.cuda.synchronize()
    assert torch.equal(tensor, torch.full_like(tensor, expected)), (rank, tensor[:3], expected)
    return 1


def main() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("instep")
    rank, world = dist.get_rank(), dist.get_world_size()
    done = reduce_everything(rank, world) + move_everything(rank, world)
    done += sum(ordered_with_streams(rank, world, count) for count in (100, 1 << 20, 5 << 20))
    device = link_of(dist.group.WORLD).device(torch.device("cuda", 0))
    assert device is not None
    way = "on the device" if device.native.is_shared else "through the host"
    assert device.native.is_shared == (os.environ.get("INSTEP_DEVICE_EXCHANGE") != "0"), way
    if rank == 0:
        print(f"{done} comparisons by {world} ranks, {way}: all equal")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
