"""What each rank runs in bench/step_recovery.py: the same model, samples and step length, however it is kept alive.

    step_recovery_worker.py (session|snapshots|torchft) LOG

Every step is tried, then committed: one line each in LOG, with the machine's clock. They are small writes to a file
that is only appended to, so that a SIGKILL loses none that was written.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

STEP_S = float(os.environ["STEP_MS"]) / 1000
WIDTH, LAYERS, BATCH = int(os.environ["WIDTH"]), 4, 8
SAMPLES = 1 << 20
SNAPSHOT_EVERY = 20


class Numbers(torch.utils.data.Dataset[tuple[int, torch.Tensor]]):
    """Samples that follow from their index."""

    def __len__(self) -> int:
        """Give the number of samples: one epoch is longer than any run."""
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        """Give one sample, with its index."""
        return index, torch.full((WIDTH,), index / SAMPLES)


class Log:
    """The lines of one rank."""

    def __init__(self, path: Path, rank: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._rank = rank

    def tried(self, step: int, indices: torch.Tensor) -> None:
        """Say which samples a step has."""
        self._write(f"try {step} {','.join(str(int(index)) for index in indices)}")

    def committed(self, step: int) -> None:
        """Say that a step has changed the weights."""
        self._write(f"commit {step} -")

    def _write(self, text: str) -> None:
        os.write(self._file, f"{time.monotonic():.6f} {self._rank} {os.getpid()} {text}\n".encode())


def network() -> nn.Module:
    """Build the model; AdamW's state is twice its size."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])


def compute(model: nn.Module, batch: torch.Tensor) -> None:
    """Do what a step computes, and wait until it has taken as long as a step takes."""
    begin = time.monotonic()
    model(batch).square().mean().backward()
    time.sleep(max(0.0, begin + STEP_S - time.monotonic()))


def with_session(log: Path) -> None:
    """Train with `instep.elastic`: the step that is interrupted is done again."""
    import instep.elastic

    dist.init_process_group("instep")
    lines = Log(log, dist.get_rank())
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters())
    sampler = torch.utils.data.DistributedSampler(Numbers())
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=BATCH, sampler=sampler)
    session = instep.elastic.Session(model, optimizer)
    end = log.with_suffix(".end")
    for indices, batch in session.batches(loader):
        if end.exists() and session.steps >= int(end.read_text()):
            break
        with session.step():
            step = session.steps
            lines.tried(step, indices)
            compute(model, batch)
            optimizer.step()
            lines.committed(step)
            optimizer.zero_grad()
    log.with_suffix(f".{dist.get_rank()}").write_text(digest(model, optimizer))
    dist.destroy_process_group()


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Give a digest of the weights and of what the optimizer has."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        for tensor in (parameter.detach(), *optimizer.state[parameter].values()):
            found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def with_snapshots(log: Path) -> None:
    """Train with a snapshot now and then: all ranks begin again there."""
    dist.init_process_group(os.environ["BACKEND"])
    rank = dist.get_rank()
    lines = Log(log, rank)
    net = network()
    optimizer = torch.optim.AdamW(net.parameters())
    path, step = log.with_suffix(".pt"), 0
    if path.exists():
        saved = torch.load(path)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    model = nn.parallel.DistributedDataParallel(net)
    for indices, batch in batches_from(step, rank):
        lines.tried(step, indices)
        compute(model, batch)
        optimizer.step()
        lines.committed(step)
        optimizer.zero_grad()
        step += 1
        if step % SNAPSHOT_EVERY == 0 and rank == 0:
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)


def batches_from(step: int, rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Give the batches of a rank, without loading those before `step`."""
    sampler = torch.utils.data.DistributedSampler(Numbers(), rank=rank)
    own = list(sampler)[step * BATCH :]
    yield from torch.utils.data.DataLoader(torch.utils.data.Subset(Numbers(), own), batch_size=BATCH)


def with_torchft(log: Path) -> None:
    """Train as torchft's own example does: a quorum for every step, one rank to a replica group."""
    import torchft

    replica, replicas = int(os.environ["REPLICA"]), int(os.environ["REPLICAS"])
    lines = Log(log, replica)
    net = network()
    optim = torch.optim.AdamW(net.parameters())

    def load(state: dict[str, dict[str, object]]) -> None:
        net.load_state_dict(state["model"])
        optim.load_state_dict(state["optimizer"])

    patience = timedelta(seconds=float(os.environ["PATIENCE"]))
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=patience),
        load_state_dict=load,
        state_dict=lambda: {"model": net.state_dict(), "optimizer": optim.state_dict()},
        min_replica_size=1,
        timeout=patience,
        quorum_timeout=patience if patience.total_seconds() >= 60 else timedelta(seconds=20),
        connect_timeout=patience if patience.total_seconds() >= 60 else timedelta(seconds=20),
        heartbeat_interval=timedelta(seconds=float(os.environ["HEARTBEAT"])),
        replica_id=f"replica_{replica}",
    )
    model = torchft.DistributedDataParallel(manager, net)
    optimizer = torchft.Optimizer(manager, optim)
    sampler = torchft.DistributedSampler(
        Numbers(), replica_rank=replica, num_replica_groups=replicas, group_rank=0, num_replicas=1
    )
    for indices, batch in torch.utils.data.DataLoader(Numbers(), batch_size=BATCH, sampler=sampler):
        optimizer.zero_grad()  # begins the quorum
        lines.tried(manager.current_step(), indices)
        compute(model, batch)
        step = (
            manager.current_step()
        )  # a replica that was behind has caught up meanwhile, and its gradients do not count
        optimizer.step()
        if manager.current_step() > step and manager.is_participating():
            lines.committed(step)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"session": with_session, "snapshots": with_snapshots, "torchft": with_torchft}[sys.argv[1]](Path(sys.argv[2]))
