"""What the four scripts share: a toy data set, a small model and the command line.

The data are 2048 samples of 20 features, the same on every rank and in every run.
"""

import argparse
import os
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

SAMPLES = 2048
FEATURES = 20


def make_dataset() -> TensorDataset:
    """Random inputs, with a target the model can learn."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(SAMPLES, FEATURES, generator=generator)
    direction = torch.randn(FEATURES, 1, generator=generator)
    return TensorDataset(features, torch.tanh(features @ direction / FEATURES**0.5))


def make_model() -> nn.Module:
    """A small MLP with the same initial weights everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum: an optimizer that has a state worth saving."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


@torch.no_grad()
def mean_loss(model: nn.Module, dataset: TensorDataset, device: torch.device) -> float:
    """Mean squared error over the whole data set."""
    features, targets = (column.to(device) for column in dataset.tensors)
    return float(nn.functional.mse_loss(model(features), targets))


def argument_parser(description: str) -> argparse.ArgumentParser:
    """Accept both `50 10` and `--total_epochs 50 --save_every 10`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--total_epochs", "--total-epochs", type=positive, default=50, metavar="N", help="default 50")
    parser.add_argument("--save_every", "--save-every", type=positive, default=10, metavar="N", help="default 10")
    parser.add_argument(
        "--batch_size", "--batch-size", type=positive, default=32, metavar="N", help="per rank, default 32"
    )
    parser.add_argument("--backend", help="how ranks talk: nccl on GPUs, else gloo; or instep, faster on CPUs")
    parser.add_argument("total_epochs", nargs="?", type=positive, action=StoreIfGiven, help="epochs to train in all")
    parser.add_argument("save_every", nargs="?", type=positive, action=StoreIfGiven, help="epochs between two saves")
    return parser


def choose_backend(asked: str | None, on_gpu: bool) -> str:
    """The backend that was asked for; else NCCL between GPUs and gloo between CPUs."""
    if asked == "instep":
        import instep  # noqa: F401  # torch before 2.14 does not find it by itself
    return asked or ("nccl" if on_gpu else "gloo")


class StoreIfGiven(argparse.Action):
    """Keeps an absent positional from overwriting the flag of the same name."""

    def __call__(self, _parser, namespace, value, _option=None) -> None:
        if value is not None:
            setattr(namespace, self.dest, value)


def positive(text: str) -> int:
    """An integer above zero, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above zero")
    return number


def say(line: str) -> None:
    """Print a line in one write: `print` uses two on an unbuffered stream, and lines of several ranks would mix."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def default_process_count() -> int:
    """One process per GPU; without a GPU a few, so that there is something to see."""
    return torch.cuda.device_count() or min(4, max(2, os.cpu_count() or 1))
