"""The same with our own package and the backend of one's choice."""

import argparse
import logging

from torch import distributed
from training import STEPS, weights

import instep
from instep import core

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=instep.LOG_FORMAT)
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True)
    distributed.init_process_group(parser.parse_args().backend)
    ranks = core.DistributedContext.from_torch_distributed()
    with core.init(distributed=ranks) as context:
        for step, metrics in weights():
            if ranks.rank == 0:
                context.train.report_training_metrics(step, metrics)
        if ranks.rank == 0:
            context.train.report_validation_metrics(STEPS, metrics)
    distributed.destroy_process_group()
