"""`INSTEP_REPLACE=gloo`: scripts that ask for gloo get instep, and see no difference but in speed."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import own_folder, run_ranks

from conftest import Runner
from instep.backend.groups import Group, GroupBackend

CPU = torch.device("cpu")
PYTHON = ("--python", sys.executable)
REPLACED = {"INSTEP_REPLACE": "gloo"}
SAYS_SO = "instep: groups that request gloo use instep (INSTEP_REPLACE=gloo)\n"


def is_ours(group: dist.ProcessGroup) -> bool:
    """Whether tensors on the CPU go through instep."""
    return isinstance(group, Group) or isinstance(group._get_backend(CPU), GroupBackend)


def adds_up(group: dist.ProcessGroup) -> None:
    tensor = torch.tensor([1.0])
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == dist.get_world_size(group)


def the_default_group_is_ours(_: int, __: int) -> None:
    assert is_ours(dist.group.WORLD)
    assert "instep" not in (dist.get_backend(), dist.get_backend_config(), dist.group.WORLD.name())
    assert dist.is_gloo_available()
    adds_up(dist.group.WORLD)


def the_default_group_is_gloo(_: int, __: int) -> None:
    assert not is_ours(dist.group.WORLD)
    adds_up(dist.group.WORLD)


def no_group_is_ours(_: int, __: int) -> None:
    group = dist.group.WORLD
    assert not isinstance(group, Group)
    assert not any(isinstance(group._get_backend(device), GroupBackend) for device in group._device_types)


def groups_made_later_are_ours(rank: int, world: int) -> None:
    for backend in ("gloo", "cpu:gloo", None):
        group = dist.new_group(backend=backend)
        assert is_ours(group)
        assert backend is None or dist.get_backend(group) == backend
        adds_up(group)
        dist.monitored_barrier(group, timeout=timedelta(seconds=20))
    pair, _ = dist.new_subgroups(2, backend="gloo")
    assert is_ours(pair)
    adds_up(pair)
    alone = dist.new_group([rank], backend="gloo", use_local_synchronization=True)
    adds_up(alone)
    split = dist.split_group(split_ranks=[list(range(world))])
    assert is_ours(split)
    adds_up(split)
    mesh = dist.device_mesh.init_device_mesh("cpu", (1, world))
    adds_up(mesh.get_group(1))


def every_kind_of_call(rank: int, world: int) -> None:
    after, before = (rank + 1) % world, (rank - 1) % world
    found: list[object] = [None] * world
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": peer} for peer in range(world)]
    objects: list[object] = [rank]
    dist.broadcast_object_list(objects, src=1)
    assert objects == [1]
    dist.scatter_object_list(objects, [f"for {peer}" for peer in range(world)] if rank == 0 else None)
    assert objects == [f"for {rank}"]

    received = torch.zeros(3)
    calls = [
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), after),
        dist.P2POp(dist.irecv, received, before),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    assert received.tolist() == [before] * 3
    if rank == 0:
        dist.send(torch.ones(1), 1, tag=7)
    elif rank == 1:
        assert dist.recv(torch.zeros(1), tag=7) == 0

    out = torch.empty(world)
    dist.all_to_all_single(out, torch.arange(float(world)) + 10 * rank)
    assert out.tolist() == [10.0 * peer + rank for peer in range(world)]
    part = torch.empty(1)
    dist.reduce_scatter_tensor(part, torch.arange(float(world)))
    assert part.item() == rank * world
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    assert work.is_completed()
    dist.monitored_barrier()
    dist.barrier()


def the_default_group_can_be_made_again(rank: int, world: int) -> None:
    store = dist.FileStore(str(own_folder("again") / "store"), world)
    for _ in range(3):
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        adds_up(dist.group.WORLD)
        adds_up(dist.new_group())


def ddp_finds_what_it_needs(_: int, __: int) -> None:
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    net(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize(
    ("backend", "checks"),
    [
        ("gloo", (groups_made_later_are_ours, every_kind_of_call, ddp_finds_what_it_needs)),
        ("cpu:gloo", (groups_made_later_are_ours, the_default_group_can_be_made_again)),
        (None, (groups_made_later_are_ours, every_kind_of_call)),
        ("cpu:gloo,cuda:fake", (ddp_finds_what_it_needs,)),
    ],
)
def test_who_asks_for_gloo_gets_instep(backend: str | None, checks: tuple[object, ...]) -> None:
    run_ranks(2, the_default_group_is_ours, *checks, backend=backend, environment=REPLACED)


def test_torch_may_watch_every_call() -> None:
    detail = {**REPLACED, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    run_ranks(2, the_default_group_is_ours, ddp_finds_what_it_needs, backend="gloo", environment=detail)
    # It cannot watch a backend of ours beside others, so there gloo stays.
    run_ranks(2, the_default_group_is_gloo, backend="cpu:gloo,cuda:fake", environment=detail)


@pytest.mark.parametrize("backend", ["cpu:gloo,mps:gloo", "cpu:fake,cuda:gloo"])
def test_gloo_stays_for_what_instep_cannot_do(backend: str) -> None:
    run_ranks(2, no_group_is_ours, backend=backend, environment=REPLACED)


def test_gloo_stays_where_nobody_asked() -> None:
    run_ranks(2, the_default_group_is_gloo, backend="gloo")
    run_ranks(2, the_default_group_is_gloo, backend="gloo", environment={"INSTEP_REPLACE": ""})


SCRIPT = """
import os, resource, sys
rank = int(os.environ["RANK"])
{first}
import torch, torch.distributed as dist
{then}
dist.init_process_group("gloo")
tensor = torch.ones(3)
dist.all_reduce(tensor)
kind = type(dist.group.WORLD).__module__
dist.new_group(backend="gloo")
# One write, so that ranks that share a pipe do not mix their lines.
line = " ".join(["rank", str(rank), dist.get_backend(), kind, str(int(tensor[0]))])
os.write(1, line.encode() + b"\\n")
# gloo: a rank that leaves while another one still connects makes that one fail.
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path):  # noqa: ANN201  # a function
    """Writes a script that asks for gloo, with something done before torch is imported, and after."""

    def write(first: str = "", then: str = "") -> Path:
        path = tmp_path / "train.py"
        path.write_text(SCRIPT.format(first=first, then=then))
        return path

    return write


def test_an_option_does_it_and_one_line_says_so(script, run: Runner, instep: Path) -> None:  # noqa: ANN001
    done = run(instep, "run", *PYTHON, "--replace-gloo", "--nproc-per-node", "2", script()).expect(0)
    assert done.stderr.count(SAYS_SO) == 1
    for rank in range(2):
        assert f"rank {rank} gloo instep.backend.groups 2\n" in done.stdout


def test_torchrun_and_plain_python_have_it_from_the_variable(script, run: Runner) -> None:  # noqa: ANN001
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script()]
    done = run(*command, env=REPLACED).expect(0)
    assert done.stderr.count(SAYS_SO) == 1
    assert "rank 1 gloo instep.backend.groups 2\n" in done.stdout


def test_a_rank_without_the_variable_is_named(script, run: Runner, instep: Path) -> None:  # noqa: ANN001
    lost = script(first='if rank == 1: del os.environ["INSTEP_REPLACE"]')
    done = run(instep, "run", *PYTHON, "--nproc-per-node", "2", lost, env=REPLACED)
    assert done.status != 0
    assert "rank 1 has made this group with gloo, rank 0 with instep: INSTEP_REPLACE=gloo is not set for rank 1" in (
        done.stderr
    )


def test_without_memory_to_share_all_stay_on_gloo(script, run: Runner, instep: Path) -> None:  # noqa: ANN001
    poor = script(then="if rank == 0: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))")
    done = run(instep, "run", *PYTHON, "--replace-gloo", "--nproc-per-node", "2", poor).expect(0)
    said = "instep: a group stays on gloo: could not allocate shared memory: File too large (os error 27) (rank 0)\n"
    assert done.stderr.count(said) == 1
    assert SAYS_SO not in done.stderr
    for rank in range(2):
        assert f"rank {rank} gloo torch.distributed.distributed_c10d 2\n" in done.stdout


def test_only_gloo_can_be_replaced(script, run: Runner, instep: Path) -> None:  # noqa: ANN001
    wrong = {"INSTEP_REPLACE": "nccl"}
    refused = run(instep, "run", script(), env=wrong).expect(1)
    assert 'error: INSTEP_REPLACE="nccl": only gloo can be replaced' in refused.stderr
    plain = run(sys.executable, script(), env={**wrong, **ALONE})
    assert plain.status == 1
    assert "INSTEP_REPLACE is 'nccl'\nhint: gloo is the only backend that can be replaced" in plain.stderr


ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
OTHERS = """
import torch, torch.distributed as dist
del dist.Backend._ensure_backend_registered
from instep._replacement import install
dist.Backend._plugins.clear()
install()
"""


def test_torch_that_is_too_old_stays_with_gloo_and_says_so(run: Runner) -> None:
    done = run(sys.executable, "-c", OTHERS, env={**REPLACED, **ALONE}).expect(0)
    assert "instep: gloo is not replaced: torch 2." in done.stderr


def test_who_does_not_use_torch_or_gloo_hears_nothing(run: Runner, instep: Path, tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text("import sys; assert 'torch' not in sys.modules and 'instep' not in sys.modules\n")
    done = run(instep, "run", "--replace-gloo", path).expect(0)
    assert "instep:" not in done.stderr


def test_a_python_without_instep_is_warned_of(run: Runner, instep: Path, tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text("")
    base = Path(os.path.realpath(sys.executable))
    done = run(instep, "run", "--replace-gloo", "--python", base, path).expect(0)
    assert f"warning: gloo is not replaced: {base} has no package instep" in done.stderr
    done = run(instep, "run", *PYTHON, "--replace-gloo", path, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}).expect(0)
    assert "warning: gloo is not replaced: TORCH_DEVICE_BACKEND_AUTOLOAD" in done.stderr
