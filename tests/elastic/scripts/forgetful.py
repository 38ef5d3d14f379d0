"""A training whose step may depend on more than it should: a line of its own stands in the place of WRONG."""

import random
import time

import torch
import torch.distributed as dist

import instep.elastic

calls = 0


def draws() -> None:
    """Draw a random number, but only the first time."""
    global calls
    calls += 1
    if calls == 1:
        random.random()


dist.init_process_group("instep")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
session = instep.elastic.Session(model, optimizer)
for (inputs,) in session.batches(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), 4)):
    with session.step():
        time.sleep(0)
        loss = model(inputs).mean()
        # WRONG
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
