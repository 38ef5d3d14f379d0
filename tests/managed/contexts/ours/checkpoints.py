"""The third and fourth stage with our own client: it can be interrupted, and its step is a hyperparameter."""

import logging
import pathlib
import sys
import time

import instep
from instep import core


def save(x: int, steps: int, trial: int, folder: pathlib.Path) -> None:
    (folder / "state").write_text(f"{x},{steps},{trial}")


def load(trial: int, folder: pathlib.Path) -> tuple[int, int]:
    x, steps, owner = (int(word) for word in (folder / "state").read_text().split(","))
    # The checkpoint of another trial gives the number, not the place in the loop.
    return x, steps if owner == trial else 0


def main(context: core.Context, info: instep.ClusterInfo, increment_by: int, pause: float) -> None:
    trial = info.trial.trial_id
    x, begin = 0, 0
    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as folder:
            x, begin = load(trial, folder)
        logging.info("resumed behind step %s", begin)
    for batch in range(begin, 100):
        x += increment_by
        steps = batch + 1
        time.sleep(pause)
        if steps % 10 == 0:
            context.train.report_training_metrics(steps_completed=steps, metrics={"x": x})
            context.train.report_validation_metrics(steps_completed=steps, metrics={"x": x, "batches": steps})
            context.train.report_progress(steps / 100)
            with context.checkpoint.store_path({"steps_completed": steps}) as (folder, _):
                save(x, steps, trial, folder)
            if context.preempt.should_preempt():
                logging.info("asked to stop behind step %s", steps)
                return


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=instep.LOG_FORMAT)
    cluster = instep.get_cluster_info()
    assert cluster is not None, "it runs on a cluster only"
    with core.init() as core_context:
        main(core_context, cluster, cluster.trial.hparams["increment_by"], float(sys.argv[1]))
