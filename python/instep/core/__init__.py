"""Records what a training script does: metrics, output and checkpoints, from any launcher, on any number of ranks.

    import instep.core

    with instep.core.init(config=instep.core.Config(name="my model")) as context:
        for step in range(100):
            context.train.report_training_metrics(steps_completed=step, metrics={"loss": loss})
        with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
            torch.save(model.state_dict(), path / "model.pt")

In a task that a cluster runs, `init` speaks for its trial. Elsewhere `INSTEP_MASTER` (or `DET_MASTER`) says where the
master is, and a trial is made that it only records. Without either the same script runs alone: checkpoints are
saved, metrics go nowhere, and a line says so. The names and their meanings are those of Determined's Core API;
`instep.experimental.core_v2` is its form with module-level state.

Reports never make the training wait: they are queued here, sent in batches by a native thread, repeated until the
master has stored them, once. What could not be delivered by the end is said on standard error.
"""

from __future__ import annotations

from instep.core._checkpoint import CheckpointContext, DownloadMode
from instep.core._config import Config, TensorboardMode
from instep.core._context import Context, init
from instep.core._distributed import DistributedContext
from instep.core._information import ClusterInfo, RendezvousInfo, TrialInfo
from instep.core._preempt import PreemptContext, PreemptMode
from instep.core._profiler import ProfilerContext
from instep.core._searcher import SearcherContext, SearcherMode, SearcherOperation, Unit
from instep.core._train import EarlyExitReason, TrainContext
from instep.core.errors import InvalidHP, MasterRefused, MasterUnreachable

__all__ = [
    "CheckpointContext",
    "ClusterInfo",
    "Config",
    "Context",
    "DistributedContext",
    "DownloadMode",
    "EarlyExitReason",
    "InvalidHP",
    "MasterRefused",
    "MasterUnreachable",
    "PreemptContext",
    "PreemptMode",
    "ProfilerContext",
    "RendezvousInfo",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "TensorboardMode",
    "TrainContext",
    "TrialInfo",
    "Unit",
    "init",
]
