"""Detached mode under torch distributed, with sharded checkpoints. Follows Determined's third detached tutorial."""

import random

import torch.distributed as dist
from determined.experimental import core_v2


def main() -> None:
    dist.init_process_group("gloo")
    distributed = core_v2.DistributedContext.from_torch_distributed()
    core_v2.init(defaults=core_v2.DefaultConfig(name="torch-distributed"), distributed=distributed)
    rank, size = dist.get_rank(), dist.get_world_size()
    for i in range(100):
        if i % size == rank:
            core_v2.train.report_training_metrics(steps_completed=i, metrics={"loss": random.random(), "rank": rank})
            if (i + 1) % 10 == 0:
                core_v2.train.report_validation_metrics(
                    steps_completed=i, metrics={"loss": random.random(), "rank": rank}
                )
    dist.barrier()
    metadata = {"steps_completed": 99, f"rank_{rank}": "ok"}
    with (
        core_v2.checkpoint.store_path(metadata, shard=True) as (path, _uuid),
        (path / f"state_{rank}").open("w") as file,
    ):
        file.write(f"99,{rank}")
    if rank == 0:
        print("See the experiment at:", core_v2.url_reverse_webui_exp_view())
    core_v2.close()


if __name__ == "__main__":
    main()
