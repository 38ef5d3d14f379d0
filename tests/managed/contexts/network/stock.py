"""DDP as Determined's users write it."""

import logging

import determined as det
from determined import core
from torch import distributed
from training import STEPS, weights

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    distributed.init_process_group("gloo")
    ranks = core.DistributedContext.from_torch_distributed()
    with core.init(distributed=ranks, tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        for step, metrics in weights():
            if ranks.rank == 0:
                context.train.report_training_metrics(step, metrics)
        if ranks.rank == 0:
            context.train.report_validation_metrics(STEPS, metrics)
    distributed.destroy_process_group()
