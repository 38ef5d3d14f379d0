"""Step 3: let a launcher start the ranks, and resume after a failure.

    instep run --standalone --nproc_per_node=gpu multigpu_torchrun.py --total_epochs 50 --save_every 10
    instep run --standalone --nproc_per_node=4 --max_restarts=3 multigpu_torchrun.py 50 10

The launcher tells each process who it is through environment variables. When a rank dies, all ranks are started again
and go on from the last snapshot. `python multigpu_torchrun.py` trains alone, with no launcher.
"""

import os

import snapshot
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from toy import argument_parser, choose_backend, make_dataset, make_model, make_optimizer, mean_loss, say


def join_process_group(backend: str | None) -> torch.device:
    """Connect this process with the others and say which device is its own."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    backend = choose_backend(backend, on_gpu)
    if on_gpu:
        torch.cuda.set_device(local_rank)
    if "RANK" in os.environ:
        dist.init_process_group(backend)  # address, rank and world size come from the launcher
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")


class Trainer:
    """Trains from where the snapshot ends; rank 0 writes the next snapshots."""

    def __init__(
        self,
        model: nn.Module,
        loader: DataLoader,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        save_every: int,
        snapshot_path: str,
    ) -> None:
        self.rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.loader = loader
        self.optimizer = optimizer
        self.device = device
        self.save_every = save_every
        self.snapshot_path = snapshot_path
        self.epochs_run = self._resume(model)
        self.model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)

    def train(self, total_epochs: int) -> None:
        if self.rank == 0 and self.epochs_run >= total_epochs:
            say(f"Nothing to train: {self.snapshot_path} is from a finished run of {self.epochs_run} epochs.")
            say(f"Remove {self.snapshot_path} to train again, or ask for more than {total_epochs} epochs to go on.")
        for epoch in range(self.epochs_run, total_epochs):
            self._run_epoch(epoch)
            if self.rank == 0 and (epoch % self.save_every == 0 or epoch == total_epochs - 1):
                self._save(epoch)

    def _run_epoch(self, epoch: int) -> None:
        self.loader.sampler.set_epoch(epoch)  # another order every epoch, the same one on all ranks
        batch_size = min(self.loader.batch_size, len(self.loader.sampler))
        say(f"[GPU{self.rank}] Epoch {epoch} | Batchsize: {batch_size} | Steps: {len(self.loader)}")
        for features, targets in self.loader:
            self.optimizer.zero_grad()
            prediction = self.model(features.to(self.device))
            nn.functional.mse_loss(prediction, targets.to(self.device)).backward()
            self.optimizer.step()

    def _resume(self, model: nn.Module) -> int:
        """Take weights and optimizer state from the snapshot, if there is one; return how many epochs are done."""
        saved = snapshot.load(self.snapshot_path, keys=("MODEL_STATE", "OPTIMIZER_STATE", "EPOCHS_RUN"))
        if saved is None:
            return 0
        model.load_state_dict(saved["MODEL_STATE"])
        self.optimizer.load_state_dict(saved["OPTIMIZER_STATE"])
        if self.rank == 0:
            say(f"Resuming training from snapshot at Epoch {saved['EPOCHS_RUN']}")
        return int(saved["EPOCHS_RUN"])

    def _save(self, epoch: int) -> None:
        state = {
            "MODEL_STATE": self.model.module.state_dict(),
            "OPTIMIZER_STATE": self.optimizer.state_dict(),
            "EPOCHS_RUN": epoch + 1,  # epochs done, which is also the number of the next one
        }
        snapshot.save(state, self.snapshot_path)
        say(f"Epoch {epoch} | Training snapshot saved at {self.snapshot_path}")


@record  # lets the launcher show the traceback of the rank that failed
def main() -> None:
    parser = argument_parser("train under a launcher, resuming from a snapshot")
    parser.add_argument("--snapshot_path", "--snapshot-path", default="snapshot.pt", help="default snapshot.pt")
    args = parser.parse_args()
    device = join_process_group(args.backend)
    dataset = make_dataset()
    model = make_model().to(device)
    loader = DataLoader(
        dataset, batch_size=args.batch_size, sampler=DistributedSampler(dataset), pin_memory=device.type == "cuda"
    )
    trainer = Trainer(model, loader, make_optimizer(model), device, args.save_every, args.snapshot_path)
    trainer.train(args.total_epochs)
    if dist.get_rank() == 0:
        say(f"Final loss {mean_loss(model, dataset, device):.8f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
