"""The second stage: what it trains is reported."""

import logging

import determined as det
from determined import core


def main(context: core.Context, increment_by: int) -> None:
    x = 0
    for batch in range(100):
        x += increment_by
        steps = batch + 1
        if steps % 10 == 0:
            logging.info("x is now %s", x)
            context.train.report_training_metrics(steps_completed=steps, metrics={"x": x})
    context.train.report_validation_metrics(steps_completed=steps, metrics={"x": x})


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    with core.init() as core_context:
        main(core_context, increment_by=1)
