"""Step 2: one process per GPU of this machine, started by the script itself with mp.spawn.

    python multigpu.py --total_epochs 50 --save_every 10 --batch_size 32

Without a GPU the processes compute on the CPU and talk through gloo; `--nproc` says how many there are.
"""

import argparse
import os
import socket

import snapshot
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from toy import (
    argument_parser,
    choose_backend,
    default_process_count,
    make_dataset,
    make_model,
    make_optimizer,
    mean_loss,
    positive,
    say,
)

CHECKPOINT = "checkpoint.pt"
PREFERRED_PORT = 12355


def join_process_group(rank: int, world_size: int, master_port: int, backend: str | None) -> torch.device:
    """Connect this process with the others and say which device is its own."""
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(master_port)
    on_gpu = torch.cuda.device_count() >= world_size
    if on_gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group(choose_backend(backend, on_gpu), rank=rank, world_size=world_size)
    return torch.device("cuda", rank) if on_gpu else torch.device("cpu")


class Trainer:
    """Runs epochs over this rank's share of the data; rank 0 saves the weights."""

    def __init__(
        self,
        model: nn.Module,
        loader: DataLoader,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        rank: int,
        save_every: int,
    ) -> None:
        self.model = DistributedDataParallel(model, device_ids=[rank] if device.type == "cuda" else None)
        self.loader = loader
        self.optimizer = optimizer
        self.device = device
        self.rank = rank
        self.save_every = save_every

    def train(self, total_epochs: int) -> None:
        for epoch in range(total_epochs):
            self._run_epoch(epoch)
            # The weights are the same on every rank, so one copy is enough.
            if self.rank == 0 and (epoch % self.save_every == 0 or epoch == total_epochs - 1):
                snapshot.save(self.model.module.state_dict(), CHECKPOINT)
                say(f"Epoch {epoch} | Training checkpoint saved at {CHECKPOINT}")

    def _run_epoch(self, epoch: int) -> None:
        self.loader.sampler.set_epoch(epoch)  # another order every epoch, the same one on all ranks
        batch_size = min(self.loader.batch_size, len(self.loader.sampler))
        say(f"[GPU{self.rank}] Epoch {epoch} | Batchsize: {batch_size} | Steps: {len(self.loader)}")
        for features, targets in self.loader:
            self.optimizer.zero_grad()
            prediction = self.model(features.to(self.device))
            nn.functional.mse_loss(prediction, targets.to(self.device)).backward()
            self.optimizer.step()


def train_on_rank(rank: int, world_size: int, master_port: int, args: argparse.Namespace) -> None:
    """What each spawned process does."""
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # the ranks already use the cores
    device = join_process_group(rank, world_size, master_port, args.backend)
    dataset = make_dataset()
    model = make_model().to(device)
    loader = DataLoader(
        dataset, batch_size=args.batch_size, sampler=DistributedSampler(dataset), pin_memory=device.type == "cuda"
    )
    Trainer(model, loader, make_optimizer(model), device, rank, args.save_every).train(args.total_epochs)
    if rank == 0:
        say(f"Final loss {mean_loss(model, dataset, device):.8f}")
    dist.destroy_process_group()


def choose_port() -> int:
    """The usual port, or any free one when another job on this machine has it."""
    for port in (PREFERRED_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free TCP port on this machine")


def main() -> None:
    parser = argument_parser("train on every GPU of this machine")
    parser.add_argument("--nproc", type=positive, default=default_process_count(), help="number of processes")
    args = parser.parse_args()
    mp.spawn(train_on_rank, args=(args.nproc, choose_port(), args), nprocs=args.nproc)


if __name__ == "__main__":
    main()
