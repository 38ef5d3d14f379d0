"""Every script in examples/ddp, run the way the guides say, and what a user sees when a rank is killed."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import signal
import socket
from pathlib import Path

import psutil
import pytest

from conftest import ROOT, Result, Runner, Running, WaitUntil
from ports import free_port

RANK_LINE = re.compile(r"^\[GPU(\d+)\] Epoch (\d+) \| Batchsize: (\d+) \| Steps: (\d+)$", re.MULTILINE)
EPOCHS = 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the examples to run in, as a user would have it."""
    return shutil.copytree(
        ROOT / "examples" / "ddp", tmp_path / "ddp", ignore=shutil.ignore_patterns("__pycache__", "*.pt")
    )


@pytest.fixture
def venv(forked: Path) -> dict[str, str | None]:
    """The environment of a shell in which jobs find torch imported."""
    return {"PYTHON_EXEC": str(forked), "PYTHONPATH": None, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def undisturbed(instep: Path, forked: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """The tutorial's command, word for word, and the folder it ran in."""
    folder = shutil.copytree(ROOT / "examples" / "ddp", tmp_path_factory.mktemp("undisturbed") / "ddp")
    runner = Runner()
    try:
        words = shlex.split("run --standalone --nproc_per_node=2 multigpu_torchrun.py 50 10")
        environment = {"PYTHON_EXEC": str(forked), "PYTHONPATH": None, "OMP_NUM_THREADS": None}
        return runner(instep, *words, cwd=folder, env=environment).expect(0), folder
    finally:
        runner.kill_all()


def rank_lines(output: str) -> list[tuple[int, int, int, int]]:
    """Rank, epoch, batch size and steps of each `[GPU…]` line."""
    return [(int(a), int(b), int(c), int(d)) for a, b, c, d in RANK_LINE.findall(output)]


def final_loss(output: str) -> str:
    """The loss that rank 0 printed last, to its last digit."""
    [loss] = re.findall(r"^Final loss (\d+\.\d{8})$", output, re.MULTILINE)
    return str(loss)


def worker(running: Running, rank: int) -> psutil.Process:
    """The process that runs one rank."""
    for process in running.children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("RANK") == str(rank):
                return process
    raise AssertionError(f"rank {rank} does not run\n{running.stdout}\n{running.stderr}")


def test_single_gpu(folder: Path, forked: Path, run: Runner) -> None:
    flags = shlex.split("--total_epochs 3 --save_every 2 --batch_size 32")
    shown = run(forked, "singlegpu.py", *flags, cwd=folder).expect(0).stdout
    assert rank_lines(shown) == [(0, epoch, 32, 64) for epoch in range(3)]
    saved = re.findall(r"^Epoch (\d+) \| Training checkpoint saved at checkpoint\.pt$", shown, re.MULTILINE)
    assert saved == ["0", "2"]
    assert (folder / "checkpoint.pt").is_file()
    assert float(final_loss(shown)) < 0.1


@pytest.mark.parametrize("backend", [pytest.param("gloo", marks=pytest.mark.soak), "instep"])
def test_multi_gpu_spawns_its_own_ranks_even_when_its_port_is_taken(
    folder: Path, forked: Path, run: Runner, backend: str
) -> None:
    with socket.socket() as other_job:
        with contextlib.suppress(OSError):  # somebody else may have it already: just as well
            other_job.bind(("", 12355))
            other_job.listen()
        flags = shlex.split(f"--total_epochs 2 --save_every 1 --batch_size 32 --nproc 2 --backend {backend}")
        shown = run(forked, "multigpu.py", *flags, cwd=folder).expect(0).stdout
    assert sorted(rank_lines(shown)) == [(rank, epoch, 32, 32) for rank in range(2) for epoch in range(2)]
    assert "Epoch 1 | Training checkpoint saved at checkpoint.pt" in shown


def test_launcher_command_of_the_tutorial_word_for_word(undisturbed: tuple[Result, Path]) -> None:
    shown, folder = undisturbed
    assert sorted(rank_lines(shown.stdout)) == [(rank, epoch, 32, 32) for rank in range(2) for epoch in range(EPOCHS)]
    saved = re.findall(r"^Epoch (\d+) \| Training snapshot saved at snapshot\.pt$", shown.stdout, re.MULTILINE)
    assert saved == ["0", "10", "20", "30", "40", "49"]
    assert (folder / "snapshot.pt").is_file()
    assert not (folder / "snapshot.pt.tmp").exists()


def test_killed_rank_resumes_and_reaches_the_same_loss(
    undisturbed: tuple[Result, Path],
    folder: Path,
    instep: Path,
    venv: dict[str, str | None],
    run: Runner,
    wait_until: WaitUntil,
) -> None:
    words = shlex.split("run --standalone --nproc_per_node=2 --max_restarts=3 multigpu_torchrun.py 50 10")
    job = run.start(instep, *words, cwd=folder, env=venv)
    wait_until(lambda: "[GPU1] Epoch 13 " in job.stdout, 90, lambda: f"epoch 13 of\n{job.stdout}\n{job.stderr}")
    worker(job, rank=1).send_signal(signal.SIGKILL)
    shown = job.wait(150).expect(0)
    before, loading, after = shown.stdout.partition("Loading snapshot from snapshot.pt\n")
    assert loading, shown
    resumed = [
        int(epoch) for epoch in re.findall(r"^Resuming training from snapshot at Epoch (\d+)$", after, re.MULTILINE)
    ]
    # Snapshots come after epochs 0, 10, 20 …: the next epoch to run is one more. The kill may land a little late.
    assert len(resumed) == 1, shown
    assert resumed[0] in (11, 21, 31, 41), shown
    assert max(epoch for _, epoch, _, _ in rank_lines(before)) >= resumed[0] - 1
    assert sorted(rank_lines(after)) == [(r, epoch, 32, 32) for r in range(2) for epoch in range(resumed[0], EPOCHS)]
    assert final_loss(shown.stdout) == final_loss(undisturbed[0].stdout)


def test_launcher_script_goes_on_under_plain_python(
    undisturbed: tuple[Result, Path], folder: Path, forked: Path, run: Runner
) -> None:
    shutil.copy(undisturbed[1] / "snapshot.pt", folder / "kept.pt")
    alone: dict[str, str | None] = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    flags = shlex.split("--total_epochs 51 --save_every 10 --snapshot_path kept.pt")
    shown = run(forked, "multigpu_torchrun.py", *flags, cwd=folder, env=alone).expect(0).stdout
    assert "Loading snapshot from kept.pt\nResuming training from snapshot at Epoch 50\n" in shown
    assert rank_lines(shown) == [(0, 50, 32, 64)]
    assert "Epoch 50 | Training snapshot saved at kept.pt\n" in shown


def test_snapshot_of_a_finished_training_is_named_when_there_is_nothing_left_to_train(
    undisturbed: tuple[Result, Path], folder: Path, forked: Path, run: Runner
) -> None:
    shutil.copy(undisturbed[1] / "snapshot.pt", folder / "snapshot.pt")  # of step 3 of the guides
    alone: dict[str, str | None] = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    shown = run(forked, "multinode.py", "50", "10", cwd=folder, env=alone).expect(0).stdout
    assert rank_lines(shown) == []
    assert "Nothing to train: snapshot.pt is from a finished run of 50 epochs.\nRemove snapshot.pt to train" in shown


@pytest.mark.parametrize("backend", [pytest.param("gloo", marks=pytest.mark.soak), "instep"])
def test_two_nodes_number_their_ranks_through_and_save_once(
    folder: Path, instep: Path, venv: dict[str, str | None], run: Runner, backend: str
) -> None:
    endpoint = f"[::1]:{free_port()}"
    nodes = [
        run.start(
            instep,
            *shlex.split(f"run --nproc_per_node=1 --nnodes=2 --node-rank={node} --rdzv-id=456 --rdzv-backend=c10d"),
            f"--rdzv-endpoint={endpoint}",
            *shlex.split(f"multinode.py --total_epochs 2 --save_every 10 --batch_size 32 --backend {backend}"),
            cwd=folder,
            env=venv,
        )
        for node in range(2)
    ]
    shown = "".join(node.wait().expect(0).stdout for node in nodes)
    assert sorted(rank_lines(shown)) == [(rank, epoch, 32, 32) for rank in range(2) for epoch in range(2)]
    assert shown.count("Epoch 0 | Training snapshot saved at snapshot.pt\n") == 1


def test_truncated_snapshot_is_one_message_with_a_hint(
    undisturbed: tuple[Result, Path], folder: Path, instep: Path, venv: dict[str, str | None], run: Runner
) -> None:
    whole = (undisturbed[1] / "snapshot.pt").read_bytes()
    (folder / "snapshot.pt").write_bytes(whole[: len(whole) // 2])
    shown = run(instep, *shlex.split("run --standalone --nproc_per_node=2 multinode.py 50 10"), cwd=folder, env=venv)
    assert shown.status != 0
    # At the start of a line: the launcher's report may quote the rank's last lines.
    assert len(re.findall(r"^error: cannot resume from snapshot\.pt: ", shown.stderr, re.MULTILINE)) == 1, shown
    assert len(re.findall(r"^hint: remove the file to train from the start", shown.stderr, re.MULTILINE)) == 1, shown
    assert "torch.load" not in shown.stderr, shown
    report = shown.stderr.partition("Root cause")[2]
    assert "cannot resume from snapshot.pt: " in report, shown
    assert (folder / "snapshot.pt").read_bytes() == whole[: len(whole) // 2]


DAMAGED = """
import sys, pathlib, torch, snapshot
path = pathlib.Path("snapshot.pt")
snapshot.save({"MODEL_STATE": torch.arange(5000.0)}, str(path))
whole = path.read_bytes()
middle = len(whole) // 2
wrong = [b"junk\\n", b"", whole[:middle], whole[:middle] + b"\\xff" * 64 + whole[middle + 64 :], whole]
for content in wrong:
    path.write_bytes(content)
    print(snapshot._read(path, ("MODEL_STATE",))[1])
"""


def test_whatever_became_of_a_snapshot_is_said_in_a_sentence(folder: Path, python: Path, run: Runner) -> None:
    """Text, nothing, a half, other bytes in the middle, which torch.load takes for numbers; and what was saved."""
    shown = run(python, "-c", DAMAGED, cwd=folder, env={"PYTHONPATH": str(folder)}).expect(0).stdout
    said = [line for line in shown.splitlines() if not line.startswith("Loading")]
    incomplete = "it is incomplete or was not written by torch.save"
    assert [line.partition(" (")[0] for line in said[:3]] == [incomplete] * 3
    assert said[3].endswith("data/0 does not have the checksum that was saved with it")
    assert said[4:] == ["None"]


# Indices each rank takes; measured on torch 2.15 and derived independently from its MT19937 generator.
SAMPLER_CASES = {
    "DistributedSampler(range(10), num_replicas=3, rank=r)": [[4, 5, 0, 2], [1, 3, 8, 4], [7, 9, 6, 1]],
    "DistributedSampler(range(10), num_replicas=4, rank=r)": [[4, 3, 6], [1, 9, 2], [7, 0, 4], [5, 8, 1]],
    "DistributedSampler(range(10), num_replicas=4, rank=r, drop_last=True)": [[4, 3], [1, 9], [7, 0], [5, 8]],
    "DistributedSampler(range(10), num_replicas=3, rank=r, shuffle=False)": [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]],
    "DistributedSampler(range(2), num_replicas=5, rank=r, shuffle=False)": [[0], [1], [0], [1], [0]],
}


def test_every_rank_draws_the_samples_torch_documents(forked: Path, run: Runner) -> None:
    program = ["import torch", "from torch.utils.data import DistributedSampler"]
    for call, shares in SAMPLER_CASES.items():
        program.append(f"assert [list({call}) for r in range({len(shares)})] == {shares}, {call!r}")
    program += [
        "third = DistributedSampler(range(10), num_replicas=4, rank=1)",
        "third.set_epoch(3)",
        "assert list(third) == [0, 5, 4]",
        "first_of = lambda seed: torch.randperm(2048, generator=torch.Generator().manual_seed(seed))[:8].tolist()",
        "assert first_of(0) == [684, 1316, 1939, 2013, 327, 1649, 913, 1241]",
        "assert first_of(47) == [1159, 1160, 1745, 487, 52, 1278, 368, 1249]",
        "steps = lambda w: -(-len(DistributedSampler(range(2048), num_replicas=w, rank=0)) // 32)",
        "assert [steps(w) for w in (1, 2, 4, 8, 16)] == [64, 32, 16, 8, 4]",
    ]
    run(forked, "-c", "\n".join(program)).expect(0)
