"""Scripts written for SageMaker's data-parallel library: the example, every documented function, who wins."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import ROOT, Result, Runner

EXAMPLE = ROOT / "examples" / "smddp" / "train.py"
MODULE = "smdistributed.dataparallel.torch.torch_smddp"
EPOCH_LINE = re.compile(
    r"^epoch (\d+): batch size (\d+) on each of (\d+) ranks, loss (\d+\.\d{4}), (\d+\.\d)% right$", re.MULTILINE
)


@pytest.fixture
def venv(forked: Path) -> dict[str, str | None]:
    """The environment of a shell in which jobs find torch imported."""
    return {"PYTHON_EXEC": str(forked), "PYTHONPATH": None, "OMP_NUM_THREADS": "1"}


Ranks = Callable[..., Result]


@pytest.fixture
def ranks(instep: Path, venv: dict[str, str | None], tmp_path: Path, run: Runner) -> Ranks:
    """Run a program's text on some ranks: `ranks(text)`, `ranks(text, 4)`."""

    def start(text: str, count: int = 2) -> Result:
        script = tmp_path / "script.py"
        script.write_text(text)
        return run(instep, "run", "--standalone", f"--nproc-per-node={count}", script, env=venv, cwd=tmp_path)

    return start


def epochs(result: Result) -> list[tuple[int, int, int]]:
    """Epoch, batch size and ranks of each line that rank 0 prints."""
    return [(int(epoch), int(batch), int(ranks)) for epoch, batch, ranks, _, _ in EPOCH_LINE.findall(result.stdout)]


def test_the_example_trains_alike_under_instep_and_under_torchrun(
    instep: Path, forked: Path, venv: dict[str, str | None], tmp_path: Path, run: Runner
) -> None:
    words = shlex.split("--standalone --nproc-per-node 2")
    arguments = shlex.split("--epochs 2 --samples 256 --save-model")
    ours = run(instep, "run", *words, EXAMPLE, *arguments, "ours.pt", env=venv, cwd=tmp_path).expect(0)
    torchrun = [forked, "-m", "torch.distributed.run"]
    theirs = run(*torchrun, *words, EXAMPLE, *arguments, "theirs.pt", env=venv, cwd=tmp_path).expect(0)
    assert epochs(ours) == epochs(theirs) == [(1, 32, 2), (2, 32, 2)]
    assert "saved ours.pt" in ours.stdout
    # Rank 0 alone tests and saves; the sums are the same, bit for bit, whoever starts the ranks.
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["ours.pt", "theirs.pt"]
    code = (
        "import sys, torch; a, b = (torch.load(name) for name in sys.argv[1:])\n"
        "assert a and a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)"
    )
    run(forked, "-c", code, "ours.pt", "theirs.pt", cwd=tmp_path).expect(0)


def test_the_example_learns_and_never_has_an_empty_batch(
    instep: Path, venv: dict[str, str | None], tmp_path: Path, run: Runner
) -> None:
    words = ["run", "--standalone", "--nproc-per-node", "3", EXAMPLE]
    shown = run(instep, *words, *shlex.split("--epochs 1 --samples 96 --batch-size 2"), env=venv, cwd=tmp_path).expect(
        0
    )
    assert epochs(shown) == [(1, 1, 3)]
    [(_, _, _, _, right)] = EPOCH_LINE.findall(shown.stdout)
    assert float(right) > 40, "of nine classes, guessing finds 11%"


# Every name of the seed library's last documentation, called as documented, each with its warning.
DEPRECATED = """
import warnings

import torch
import torch.distributed as dist

import smdistributed.dataparallel.torch.distributed as smdist
from smdistributed.dataparallel.torch.parallel import DistributedDataParallel
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as SameClass


def warned(name, call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    ours = [str(warning.message) for warning in caught if warning.category is DeprecationWarning]
    assert any(f".{name} is deprecated; use " in text for text in ours), (name, ours)
    assert all(warning.filename == __file__ for warning in caught if name in str(warning.message)), caught
    return result


def after(work):
    assert work is not None
    work.wait()


assert warned("is_available", lambda: smdist.is_available()) is True
assert warned("is_initialized", lambda: smdist.is_initialized()) is False
warned("init_process_group", lambda: smdist.init_process_group())
assert warned("is_initialized", lambda: smdist.is_initialized()) is True
assert dist.get_backend() == "smddp"
world = warned("group", lambda: smdist.group).WORLD
rank = warned("get_rank", lambda: smdist.get_rank())
assert rank == smdist.get_rank(world) == smdist.get_rank(group=world) == dist.get_rank()
assert warned("get_world_size", lambda: smdist.get_world_size()) == smdist.get_world_size(group=world) == 2
assert warned("get_local_rank", lambda: smdist.get_local_rank()) == rank
assert warned("ReduceOp", lambda: smdist.ReduceOp) is dist.ReduceOp

for group in (None, world):
    tensor = torch.tensor([rank + 1.0])
    assert warned("all_reduce", lambda: smdist.all_reduce(tensor)) is None and tensor.item() == 3
    after(smdist.all_reduce(tensor, op=smdist.ReduceOp.MAX, group=group, async_op=True))
    assert tensor.item() == 3

    tensor = torch.tensor([rank + 1.0])
    assert warned("broadcast", lambda: smdist.broadcast(tensor)) is None and tensor.item() == 1
    tensor = torch.tensor([rank + 1.0])
    after(smdist.broadcast(tensor, src=1, group=group, async_op=True))
    assert tensor.item() == 2

    gathered = [torch.zeros(1), torch.zeros(1)]
    assert warned("all_gather", lambda: smdist.all_gather(gathered, torch.tensor([float(rank)]))) is None
    assert torch.cat(gathered).tolist() == [0, 1]
    after(smdist.all_gather(tensor_list=gathered, tensor=torch.tensor([rank + 5.0]), group=group, async_op=True))
    assert torch.cat(gathered).tolist() == [5, 6]

    mine = torch.arange(4.0) + 10 * rank
    out = torch.zeros(4)
    assert warned("all_to_all_single", lambda: smdist.all_to_all_single(out, mine)) is None
    assert out.tolist() == [2 * rank, 2 * rank + 1, 2 * rank + 10, 2 * rank + 11]
    # Rank 0 keeps one element and sends three, rank 1 likewise.
    here, there = (1, 3) if rank == 0 else (3, 1)
    uneven = torch.zeros(2 * here)
    after(
        smdist.all_to_all_single(
            output_t=uneven, input_t=mine, output_split_sizes=[here, here], input_split_sizes=[1, 3], group=group,
            async_op=True,
        )
    )
    assert uneven.tolist() == ([0, 10] if rank == 0 else [1, 2, 3, 11, 12, 13])

    assert warned("barrier", lambda: smdist.barrier()) is None
    after(smdist.barrier(group=group, async_op=True))

assert SameClass is DistributedDataParallel
assert issubclass(DistributedDataParallel, torch.nn.parallel.DistributedDataParallel)
torch.manual_seed(rank)
net = torch.nn.Linear(2, 1)
model = warned("DistributedDataParallel", lambda: DistributedDataParallel(net, None, None, False, None, 5))
assert model.broadcast_buffers is False and model.bucket_bytes_cap == 5 << 20
model(torch.full((1, 2), rank + 1.0)).backward()
assert net.weight.grad.tolist() == [[1.5, 1.5]]
other = DistributedDataParallel(module=torch.nn.Linear(2, 1), broadcast_buffers=True, process_group=world)
assert other.broadcast_buffers is True and other.process_group is world
dist.destroy_process_group()
print("all right")
"""


def test_every_deprecated_function_works_and_says_what_replaces_it(ranks: Ranks) -> None:
    shown = ranks(DEPRECATED).expect(0)
    assert shown.stdout.count("all right") == 2


def test_local_rank_without_a_launcher_is_explained(forked: Path, run: Runner) -> None:
    code = "import smdistributed.dataparallel.torch.distributed as smdist; smdist.get_local_rank()"
    shown = run(forked, "-c", code, env={"LOCAL_RANK": None}).expect(1)
    assert "the environment variable LOCAL_RANK is not set\nhint: start the script with `instep run`" in shown.stderr


def test_backend_is_ours_under_their_name_with_and_without_the_import(ranks: Ranks) -> None:
    program = """
import os
if os.environ["LOCAL_RANK"] == "0":  # the other rank does without: torch finds the entry point
    import smdistributed.dataparallel.torch.torch_smddp
import torch
import torch.distributed as dist
dist.init_process_group(backend="smddp")
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor.tolist() == [2, 2, 2]
ours = dist.new_group(backend="instep")
dist.all_reduce(tensor, group=ours)
assert tensor.tolist() == [4, 4, 4]
print(dist.get_backend(), dist.get_backend(ours), dist.group.WORLD.name())
dist.destroy_process_group()
"""
    assert ranks(program).expect(0).stdout.splitlines() == ["smddp instep smddp"] * 2


# A real installation, in every way it may be packaged: the folders that have an `__init__.py`, and its module.
PACKAGES = ["smdistributed", "smdistributed/dataparallel", "smdistributed/dataparallel/torch"]
REGULAR = {
    "regular": PACKAGES,
    "namespace on top": PACKAGES[1:],
    "two namespaces": PACKAGES[2:],
    "namespaces": [],
}
SAYS_AMAZON = "print('amazon')\n"


@pytest.fixture(scope="module")
def installed(uv: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment that holds nothing but the wheel."""
    folder = tmp_path_factory.mktemp("smddp") / "venv"
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, folder],
        [uv, "pip", "install", "--quiet", "--offline", "--python", folder / "bin" / "python", wheel],
    ):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    return folder / "bin" / "python"


@pytest.fixture
def site_packages(installed: Path) -> Path:
    [folder] = installed.parent.parent.glob("lib/python*/site-packages")
    return folder


def origin(run: Runner, python: Path, module: str = MODULE) -> str:
    """Where a module would be imported from; empty when it would not. Nothing of torch is needed to ask."""
    code = f"""
import importlib.util
try:
    found = importlib.util.find_spec({module!r})
except ModuleNotFoundError:
    found = None
print(found.origin if found else "")
"""
    return run(python, "-c", code, env={"PYTHONPATH": None}).expect(0).stdout.strip()


@pytest.fixture
def amazon(site_packages: Path, request: pytest.FixtureRequest) -> Callable[[dict[str, str]], None]:
    """Install files into site-packages, as `{path: text}`, and take them away after the test."""

    def install(files: dict[str, str]) -> None:
        for name, text in files.items():
            path = site_packages / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        top = site_packages / "smdistributed"
        request.addfinalizer(lambda: subprocess.run(["rm", "-r", str(top)], check=True))

    return install


def test_only_a_path_is_added_behind_site_packages(
    wheel: Path, installed: Path, site_packages: Path, run: Runner
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".pth")]
        assert archive.read(name) == b"instep/_smddp\n"
    shown = run(installed, "-c", "import sys; print(*sys.path, sep='\\n')", env={"PYTHONPATH": None}).expect(0)
    path = shown.stdout.splitlines()
    assert path.index(str(site_packages)) < path.index(str(site_packages / "instep" / "_smddp"))
    assert [entry.name for entry in (site_packages / "instep" / "_smddp").iterdir()] == ["smdistributed"]
    assert origin(run, installed).startswith(str(site_packages / "instep"))


@pytest.mark.parametrize("packaging", REGULAR)
@pytest.mark.parametrize("module", ["torch_smddp.py", "torch_smddp/__init__.py"])
def test_a_real_installation_wins(
    packaging: str,
    module: str,
    installed: Path,
    site_packages: Path,
    amazon: Callable[[dict[str, str]], None],
    run: Runner,
) -> None:
    theirs = f"smdistributed/dataparallel/torch/{module}"
    amazon({theirs: SAYS_AMAZON, **{f"{folder}/__init__.py": "" for folder in REGULAR[packaging]}})
    assert origin(run, installed) == str(site_packages / theirs)
    # Also for a script that imports nothing: our entry point hands over to it.
    code = "import instep.smddp; instep.smddp.register()"
    assert run(installed, "-c", code, env={"PYTHONPATH": None}).expect(0).stdout == "amazon\n"


def test_other_libraries_of_theirs_live_beside_ours(
    installed: Path, site_packages: Path, amazon: Callable[[dict[str, str]], None], run: Runner
) -> None:
    amazon({"smdistributed/modelparallel/__init__.py": SAYS_AMAZON})
    assert origin(run, installed, "smdistributed.modelparallel").startswith(str(site_packages / "smdistributed"))
    assert origin(run, installed).startswith(str(site_packages / "instep"))


def test_a_real_installation_that_cannot_be_imported_is_not_replaced(
    installed: Path, amazon: Callable[[dict[str, str]], None], run: Runner
) -> None:
    amazon({"smdistributed/dataparallel/torch/torch_smddp.py": "import not_there_at_all\n"})
    code = "import instep.smddp; instep.smddp.register()"
    shown = run(installed, "-c", code, env={"PYTHONPATH": None}).expect(1)
    assert "No module named 'not_there_at_all'" in shown.stderr
