"""The tutorial's training on several nodes, the same for any number of ranks: they share the samples of a step.

    elastic_training.py EPOCHS FOLDER

An epoch begins when FOLDER/allowed says so: rank 0 looks, the others wait in a collective as they do for a slow rank.
Each finished epoch is a line in FOLDER/progress, and FOLDER/worker.RANK has the process that is RANK.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch.distributed as dist
from multinode import Trainer, join_process_group
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from toy import make_dataset, make_model, make_optimizer, mean_loss

# Both can be shared evenly by 1, 2 and 3 ranks.
SAMPLES, SAMPLES_A_STEP = 1920, 60


class GatedTrainer(Trainer):
    """Asks before every epoch, and tells of it afterwards."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        super().__init__(*arguments)
        self.folder = folder

    def _run_epoch(self, epoch: int) -> None:
        while self.global_rank == 0 and int((self.folder / "allowed").read_text() or "0") <= epoch:
            time.sleep(0.01)
        dist.barrier()
        super()._run_epoch(epoch)

    def _save(self, epoch: int) -> None:
        super()._save(epoch)
        line = {"epoch": epoch, "world": dist.get_world_size(), "pid": os.getpid(), "time": time.time()}
        with (self.folder / "progress").open("a") as file:
            file.write(json.dumps(line) + "\n")


def main() -> None:
    epochs, folder = int(sys.argv[1]), Path(sys.argv[2])
    device = join_process_group(None)
    (folder / f"worker.{dist.get_rank()}").write_text(str(os.getpid()))
    dataset = TensorDataset(*(column[:SAMPLES] for column in make_dataset().tensors))
    model = make_model()
    loader = DataLoader(dataset, SAMPLES_A_STEP // dist.get_world_size(), sampler=DistributedSampler(dataset))
    trainer = GatedTrainer(folder, model, loader, make_optimizer(model), device, 1, str(folder / "snapshot.pt"))
    trainer.train(epochs)
    if dist.get_rank() == 0:
        (folder / "loss").write_text(str(mean_loss(model, dataset, device)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
