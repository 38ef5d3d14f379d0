"""A SageMaker training script as it is: `smddp` as the backend of torch.distributed, one process per GPU or core.

    instep run --standalone --nproc-per-node 2 train.py --epochs 3
    torchrun --standalone --nproc-per-node 2 train.py --epochs 3

The numbers in the comments are the steps of the guide "From SageMaker to anywhere". The images are generated, so that
nothing is downloaded: noise with a bright square whose place in a 3 x 3 grid is the class.
"""

import argparse
import os

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (1. makes the backend "smddp" known)
import torch
import torch.distributed as dist  # 2.
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

CLASSES = 9
SIDE = 24
SQUARE = SIDE // 3


class Net(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.second = nn.Conv2d(8, 16, kernel_size=3, padding=1)
        self.head = nn.Linear(16 * (SIDE // 4) ** 2, CLASSES)

    def forward(self, images):
        features = functional.max_pool2d(functional.relu(self.first(images)), 2)
        features = functional.max_pool2d(functional.relu(self.second(features)), 2)
        return functional.log_softmax(self.head(features.flatten(1)), dim=1)


def make_dataset(samples, seed):
    """Generate images and their classes; the same seed gives the same ones on every rank."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(CLASSES, (samples,), generator=generator)
    images = torch.randn(samples, 1, SIDE, SIDE, generator=generator)
    for image, place in zip(images, classes.tolist(), strict=True):
        row, column = divmod(place, 3)
        image[0, row * SQUARE : (row + 1) * SQUARE, column * SQUARE : (column + 1) * SQUARE] += 1.0
    return TensorDataset(images, classes)


def train(model, loader, optimizer, device):
    """One pass over this rank's share; give the mean loss of its batches."""
    model.train()
    total = 0.0
    for images, classes in loader:
        optimizer.zero_grad()
        loss = functional.nll_loss(model(images.to(device)), classes.to(device))
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def test(model, loader, device):
    """Give the share of images that are recognised."""
    model.eval()
    right = 0
    with torch.no_grad():
        for images, classes in loader:
            right += int((model(images.to(device)).argmax(dim=1).cpu() == classes).sum())
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description="train a small CNN with backend='smddp'")
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together (default 64)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7, help="what the learning rate is multiplied by each epoch")
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-model", default="model.pt", metavar="FILE", help="default model.pt")
    args = parser.parse_args()

    dist.init_process_group(backend="smddp")  # 3.
    rank, world_size = dist.get_rank(), dist.get_world_size()

    # 4. The batch is shared out; a rank has at least one image.
    batch_size = args.batch_size
    batch_size //= world_size
    batch_size = max(batch_size, 1)

    # 5. Each rank has its own GPU, where there are any.
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.device_count() > local_rank
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(local_rank)

    torch.manual_seed(args.seed)
    model = DDP(Net().to(device))  # 6.

    train_dataset = make_dataset(args.samples, args.seed)
    train_sampler = DistributedSampler(train_dataset, num_replicas=world_size, rank=rank)  # 7.
    train_loader = DataLoader(train_dataset, batch_size=batch_size, sampler=train_sampler)
    test_loader = DataLoader(make_dataset(args.samples // 4, args.seed + 1), batch_size=256)

    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        train_sampler.set_epoch(epoch)
        loss = train(model, train_loader, optimizer, device)
        if rank == 0:
            # The bare model: testing is this rank's affair alone, DDP would wait for the others.
            accuracy = test(model.module, test_loader, device)
            print(
                f"epoch {epoch}: batch size {batch_size} on each of {world_size} ranks, loss {loss:.4f}, "
                f"{accuracy:.1%} right",
                flush=True,
            )
        scheduler.step()

    # 8. All ranks hold the same weights; one writes them.
    if rank == 0:
        torch.save(model.module.state_dict(), args.save_model)
        print(f"saved {args.save_model}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
