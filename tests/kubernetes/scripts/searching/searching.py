"""A trial of a search, without torch: it counts by its hyperparameter, and reports and saves every ten steps."""

import time

import instep
from instep import core


def main(context: core.Context, info: instep.ClusterInfo) -> None:
    increment = info.trial.hparams["increment_by"]
    begin = 0
    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as folder:
            begin = int((folder / "state").read_text())
    for step in range(begin + 1, 101):
        time.sleep(0.05)
        if step % 10 == 0:
            context.train.report_validation_metrics(step, {"x": step * increment, "batches": step})
            with context.checkpoint.store_path({"steps_completed": step}) as (folder, _):
                (folder / "state").write_text(str(step))
            if context.preempt.should_preempt():
                return


if __name__ == "__main__":
    cluster = instep.get_cluster_info()
    assert cluster is not None, "it runs on a cluster only"
    with core.init() as core_context:
        main(core_context, cluster)
