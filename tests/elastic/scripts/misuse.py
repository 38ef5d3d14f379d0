"""A training that uses its session wrongly: misuse.py HOW."""

import sys

import torch
import torch.distributed as dist

import instep.elastic

dist.init_process_group("instep")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = instep.elastic.Session(model, optimizer)
loader = [torch.ones(1, 2)] * 3


def train(batches: object, steps: int = 1) -> None:
    """Do the steps of an epoch."""
    for batch in batches:  # type: ignore[attr-defined]
        for _ in range(steps):
            with session.step():
                model(batch).sum().backward()
                optimizer.step()


def plain() -> None:
    """Leave session.batches() out."""
    for _ in session.epochs(2):
        train(loader)


def once() -> None:
    """Call it once for all epochs."""
    batches = session.batches(loader)
    for _ in session.epochs(2):
        train(batches)


def lengths() -> None:
    """Have more batches on rank 0 than on rank 1."""
    for _ in session.epochs(2):
        train(session.batches(loader[: 3 - 3 * rank]))


{"plain": plain, "once": once, "lengths": lengths}[sys.argv[1]]()
