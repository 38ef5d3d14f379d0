"""Ranks that count together; the chief reports and saves every ten steps and when it is asked to stop.

From step 20 on, or from the one that GATE names, they wait for a file.
"""

import os
import pathlib
import time

import instep
from instep import core

STEPS = 40
GATE = int(os.environ.get("GATE", "20"))


def main(context: core.Context, info: instep.ClusterInfo, go: pathlib.Path) -> None:
    rank = context.distributed.rank
    x, begin = 0, 0

    def save(step: int) -> None:
        with context.checkpoint.store_path({"steps_completed": step}, shard=True) as (folder, _):
            if rank == 0:
                (folder / "state").write_text(f"{x},{step}")

    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as folder:
            x, begin = (int(word) for word in (folder / "state").read_text().split(","))
        print(f"rank {rank} resumed behind step {begin}", flush=True)
    for step in range(begin + 1, STEPS + 1):
        x += sum(context.distributed.allgather(rank + 1))
        if step % 10 == 0:
            if rank == 0:
                context.train.report_training_metrics(step, {"x": x})
            save(step)
        if step == GATE:
            go.with_name(f"gate-{info.trial.trial_id}-{rank}").touch()
        while step >= GATE and not all(context.distributed.allgather(go.exists())):
            if context.preempt.should_preempt():
                if step % 10 != 0:
                    save(step)
                return
            time.sleep(0.05)
    if rank == 0:
        context.train.report_validation_metrics(STEPS, {"x": x})


if __name__ == "__main__":
    cluster = instep.get_cluster_info()
    assert cluster is not None, "it runs on a cluster only"
    # Nothing of the job that it runs in is its business: a launcher would start itself through srun.
    assert not [name for name in os.environ if name.startswith("SLURM_")], "the task sees Slurm's variables"
    with core.init(distributed=core.DistributedContext.from_torch_distributed()) as core_context:
        main(core_context, cluster, pathlib.Path(os.environ["GO"]))
