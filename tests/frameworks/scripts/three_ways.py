"""torch alone, on 8 ranks: a pipeline of 2 stages, each sharded (FSDP2) over 2 and tensor-parallel over 2."""

import torch
import torch.distributed as dist
from report import report
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def block() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("stage", "shard", "tensor"))
    torch.manual_seed(7)
    stages = [block(), block()]
    number = mesh.get_local_rank("stage")
    net = stages[number]
    parallelize_module(net, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(net, mesh=mesh["shard"])
    pipeline = ScheduleGPipe(
        PipelineStage(net, number, 2, torch.device("cpu"), group=mesh.get_group("stage")),
        n_microbatches=2,
        loss_fn=torch.nn.functional.mse_loss,
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(mesh.get_local_rank("shard"))
    losses: list[torch.Tensor] = []
    for _ in range(6):
        optimizer.zero_grad()
        batch = torch.randn(8, 16, generator=data)
        losses.clear()
        if number == 0:
            pipeline.step(batch)
        else:
            pipeline.step(target=batch.flip(1), losses=losses)
        optimizer.step()
    loss = torch.stack(losses).mean() if losses else torch.zeros(())
    dist.all_reduce(loss)
    report(net, loss.item())
    dist.destroy_process_group()


main()
