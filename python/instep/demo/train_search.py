"""What the ranks of a trial run in the demo's search: the demo's MLP, with the hyperparameters that the master chose.

The demo sends this file to the master as `train.py`; it needs nothing else of the demo. It shows all that a search asks
of a script: hyperparameters from `get_cluster_info`, metrics by which trials are compared, checkpoints, and a look at
`should_preempt`, which is how a trial hears that others are better, or that it has to make room.
"""

import logging
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import instep
from instep import core

FEATURES = 20
SAMPLES = 1024
PACE_S = 0.2  # minimum seconds per epoch, so that you can watch


def make_dataset(seed: int) -> TensorDataset:
    """Random inputs, with a target the model can learn; the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(FEATURES, 1, generator=torch.Generator().manual_seed(0))
    features = torch.randn(SAMPLES, FEATURES, generator=generator)
    return TensorDataset(features, torch.tanh(features @ direction / FEATURES**0.5))


def mean_loss(model: nn.Module, dataset: TensorDataset) -> float:
    """Mean squared error over a whole data set."""
    features, targets = dataset.tensors
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(features), targets))


def train_epoch(
    replica: nn.Module, optimizer: torch.optim.Optimizer, loader: "DataLoader[tuple[torch.Tensor, ...]]"
) -> None:
    """Go through this rank's share of the data once; DDP averages the gradients of the ranks."""
    for features, targets in loader:
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.mse_loss(replica(features), targets))
        optimizer.step()


def save(context: core.Context, state: dict[str, object], epoch: int) -> None:
    """Keep a checkpoint; the chief's part alone, since all ranks have the same weights."""
    if context.distributed.rank == 0:
        with context.checkpoint.store_path({"steps_completed": epoch}) as (folder, _):
            torch.save(state, folder / "state.pt")


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Take up what an earlier run of this trial saved; give how many epochs are done."""
    saved = torch.load(path / "state.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["epoch"])


def train(context: core.Context, info: instep.ClusterInfo) -> None:
    """Train until the last epoch, or until the master asks to stop."""
    chosen = info.trial.hparams
    last = int(chosen["epochs"])
    torch.manual_seed(info.trial.trial_seed)
    model = nn.Sequential(nn.Linear(FEATURES, chosen["width"]), nn.ReLU(), nn.Linear(chosen["width"], 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=chosen["rate"], momentum=0.9)
    done = 0
    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as folder:
            done = load(folder, model, optimizer)
    replica = DistributedDataParallel(model)
    dataset, unseen = make_dataset(1), make_dataset(2)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(done + 1, last + 1):
        next_epoch_at = time.monotonic() + PACE_S
        sampler.set_epoch(epoch)
        train_epoch(replica, optimizer, loader)
        if context.distributed.rank == 0:
            loss = mean_loss(model, unseen)
            logging.info("epoch %2d | loss %.6f", epoch, loss)
            context.train.report_training_metrics(epoch, {"loss": mean_loss(model, dataset)})
            context.train.report_validation_metrics(epoch, {"loss": loss, "epochs": epoch})
        time.sleep(max(0.0, next_epoch_at - time.monotonic()))
        stop = context.preempt.should_preempt()  # the same answer on all ranks
        if stop or epoch == last:
            save(context, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, epoch)
        if stop:
            logging.info("asked to stop behind epoch %d", epoch)
            return


def main() -> None:
    """Join the ranks of the trial and train."""
    logging.basicConfig(level=logging.INFO, format=instep.LOG_FORMAT)
    info = instep.get_cluster_info()
    if info is None:
        raise SystemExit("error: this script runs on a cluster\nhint: instep experiment create search.yaml code")
    torch.set_num_threads(1)  # the ranks already use the cores
    dist.init_process_group("instep")
    with core.init(distributed=core.DistributedContext.from_torch_distributed()) as context:
        train(context, info)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
