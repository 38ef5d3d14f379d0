"""DeepSpeed's ZeRO on the CPU; the stage is its argument."""

import sys

import deepspeed
import torch
import torch.distributed as dist
from report import report


def main(stage: int) -> None:
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    deepspeed.init_distributed(dist_backend="gloo")
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": True},
    }
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(8):
        batch = torch.randn(16, 8, generator=data).bfloat16()
        loss = torch.nn.functional.mse_loss(engine(batch), batch.sum(1, keepdim=True))
        engine.backward(loss)
        engine.step()
    loss = loss.detach().float()
    dist.all_reduce(loss)
    report(engine.module, loss.item())


main(int(sys.argv[1]))
