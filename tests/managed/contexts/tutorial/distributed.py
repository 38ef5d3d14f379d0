"""The fifth stage: one process a slot, on every machine, started by the script itself."""

import argparse
import logging
import os
import pathlib
import subprocess
import sys

import determined as det
from determined import core


def launcher(slots: int, nodes: int, node_rank: int) -> int:
    """Start one process a slot; end with the first code that is not zero."""
    processes = []
    for local_rank in range(slots):
        rank = node_rank * slots + local_rank
        wrapped = [sys.executable, "-m", "determined.launch.wrap_rank", str(rank), "--", sys.executable, __file__]
        words = ["worker", "--rank", rank, "--local_rank", local_rank, "--slots", slots, "--nodes", nodes]
        processes.append(subprocess.Popen([*wrapped, *(str(word) for word in words)]))
    codes = [process.wait() for process in processes]
    return next((code for code in codes if code), 0)


def worker(arguments: argparse.Namespace, info: det.ClusterInfo) -> None:
    """Train one share."""
    size = arguments.slots * arguments.nodes
    distributed = core.DistributedContext(
        rank=arguments.rank,
        size=size,
        local_rank=arguments.local_rank,
        local_size=arguments.slots,
        cross_rank=arguments.rank // arguments.slots,
        cross_size=arguments.nodes,
        chief_ip=info.container_addrs[0],
    )
    with core.init(distributed=distributed, tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        train(context, info.trial.hparams["increment_by"])


def train(context: core.Context, increment_by: int) -> None:
    distributed = context.distributed
    x = 0
    for batch in range(20):
        x += sum(distributed.allgather(increment_by + distributed.rank))
        steps = batch + 1
        if steps % 10 == 0 and distributed.rank == 0:
            logging.info("x is now %s", x)
            context.train.report_training_metrics(steps_completed=steps, metrics={"x": x})
            with context.checkpoint.store_path({"steps_completed": steps}) as (folder, _):
                pathlib.Path(folder, "state").write_text(str(x))
        if context.preempt.should_preempt():
            return
    logging.info("rank %s of %s is done", distributed.rank, distributed.size)
    if distributed.rank == 0:
        context.train.report_validation_metrics(steps_completed=steps, metrics={"x": x})


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    cluster = det.get_cluster_info()
    assert cluster is not None, "it runs on a cluster only"
    parser = argparse.ArgumentParser()
    parser.add_argument("role", nargs="?", default="launcher")
    for name in ("rank", "local_rank", "slots", "nodes"):
        parser.add_argument(f"--{name}", type=int)
    given = parser.parse_args()
    if given.role == "worker":
        worker(given, cluster)
    else:
        os.environ["OMP_NUM_THREADS"] = "1"
        sys.exit(launcher(len(cluster.slot_ids), len(cluster.container_addrs), cluster.container_rank))
