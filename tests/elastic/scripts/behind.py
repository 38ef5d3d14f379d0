"""A training with code behind its step, which a session that recovers must not allow."""

import torch
import torch.distributed as dist

import instep.elastic

dist.init_process_group("instep")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = instep.elastic.Session(model, optimizer)
for batch in session.batches([torch.ones(1, 2)] * 3):
    with session.step():
        model(batch).sum().backward()
        optimizer.step()
    print("behind the step", flush=True)
dist.destroy_process_group()
