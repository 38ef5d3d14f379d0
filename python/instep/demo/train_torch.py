"""The demo's training with torch: a small MLP under DistributedDataParallel on the instep backend, on CPUs.

With a session around its steps, a lost rank costs no more than the step it was in (`instep run --recover step`). Apart
from that it is an ordinary training script: it would run under torchrun, or with "gloo" in place of "instep", as it is.
`examples/ddp` has a longer one.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import instep.elastic
from instep.demo.events import Reporter

SNAPSHOT = Path("snapshot.pt")
SAMPLES = 2048
FEATURES = 20


def make_dataset() -> TensorDataset:
    """Random inputs, with a target the model can learn; the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(SAMPLES, FEATURES, generator=generator)
    direction = torch.randn(FEATURES, 1, generator=generator)
    return TensorDataset(features, torch.tanh(features @ direction / FEATURES**0.5))


def mean_loss(model: nn.Module, dataset: TensorDataset) -> float:
    """Mean squared error over the whole data set."""
    features, targets = dataset.tensors
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(features), targets))


def load_snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int] | None:
    """Take weights and optimizer state of the snapshot, if there is one; return how far the training was."""
    if not SNAPSHOT.exists():
        return None
    saved = torch.load(SNAPSHOT, weights_only=True)
    model.load_state_dict(saved["MODEL_STATE"])
    optimizer.load_state_dict(saved["OPTIMIZER_STATE"])
    return dict(saved["SESSION_STATE"])


def save_snapshot(model: nn.Module, optimizer: torch.optim.Optimizer, session: instep.elastic.Session) -> None:
    """Replace the snapshot in one step, after the bytes have reached the disk."""
    unfinished = SNAPSHOT.with_suffix(".tmp")
    state = {
        "MODEL_STATE": model.state_dict(),
        "OPTIMIZER_STATE": optimizer.state_dict(),
        "SESSION_STATE": session.state_dict(),
    }
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(SNAPSHOT)


def train(reporter: Reporter, *, total_epochs: int, save_every: int, pace_s: float) -> None:
    """What each rank does."""
    torch.set_num_threads(1)  # the ranks already use the cores
    dist.init_process_group("instep")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    snapshot = load_snapshot(model, optimizer)
    replica = DistributedDataParallel(model)
    session = instep.elastic.Session(replica, optimizer)
    if snapshot is not None:
        session.load_state_dict(snapshot)
        if reporter.incarnation == 0:  # one that takes a lost rank's place gets the newer state of its peers
            reporter.report("resumed", epoch=session.epoch)
    dataset = make_dataset()
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    first = True
    for epoch in session.epochs(total_epochs):
        next_epoch_at = time.monotonic() + pace_s
        reporter.begin(epoch)
        for features, targets in session.batches(loader):
            with session.step():
                torch.autograd.backward(nn.functional.mse_loss(replica(features), targets))
                optimizer.step()
                optimizer.zero_grad()
                if first:
                    reporter.report("step", epoch=epoch)
                    first = False
        if reporter.rank == 0:
            loss = mean_loss(model, dataset)
            reporter.report("loss", epoch=epoch + 1, loss=loss)
            sys.stdout.write(f"epoch {epoch:2} | loss {loss:.6f}\n")
            if epoch % save_every == 0 or epoch == total_epochs - 1:
                save_snapshot(model, optimizer, session)
                sys.stdout.write(f"epoch {epoch:2} | snapshot saved\n")
        time.sleep(max(0.0, next_epoch_at - time.monotonic()))
    reporter.report("finished", epoch=total_epochs, loss=mean_loss(model, dataset))
    dist.destroy_process_group()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-epochs", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--pace", type=float, default=0.0, help="minimum seconds per epoch, so that you can watch")
    args = parser.parse_args()
    reporter = Reporter.from_environment()
    try:
        train(reporter, total_epochs=args.total_epochs, save_every=args.save_every, pace_s=args.pace)
    except RuntimeError as error:
        # The neighbours of a killed rank end here: one line each instead of a stack of frames inside torch.
        sys.exit(f"rank {reporter.rank} gives up: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()
