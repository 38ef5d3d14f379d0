"""How groups come to be: stores of all kinds, beside other backends, with and without an import, rebuilt in place."""

from __future__ import annotations

import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from conftest import Runner
from instep import backend, errors
from instep.backend.groups import Group, GroupBackend, link_of
from instep.backend.link import Link


def threads(world: int, body: object) -> None:
    """Ranks as threads of this process."""
    failures: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            body(rank)  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=guarded, args=(rank,)) for rank in range(world)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(timeout=60)
    if failures:
        raise failures[0]


def made(store: dist.Store, rank: int, world: int) -> Group:
    link = Link(store, rank, world, timedelta(seconds=20), name="test", global_ranks=[])
    return Group(link, "instep")


@pytest.mark.parametrize("kind", ["hash", "file", "tcp", "prefix"])
def test_any_store_will_do(kind: str, tmp_path: Path) -> None:
    shared = dist.HashStore()
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def store() -> dist.Store:
        return {
            "hash": lambda: shared,
            "file": lambda: dist.FileStore(str(tmp_path / "store"), 3),
            "tcp": lambda: dist.TCPStore("127.0.0.1", server.port, is_master=False),
            "prefix": lambda: dist.PrefixStore("one/", dist.PrefixStore("two", shared)),
        }[kind]()

    def body(rank: int) -> None:
        group = made(store(), rank, 3)
        tensor = torch.tensor([float(rank)])
        group.allreduce([tensor]).wait()
        assert tensor.item() == 3.0
        group.shutdown()

    threads(3, body)


@pytest.mark.parametrize("lanes", ["9", "0", "many"])
@pytest.mark.parametrize("variable", ["INSTEP_LANES", "INSTEP_NETWORK_LANES"])
def test_a_number_of_threads_that_makes_no_sense_is_refused(
    variable: str, lanes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, lanes)
    with pytest.raises(errors.InvalidCall, match=f"{variable} is '{lanes}'\nhint: use a number of threads, 1 to 8"):
        made(dist.HashStore(), 0, 1)


def pairs_of_one_name(rank: int, world: int) -> None:
    """Ranks 0 and 1 make a group while 2 and 3 make another: torch gives both one name and one store."""
    assert world == 4
    pair = [0, 1] if rank < 2 else [2, 3]
    for _ in range(3):
        group = dist.new_group(pair)
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == sum(pair)
        dist.barrier()


def test_groups_of_one_name_do_not_meet() -> None:
    run_ranks(4, pairs_of_one_name)


def test_a_group_is_rebuilt_in_place() -> None:
    store = dist.HashStore()

    def body(rank: int) -> None:
        group = made(dist.PrefixStore("first", store), rank, 3)
        for _ in range(5):
            group.allreduce([torch.ones(1)]).wait()
        if rank == 2:
            group.shutdown()
            return
        with pytest.raises(errors.PeerLost):
            group.barrier().wait()
        for generation in (1, 2, 3):
            # The survivors, in the other order.
            completed = backend.reconfigure(group, dist.PrefixStore("second", store), 1 - rank, 2, generation)
            assert completed == (5 if generation == 1 else 1)
            assert (group.rank(), group.size()) == (1 - rank, 2)
            tensor = torch.ones(1)
            group.allreduce([tensor]).wait()
            assert tensor.item() == 2.0
        with pytest.raises(errors.InvalidCall, match="generation 3 does not follow 3"):
            backend.reconfigure(group, store, rank, 2, 3)
        group.shutdown()

    threads(3, body)


def test_only_groups_of_ours_can_be_rebuilt() -> None:
    with pytest.raises(errors.InvalidCall, match="is not an instep group"):
        backend.reconfigure(None, dist.HashStore(), 0, 1, 1)  # type: ignore[arg-type]


def beside_gloo(rank: int, world: int) -> None:
    ours = dist.new_group(backend="instep")
    assert type(ours) is Group
    assert dist.get_backend(ours) == "instep"
    for group in (ours, dist.group.WORLD):
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == sum(range(world))
    assert not isinstance(dist.group.WORLD, Group)


def both_kinds_in_one_group(rank: int, world: int) -> None:
    """torch made the other backend too, and ours serves the CPU."""
    group = dist.group.WORLD
    assert not isinstance(group, Group)
    ours = group._get_backend(torch.device("cpu"))
    assert isinstance(ours, GroupBackend)
    assert group._get_backend(torch.device("cuda")).name() == "gloo"
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    assert tensor.item() == sum(range(world))
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    parts = [torch.empty(1) for _ in range(world)]
    dist.all_gather(parts, tensor)
    dist.barrier()
    found: list[object] = [None] * world
    dist.all_gather_object(found, rank)
    assert found == list(range(world))
    if rank == 0:
        dist.send(tensor, 1)
    elif rank == 1:
        dist.recv(tensor, 0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    net(torch.ones(1, 2)).sum().backward()
    half = dist.split_group(split_ranks=[[0, 1]])
    dist.all_reduce(tensor, group=half)
    assert link_of(ours).size == world


def for_cuda_alone(_: int, __: int) -> None:
    with pytest.raises(RuntimeError, match="cpu"):
        dist.all_reduce(torch.ones(1))


def test_beside_gloo() -> None:
    run_ranks(2, beside_gloo, backend="gloo")


@pytest.mark.parametrize("configuration", ["cpu:instep,cuda:gloo", "cuda:gloo,cpu:instep"])
def test_in_one_group_with_another_backend(configuration: str) -> None:
    run_ranks(2, both_kinds_in_one_group, backend=configuration)


def test_a_cpu_tensor_in_a_group_for_cuda() -> None:
    run_ranks(2, for_cuda_alone, backend="cuda:instep")


IMPORTS = """
import sys, time
started = time.perf_counter()
import instep
assert "torch" not in sys.modules and "instep._native" not in sys.modules
print(f"import instep: {(time.perf_counter() - started) * 1000:.1f} ms", file=sys.stderr)
import torch.distributed as dist
if not {registered}:
    # As in torch before 2.14, where our own hook must do it.
    from instep._registration import register_when_torch_is_there
    finds = dist.Backend.__dict__["_ensure_backend_registered"]
    del dist.Backend._ensure_backend_registered
    register_when_torch_is_there()
    dist.Backend._ensure_backend_registered = finds
    assert "INSTEP" in dist.Backend._plugins
assert "instep.backend" not in sys.modules
dist.init_process_group("instep", store=dist.HashStore(), rank=0, world_size=1)
import torch
tensor = torch.ones(2)
dist.all_reduce(tensor)
# Ends without destroying the group, and with something under way.
dist.all_reduce(tensor, async_op=True)
dist.all_reduce(tensor, async_op=True).get_future().then(lambda future: future.value())
"""


@pytest.mark.parametrize("registered", [True, False])
def test_scripts_need_not_import_it_nor_clean_up(run: Runner, registered: bool) -> None:
    result = run(sys.executable, "-c", IMPORTS.replace("{registered}", str(registered)))
    result.expect(0)
    assert "Traceback" not in result.stderr


HOOK = """
import sys
import instep
finder = sys.meta_path[0]
assert type(finder).__name__ == "_AfterImport"
import torch
assert finder not in sys.meta_path
import importlib, torch.distributed
assert torch.distributed.__spec__.loader.get_source("torch.distributed")
"""


def test_the_import_hook_leaves_no_trace(run: Runner) -> None:
    run(sys.executable, "-c", HOOK).expect(0)
