"""Every collective through torch.distributed, in the forms in which torch and its users call them."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from instep.errors import CollectiveTimeout, InvalidCall


def ranked(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values that tell the ranks apart."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float64) + 10 * (rank + 1)).reshape(shape).to(dtype)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def total(world: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([ranked(rank, *shape, dtype=torch.float64) for rank in range(world)]).sum(0).to(dtype)


def reductions(rank: int, world: int) -> None:
    everyone = torch.stack([ranked(peer, 7, dtype=torch.float64) for peer in range(world)])
    integers = everyone.to(torch.int64)
    bits_and, bits_or, bits_xor = integers[0].clone(), integers[0].clone(), integers[0].clone()
    for row in integers[1:]:
        bits_and &= row
        bits_or |= row
        bits_xor ^= row
    expected = {
        dist.ReduceOp.SUM: everyone.sum(0),
        dist.ReduceOp.AVG: everyone.mean(0),
        dist.ReduceOp.PRODUCT: everyone.prod(0),
        dist.ReduceOp.MIN: everyone.amin(0),
        dist.ReduceOp.MAX: everyone.amax(0),
        dist.ReduceOp.BAND: bits_and,
        dist.ReduceOp.BOR: bits_or,
        dist.ReduceOp.BXOR: bits_xor,
    }
    for op, values in expected.items():
        dtype = torch.int64 if values.dtype is torch.int64 else torch.float64
        tensor = ranked(rank, 7, dtype=dtype)
        dist.all_reduce(tensor, op)
        torch.testing.assert_close(tensor, values.to(dtype))
        tensor = ranked(rank, 7, dtype=dtype)
        dist.reduce(tensor, dst=1, op=op)
        torch.testing.assert_close(tensor, values.to(dtype) if rank == 1 else ranked(rank, 7, dtype=dtype))
    tensor = ranked(rank, 7, dtype=torch.float64)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.25))
    torch.testing.assert_close(tensor, everyone.sum(0) * 0.25)


def element_types(rank: int, world: int) -> None:
    floats = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    integers = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
    for dtype in (*floats, *integers):
        tensor = ranked(rank, 5, dtype=dtype)
        dist.all_reduce(tensor)
        same(tensor, total(world, 5, dtype=dtype))
    flags = torch.tensor([rank == 0, False, True])
    dist.all_reduce(flags, dist.ReduceOp.BOR)
    same(flags, torch.tensor([True, False, True]))
    for dtype in (torch.complex64, torch.complex128):
        tensor = ranked(rank, 4).to(dtype) * (1 + 2j)
        dist.all_reduce(tensor)
        same(tensor, total(world, 4).to(dtype) * (1 + 2j))
        view = (ranked(rank, 4).to(dtype) * 1j).conj()  # only marked as conjugated
        dist.group.WORLD.broadcast(view, root=1).wait()
        same(view.resolve_conj(), ranked(1, 4).to(dtype) * -1j)
    others = (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64)
    for dtype in others:
        tensor = ranked(rank, 6).to(dtype)
        dist.broadcast(tensor, src=1)
        assert torch.equal(tensor.view(torch.uint8), ranked(1, 6).to(dtype).view(torch.uint8)), dtype


def moves(rank: int, world: int) -> None:
    mine = ranked(rank, 2, 3)
    parts = [torch.empty(2, 3) for _ in range(world)]
    dist.all_gather(parts, mine)
    for peer, part in enumerate(parts):
        same(part, ranked(peer, 2, 3))
    whole = torch.empty(2 * world, 3)
    dist.all_gather_into_tensor(whole, mine)
    same(whole, torch.cat([ranked(peer, 2, 3) for peer in range(world)]))
    dist.gather(mine, parts if rank == 1 else None, dst=1)
    own = torch.empty(2, 3)
    dist.scatter(own, [ranked(peer, 2, 3) * 2 for peer in range(world)] if rank == 1 else None, src=1)
    same(own, ranked(rank, 2, 3) * 2)
    dist.reduce_scatter(own, [ranked(rank, 2, 3) + peer for peer in range(world)])
    same(own, total(world, 2, 3) + world * rank)
    dist.reduce_scatter_tensor(own, ranked(rank, 2 * world, 3), dist.ReduceOp.AVG)
    torch.testing.assert_close(own, total(world, 2 * world, 3)[2 * rank : 2 * rank + 2] / world)
    uneven = [torch.empty(peer + 1) for peer in range(world)]
    dist.all_gather(uneven, ranked(rank, rank + 1))
    for peer, part in enumerate(uneven):
        same(part, ranked(peer, peer + 1))


def exchanges(rank: int, world: int) -> None:
    output = torch.empty(world, 2)
    dist.all_to_all_single(output, ranked(rank, world, 2))
    same(output, torch.stack([ranked(peer, world, 2)[rank] for peer in range(world)]))
    # Rank r sends p + 1 rows to rank p.
    sizes = [peer + 1 for peer in range(world)]
    output = torch.empty(world * (rank + 1), 3)
    dist.all_to_all_single(output, ranked(rank, sum(sizes), 3), [rank + 1] * world, sizes)
    begin = sum(sizes[:rank])
    same(output, torch.cat([ranked(peer, sum(sizes), 3)[begin : begin + rank + 1] for peer in range(world)]))
    outputs = [torch.empty(peer + rank) for peer in range(world)]
    dist.all_to_all(outputs, [ranked(rank, peer + rank) for peer in range(world)])
    for peer, part in enumerate(outputs):
        same(part, ranked(peer, peer + rank))


def awkward_tensors(rank: int, world: int) -> None:
    strided = ranked(rank, 4, 6)[:, ::2]
    dist.all_reduce(strided)
    same(strided, total(world, 4, 6)[:, ::2])
    transposed = ranked(rank, 3, 2).t()
    work = dist.all_reduce(transposed, async_op=True)
    work.wait()
    same(transposed, total(world, 3, 2).t())
    channels_last = ranked(rank, 1, 2, 3, 4).to(memory_format=torch.channels_last)
    dist.broadcast(channels_last, src=0)
    same(channels_last, ranked(0, 1, 2, 3, 4))
    columns = [torch.zeros(4, 2 * world)[:, peer::world] for peer in range(world)]
    dist.all_gather(columns, ranked(rank, 4, 2).contiguous())
    same(columns[1], ranked(1, 4, 2))
    for empty in (torch.empty(0), torch.empty(0, 3), torch.empty(3, 0)):
        dist.all_reduce(empty)
        dist.broadcast(empty, src=0)
        dist.all_gather([torch.empty_like(empty) for _ in range(world)], empty)
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    same(scalar, torch.tensor(float(sum(range(world)))))
    leaf = torch.ones(3, requires_grad=True)
    dist.all_reduce(leaf)
    same(leaf.detach(), torch.full((3,), float(world)))


def results_still_under_way(rank: int, world: int) -> None:
    """A functional collective gives a tensor without memory of its own, which whoever uses it waits for."""
    for use in ("send", "all_reduce", "broadcast", "all_gather"):
        result = all_reduce(torch.ones(4), "sum", dist.group.WORLD)
        assert type(result) is AsyncCollectiveTensor
        if use == "send":
            received = torch.zeros(4)
            sent = dist.isend(result, (rank + 1) % world)
            dist.recv(received, (rank - 1) % world)
            sent.wait()
            assert received.tolist() == [world] * 4
        elif use == "all_reduce":
            dist.all_reduce(result)
            assert result.tolist() == [world * world] * 4
        elif use == "broadcast":
            dist.broadcast(result, 0)
            assert result.tolist() == [world] * 4
        else:
            parts = [torch.zeros(4) for _ in range(world)]
            dist.all_gather(parts, result)
            assert torch.cat(parts).tolist() == [world] * 4 * world
    whole = DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (world,)))
    with pytest.raises(InvalidCall, match="a DTensor has no memory"):
        dist.all_reduce(whole)


def sparse_tensors(rank: int, world: int) -> None:
    indices = torch.tensor([[0, rank], [1, 2]])
    dense = torch.zeros(world + 1, 4, 2)
    for peer in range(world):
        dense[0, 1] += peer + 1
        dense[peer, 2] += peer + 1
    values = torch.full((2, 2), float(rank + 1))
    tensor = torch.sparse_coo_tensor(indices, values, (world + 1, 4, 2), check_invariants=True)
    dist.all_reduce(tensor)
    same(tensor.to_dense(), dense)
    assert tensor.is_coalesced()
    single = torch.eye(world)[rank].reshape(1, world, 1).to_sparse()  # one entry on each rank
    dist.all_reduce(single)
    same(single.to_dense(), torch.ones(1, world, 1))
    nothing = torch.sparse_coo_tensor(
        torch.empty(2, 0, dtype=torch.int64), torch.empty(0), (3, 3), check_invariants=True
    )
    dist.all_reduce(nothing)
    assert nothing._nnz() == 0


def messages(rank: int, world: int) -> None:
    after, before = (rank + 1) % world, (rank - 1) % world
    for count in (0, 3, 100_000):
        received = torch.empty(count)
        if rank % 2 == 0:
            dist.send(ranked(rank, count), after)
            dist.recv(received, before)
        else:
            dist.recv(received, before)
            dist.send(ranked(rank, count), after)
        same(received, ranked(before, count))
    # By tag, in the other order.
    tagged = {tag: torch.empty(2) for tag in (5, 6)}
    sends = [dist.isend(ranked(rank, 2) * tag, after, tag=tag) for tag in (5, 6)]
    for tag in (6, 5):
        dist.irecv(tagged[tag], before, tag=tag).wait()
    for work in sends:
        work.wait()
    same(tagged[5], ranked(before, 2) * 5)
    same(tagged[6], ranked(before, 2) * 6)
    if rank == 0:
        seen = set()
        for _ in range(world - 1):
            received = torch.empty(2)
            source = dist.recv(received)
            same(received, ranked(source, 2))
            seen.add(source)
        assert seen == set(range(1, world))
    else:
        dist.send(ranked(rank, 2), 0)
    dist.barrier()  # what comes now must not be taken for one of those
    received = torch.empty(2, 3).t()  # into a view that is not contiguous
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, ranked(rank, 3, 2), after), dist.P2POp(dist.irecv, received, before)]
    )
    for work in works:
        work.wait()
    same(received, ranked(before, 3, 2))


def background(rank: int, world: int) -> None:
    tensors = [ranked(rank, 1000) * step for step in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for step, work in reversed(list(enumerate(works))):
        assert work.wait() is True
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert work.result()[0] is tensors[step]
        torch.testing.assert_close(tensors[step], total(world, 1000) * step)
    tensor = ranked(rank, 4)
    chained = dist.all_reduce(tensor, async_op=True).get_future().then(lambda future: future.value()[0] / world)
    torch.testing.assert_close(chained.wait(), total(world, 4) / world)
    # A callback may itself wait for another operation of the group.
    second = ranked(rank, 4)

    def wait_for_another(_: object) -> torch.Tensor:
        return dist.all_reduce(second, async_op=True).get_future().wait()[0]

    same(dist.all_reduce(tensor, async_op=True).get_future().then(wait_for_another).wait(), total(world, 4))
    strided = ranked(rank, 6)[::2]
    same(dist.all_reduce(strided, async_op=True).get_future().wait()[0], total(world, 6)[::2])
    # Nobody holds on to these, or to the works: the engine does, as long as it needs them.
    for _ in range(50):
        dist.all_reduce(torch.ones(10_000), async_op=True)
    dist.barrier()


def coalesced(rank: int, world: int) -> None:
    group = dist.group.WORLD
    tensors = [ranked(rank, 3), ranked(rank, 2, 2), ranked(rank, 0)]
    group.allreduce_coalesced(tensors).wait()
    same(tensors[0], total(world, 3))
    same(tensors[1], total(world, 2, 2))
    outputs = [torch.empty(3 * world), torch.empty(world, dtype=torch.int64)]
    group.all_gather_single_coalesced(outputs, [ranked(rank, 3), torch.tensor([rank])]).wait()
    same(outputs[1], torch.arange(world))
    small = [torch.empty(2), torch.empty(1)]
    group.reduce_scatter_single_coalesced(small, [ranked(rank, 2 * world), ranked(rank, world)]).wait()
    same(small[1], total(world, world)[rank : rank + 1])
    lists = [[torch.empty(3), torch.empty(1)] for _ in range(world)]
    group.allgather_coalesced(lists, [ranked(rank, 3), ranked(rank, 1)]).wait()
    same(lists[world - 1][0], ranked(world - 1, 3))


def direct_calls(rank: int, world: int) -> None:
    group = dist.group.WORLD
    for call in (
        lambda tensor: group.allreduce(tensor),
        lambda tensor: group.allreduce([tensor]),
        lambda tensor: group.allreduce([tensor], dist.ReduceOp.SUM),
        lambda tensor: group.allreduce(tensor, op=dist.ReduceOp.SUM, timeout=timedelta(seconds=9)),
    ):
        tensor = ranked(rank, 2)
        call(tensor).wait()
        same(tensor, total(world, 2))
    for call in (
        lambda tensor: group.broadcast(tensor, root=1),
        lambda tensor: group.broadcast(tensor, 1),
        lambda tensor: group.broadcast([tensor]) if rank != 1 else group.broadcast(tensor, 0),
    ):
        tensor = ranked(rank, 2)
        call(tensor).wait()
    same(tensor, ranked(0, 2))
    parts = [torch.empty(2) for _ in range(world)]
    group.allgather(parts, ranked(rank, 2)).wait()
    same(parts[1], ranked(1, 2))
    group.gather(parts if rank == 0 else [], ranked(rank, 2), root=0).wait()
    group.scatter(tensor, parts if rank == 0 else [], root=0).wait()
    same(tensor, ranked(rank, 2))
    group.reduce(tensor, root=0).wait()
    group.reduce_scatter(tensor, [ranked(rank, 2)] * world).wait()
    same(tensor, total(world, 2))
    whole = torch.empty(2 * world)
    group._allgather_base(whole, ranked(rank, 2)).wait()
    group._reduce_scatter_base(tensor, whole).wait()
    group.alltoall_base(whole, whole.clone(), [], []).wait()
    group.gather_into_tensor(whole, ranked(rank, 2)).wait()
    group.barrier().wait()
    group.barrier(timeout=timedelta(seconds=9)).wait()
    if rank < 2:
        work = group.send([tensor], 1 - rank, tag=0)
        received = torch.empty(2)
        group.recv([received], 1 - rank, 0).wait()
        work.wait()


def objects(rank: int, world: int) -> None:
    found: list[object] = [None] * world
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank})
    assert found == [{"rank": peer, "text": "x" * peer} for peer in range(world)]
    gathered: list[object] | None = [None] * world if rank == 1 else None
    dist.gather_object(("from", rank), gathered, dst=1)
    assert gathered is None or gathered == [("from", peer) for peer in range(world)]
    given = [f"for {peer}" for peer in range(world)] if rank == 0 else None
    mine: list[object] = [None]
    dist.scatter_object_list(mine, given, src=0)
    assert mine == [f"for {rank}"]
    shared = [{"a": 1}, "b"] if rank == 0 else [None, None]
    dist.broadcast_object_list(shared, src=0)
    assert shared == [{"a": 1}, "b"]


def subgroups(rank: int, world: int) -> None:
    last = list(range(1, world))
    group = dist.new_group(last)
    if rank in last:
        tensor = ranked(rank, 2)
        dist.all_reduce(tensor, group=group)
        same(tensor, sum((ranked(peer, 2) for peer in last), torch.zeros(2)))
        dist.broadcast(tensor, src=last[-1], group=group)
    if rank in last:
        dist.destroy_process_group(group)
    if not hasattr(dist.Backend, "_ensure_backend_registered"):
        return  # torch before 2.14 has none of the following
    backwards = dist.new_group(list(reversed(range(world))), sort_ranks=False)
    assert dist.get_rank(backwards) == world - 1 - rank
    whole = torch.empty(world)
    dist.all_gather_into_tensor(whole, torch.tensor([float(rank)]), group=backwards)
    same(whole, torch.arange(world - 1, -1, -1.0))
    pairs, _ = dist.new_subgroups_by_enumeration([[0, 1], list(range(2, world))])
    dist.barrier(group=pairs)
    split = dist.split_group(split_ranks=[[1, 0], list(range(2, world))])
    tensor = torch.tensor([float(rank)])
    dist.broadcast(tensor, group=split, group_src=0)
    same(tensor, torch.tensor([1.0 if rank < 2 else 2.0]))
    assert type(split) is type(dist.group.WORLD)
    for made in (pairs, backwards):
        dist.destroy_process_group(made)


def groups_at_once(rank: int, world: int) -> None:
    """Operations of different groups do not wait for each other, whatever order the ranks call them in."""
    one, other = dist.new_group(), dist.new_group()
    first, second = (one, other) if rank == 0 else (other, one)
    for _ in range(20):
        works = [dist.all_reduce(torch.ones(1000), group=group, async_op=True) for group in (first, second)]
        for work in works:
            work.wait()
    errors: list[BaseException] = []

    def loop(group: dist.ProcessGroup) -> None:
        try:
            for _ in range(50):
                tensor = torch.ones(100)
                dist.all_reduce(tensor, group=group)
                assert tensor[0] == world
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=loop, args=(group,)) for group in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def waiting_releases_the_interpreter(rank: int, _: int) -> None:
    ticks = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.wait(0.01):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    dist.barrier()
    before = ticks
    if rank == 0:
        time.sleep(0.5)
        dist.all_reduce(torch.ones(2))
    else:
        dist.all_reduce(torch.ones(2))
        assert ticks - before > 5, "another thread ran while this one waited"
    stop.set()
    thread.join()


def monitored(rank: int, world: int) -> None:
    if hasattr(dist.Backend, "_ensure_backend_registered"):  # before 2.14 torch lets gloo alone have it
        dist.monitored_barrier(timeout=timedelta(seconds=20))
    group = dist.new_group()
    group.monitored_barrier(timedelta(seconds=20))
    if rank == 0:
        with pytest.raises(CollectiveTimeout, match=r"Ranks? 1.* failed to pass monitoredBarrier") as caught:
            group.monitored_barrier(timedelta(seconds=0.2), wait_all_ranks=True)
        assert caught.value.ranks == tuple(range(1, world))
    # Nobody's absence has hurt the group.
    dist.all_reduce(torch.ones(2), group=group)


def bookkeeping(rank: int, world: int) -> None:
    group = dist.group.WORLD
    assert (group.rank(), group.size(), group.name()) == (rank, world, "instep")
    assert dist.get_backend() == "instep"
    before = group._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    assert group._get_sequence_number_for_group() == before + 1
    group.set_timeout(timedelta(seconds=25))
    if hasattr(dist.Backend, "_ensure_backend_registered"):  # before 2.14 there is a placeholder
        assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=25)
    with pytest.raises(InvalidCall, match="takes one tensor, not 2"):
        group.allreduce([torch.ones(1), torch.ones(1)])


def large_tensors(rank: int, world: int) -> None:
    """Of megabytes: where a rank has several threads, each takes a share."""
    numbers = torch.arange(1_000_003, dtype=torch.float32)
    tensor = numbers + rank
    dist.all_reduce(tensor)
    assert torch.equal(tensor, numbers * world + sum(range(world)))
    parts = [torch.empty_like(numbers) for _ in range(world)]
    dist.all_gather(parts, numbers + rank)
    assert all(torch.equal(part, numbers + peer) for peer, part in enumerate(parts))
    dist.all_to_all(parts, [numbers + 10 * rank + peer for peer in range(world)])
    assert all(torch.equal(part, numbers + 10 * peer + rank) for peer, part in enumerate(parts))


CHECKS = (
    reductions,
    element_types,
    moves,
    exchanges,
    awkward_tensors,
    results_still_under_way,
    sparse_tensors,
    messages,
    background,
    coalesced,
    direct_calls,
    objects,
    subgroups,
    groups_at_once,
    large_tensors,
    waiting_releases_the_interpreter,
    monitored,
    bookkeeping,
)


def test_every_collective() -> None:
    run_ranks(3, *CHECKS)


def test_every_collective_in_debug_mode() -> None:
    run_ranks(3, *CHECKS, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})


@pytest.mark.parametrize(
    "variables",
    [
        "INSTEP_TRANSPORT=tcp INSTEP_SECRET=of-the-job INSTEP_ENCRYPT=1 INSTEP_ORDER=canonical",
        "INSTEP_SINGLE_COPY=0",
        "INSTEP_LANES=3",
        "INSTEP_TRANSPORT=tcp INSTEP_NETWORK_LANES=3",
    ],
)
def test_every_collective_another_way(variables: str) -> None:
    run_ranks(3, *CHECKS, environment=dict(variable.split("=") for variable in variables.split()))
