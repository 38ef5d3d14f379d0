"""Four ranks that train in step and stop in step: each writes down what it saw, the chief saves."""

import logging
import os
import pathlib
import time

import instep
from instep import core

STEPS = 60


def main(context: core.Context, info: instep.ClusterInfo, seen: pathlib.Path) -> None:
    rank = context.distributed.rank
    x, begin = 0, 0
    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as folder:
            x, begin = (int(word) for word in (folder / f"state-{rank}").read_text().split(","))
    for step in range(begin + 1, STEPS + 1):
        x += sum(context.distributed.allgather(rank + step))
        time.sleep(0.05)
        if context.preempt.should_preempt():
            with (seen / f"stopped-{rank}").open("a") as file:
                file.write(f"{step}\n")
            with context.checkpoint.store_path({"steps_completed": step}, shard=True) as (folder, _):
                (folder / f"state-{rank}").write_text(f"{x},{step}")
            return
        if rank == 0 and step % 10 == 0:
            context.train.report_training_metrics(step, {"x": x})
    if rank == 0:
        context.train.report_validation_metrics(STEPS, {"x": x})


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=instep.LOG_FORMAT)
    cluster = instep.get_cluster_info()
    assert cluster is not None, "it runs on a cluster only"
    with core.init(distributed=core.DistributedContext.from_torch_distributed()) as core_context:
        main(core_context, cluster, pathlib.Path(os.environ["SEEN"]))
