"""A trial of a cluster: every rank steps, reports what is its to report, and stops when it should make room."""

from __future__ import annotations

import json
import sys
import time

import instep
import instep.core

mode = instep.core.PreemptMode[sys.argv[1]]
distributed = instep.core.DistributedContext.from_torch_distributed()
refused = []


def attempt(what: str, call: object) -> None:
    """Note what a rank may not do."""
    try:
        call()  # type: ignore[operator]
    except RuntimeError as error:
        refused.append(f"{what}: {error}")


with instep.core.init(distributed=distributed, preempt_mode=mode) as context:
    info = instep.get_cluster_info()
    assert info is not None and context.info == info
    chief = distributed.rank == 0
    stopped = None
    for step in range(10_000):
        # Ranks are not equally quick.
        time.sleep(0.001 * (distributed.rank + 1))
        if mode is instep.core.PreemptMode.ChiefOnly:
            stop = distributed.broadcast(context.preempt.should_preempt() if chief else None)
        else:
            stop = context.preempt.should_preempt()
        if stop:
            stopped = step
            break
    if not chief:
        attempt("metrics", lambda: context.train.report_validation_metrics(1, {"loss": 1.0}))
        attempt("progress", lambda: context.train.report_progress(0.5))
        attempt("upload", lambda: context.checkpoint.upload("/nowhere", {"steps_completed": 1}))
        attempt("early exit", lambda: context.train.report_early_exit(instep.core.EarlyExitReason.INVALID_HP))
        if mode is instep.core.PreemptMode.ChiefOnly:
            attempt("preempt", context.preempt.should_preempt)
    with context.checkpoint.store_path({"steps_completed": stopped}, shard=True) as (path, _):
        (path / f"state_{distributed.rank}").write_text("x")
    operations = list(context.searcher.operations()) if not chief else []
    for operation in context.searcher.operations() if chief else []:
        operations.append(operation)
        context.train.report_validation_metrics(operation.length, {"loss": 0.5})
        operation.report_progress(operation.length)
        operation.report_completed(0.5)
    print(
        json.dumps(
            {
                "rank": distributed.rank,
                "stopped": stopped,
                "refused": refused,
                "lengths": [operation.length for operation in operations],
                "addresses": info.container_addrs,
                "machine": info.container_rank,
                "slots": list(info.slot_ids),
                "hparams": info.trial.hparams,
                "seed": info.trial.trial_seed,
                "data": info.user_data,
                "latest": info.latest_checkpoint,
            }
        )
    )
