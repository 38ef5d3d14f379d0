"""torch alone: DDP under torch.compile."""

import torch
import torch.distributed as dist
from report import report


def main() -> None:
    dist.init_process_group()
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    wrapped = torch.nn.parallel.DistributedDataParallel(net)
    step = torch.compile(wrapped)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(6):
        optimizer.zero_grad()
        batch = torch.randn(16, 8, generator=data)
        loss = torch.nn.functional.mse_loss(step(batch), batch.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
    loss = loss.detach()
    dist.all_reduce(loss)
    report(net, loss.item())
    dist.destroy_process_group()


main()
