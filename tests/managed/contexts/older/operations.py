"""The form of earlier versions: the searcher says how far to train, and is told when it is done."""

import logging
import sys

import determined as det
from determined import core


def main(context: core.Context, increment_by: int) -> None:
    x, batch = 0, 0
    for operation in context.searcher.operations():
        while batch < operation.length:
            x += increment_by
            batch += 1
            if batch % 10 == 0:
                context.train.report_training_metrics(steps_completed=batch, metrics={"x": x})
                operation.report_progress(batch)
        context.train.report_validation_metrics(steps_completed=batch, metrics={"x": x})
        if context.distributed.rank == 0:
            operation.report_completed(x)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    cluster = det.get_cluster_info()
    assert cluster is not None, "it runs on a cluster only"
    with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as core_context:
        main(core_context, int(sys.argv[1]))
