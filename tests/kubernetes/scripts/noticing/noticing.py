"""Ranks that count until a file is there, and save nothing before they are asked to stop."""

import os
import pathlib
import time

import instep
from instep import core


def main(context: core.Context, info: instep.ClusterInfo, go: pathlib.Path) -> None:
    rank = context.distributed.rank
    step = 0
    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as folder:
            step = int((folder / "state").read_text())
        print(f"rank {rank} resumed behind step {step}", flush=True)
    while not all(context.distributed.allgather(go.exists())):
        step += 1
        if rank == 0:
            context.train.report_training_metrics(step, {"x": step})
        if context.preempt.should_preempt():
            with context.checkpoint.store_path({"steps_completed": step}, shard=True) as (folder, _):
                if rank == 0:
                    (folder / "state").write_text(str(step))
            return
        time.sleep(0.1)
    if rank == 0:
        context.train.report_validation_metrics(step, {"x": step})


if __name__ == "__main__":
    cluster = instep.get_cluster_info()
    assert cluster is not None, "it runs on a cluster only"
    with core.init(distributed=core.DistributedContext.from_torch_distributed()) as core_context:
        main(core_context, cluster, pathlib.Path(os.environ["GO"]))
