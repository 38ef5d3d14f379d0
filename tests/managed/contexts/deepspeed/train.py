"""DeepSpeed's ZeRO 1 on a model so small that every number of its training is exact in binary."""

import logging
import os
import sys
import time

import deepspeed
import determined as det
import torch
from determined import core

STEPS = 4
ROWS = 8
CONFIG = {
    "train_micro_batch_size_per_gpu": ROWS // 2,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "gradient_clipping": 0.0,
}


def train(context: core.Context, rank: int, size: int) -> None:
    """Train on this rank's share of the rows; rank 0 reports the weights after every step."""
    mine = range(rank, ROWS, size)
    inputs = torch.tensor([[row % 3 - 1, row % 2] for row in mine], dtype=torch.float)
    wanted = torch.tensor([[row % 4] for row in mine], dtype=torch.float)
    layer = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.25)
    engine, *_ = deepspeed.initialize(model=layer, optimizer=optimizer, config=CONFIG)
    for step in range(1, STEPS + 1):
        engine.backward(((engine(inputs) - wanted) ** 2 / 2).mean())
        engine.step()
        first, second = layer.weight[0].tolist()
        if rank == 0:
            context.train.report_training_metrics(step, {"first": first, "second": second})


def main(what: str) -> None:
    deepspeed.init_distributed(dist_backend="gloo")
    ranks = core.DistributedContext.from_deepspeed()
    with core.init(distributed=ranks, tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        if what == "fail" and ranks.rank == 1:
            raise RuntimeError("rank 1 gives up")
        if what == "wait":
            logging.info("rank %s waits", ranks.rank)
            time.sleep(600)
        train(context, ranks.rank, ranks.size)
    logging.info(
        "rank %s of %s is done on %s as %s", ranks.rank, ranks.size, det.get_cluster_info().agent_id, os.getuid()
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    main(sys.argv[1])
