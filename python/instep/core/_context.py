"""Everything a script has while it trains, and how it ends."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from instep.core._checkpoint import CheckpointContext
from instep.core._config import Config, Storage, TensorboardMode, data_folder, storage_config, storage_root
from instep.core._distributed import DistributedContext
from instep.core._information import ClusterInfo, get_cluster_info
from instep.core._output import Output
from instep.core._preempt import PreemptContext, PreemptMode
from instep.core._profiler import ProfilerContext, host_prefix
from instep.core._searcher import SearcherContext, length_and_unit
from instep.core._tracking import Tracking, master_address
from instep.core._train import EarlyExitReason, TrainContext
from instep.core.errors import InvalidHP, MasterRefused, MasterUnreachable

logger = logging.getLogger("instep.core")
# How long the end of a script waits for reports that are on their way.
FLUSH_S = 60.0


class Context:
    """What `init` gives: `train`, `checkpoint`, `distributed`, `preempt`, `searcher`, `profiler` and `info`."""

    def __init__(
        self,
        *,
        tracking: Tracking | None,
        distributed: DistributedContext,
        storage: dict[str, Any],
        searcher: dict[str, Any],
        preempt_mode: PreemptMode,
    ) -> None:
        self._tracking = tracking
        managed = tracking is not None and tracking.managed
        self.distributed = distributed
        where = f"experiment/{tracking.experiment_id}/trial/{tracking.trial_id}" if tracking is not None else "alone"
        self.train = TrainContext(tracking, data_folder() / "tensorboard" / where)
        self.checkpoint = CheckpointContext(distributed, storage_root(storage), tracking)
        self.preempt = PreemptContext(preempt_mode, distributed, tracking)
        length, unit = length_and_unit(searcher)
        # A script that nobody manages trains once, to an end of its own.
        self.searcher = SearcherContext(distributed, self.train, length if managed else length or 1, unit)
        self.info: ClusterInfo | None = tracking.info if tracking is not None else None
        looks = tracking is not None and distributed.local_rank == 0
        self.profiler = ProfilerContext(
            tracking.reporter if tracking is not None and looks else None, host_prefix(distributed.cross_size)
        )
        if tracking is None or not managed or _asks_for_profiling(tracking):
            self.profiler.on()
        # A cluster takes the output of its tasks from outside.
        self._output = Output(tracking.reporter) if tracking is not None and not managed else None
        self._ending = Ending()
        self._closed = False
        self._process = os.getpid()
        atexit.register(self.close)

    def __enter__(self) -> Context:
        """Give the context; it is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the trial: in error if the block ends with one."""
        if isinstance(error, SystemExit) and error.code in (None, 0):
            error = None
        managed = self._tracking is not None and self._tracking.managed
        if managed and isinstance(error, InvalidHP):
            # The searcher tries others; that is no failure of the trial, so the script ends well.
            if self.distributed.rank == 0:
                self.train.report_early_exit(EarlyExitReason.INVALID_HP)
            logger.info("these hyperparameters are not valid: %s", error)
            self.close()
            sys.exit(0)
        self.close(error=error)

    def close(self, *, error: BaseException | None = None) -> None:
        """Send what is left, say how the trial ended, and stop. Does nothing the second time."""
        if self._closed or os.getpid() != self._process:
            return  # a forked process is not the trial, and its end is not the trial's
        self._closed = True
        atexit.unregister(self.close)
        failed = error is not None or self._ending.failed
        self._ending.restore()
        self.profiler.off()
        self.preempt.close()
        self.distributed.close()
        if self._output is not None:
            if error is not None:
                self._output.record_error(error)
            self._output.close()
        if self._tracking is not None:
            self._end(self._tracking, failed)

    def _end(self, tracking: Tracking, failed: bool) -> None:
        undelivered = tracking.reporter.close(FLUSH_S)
        for sentence in tracking.reporter.news():
            logger.warning("%s", sentence)
        if undelivered is not None:
            left, why = undelivered
            say(f"{left} reports or lines of output were not delivered within {FLUSH_S:.0f} s: {why}")
        if tracking.chief and not tracking.managed:
            if undelivered is not None:
                # It has been waited for long enough.
                say(f"the end of trial {tracking.trial_id} was not recorded either")
                return
            try:
                tracking.set_state("ERROR" if failed else "COMPLETED")
            except (MasterRefused, MasterUnreachable) as error:
                say(f"the end of trial {tracking.trial_id} could not be recorded: {error}")


class Ending:
    """Notices how a script ends whose context nobody closes: by an error, or by `sys.exit` with a status."""

    def __init__(self) -> None:
        self.failed = False
        self._excepthook: Callable[..., Any] = sys.excepthook
        self._exit: Callable[..., Any] = sys.exit

        def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self.failed = True
            self._excepthook(kind, error, trace)

        def leave(status: object = None) -> None:
            self.failed = self.failed or status not in (None, 0)
            self._exit(status)

        self._ours = (excepthook, leave)
        sys.excepthook = excepthook
        sys.exit = leave  # type: ignore[assignment]

    def restore(self) -> None:
        """Give both back, unless somebody replaced them meanwhile."""
        excepthook, leave = self._ours
        if sys.excepthook is excepthook:
            sys.excepthook = self._excepthook
        if sys.exit is leave:
            sys.exit = self._exit


def _asks_for_profiling(tracking: Tracking) -> bool:
    profiling = tracking.info.trial._config.get("profiling")
    return isinstance(profiling, dict) and profiling.get("enabled") is True


def say(sentence: str) -> None:
    """Tell people something at the end, when logging may be gone."""
    stream = sys.stderr
    if stream is not None:
        stream.write(f"instep: {sentence}\n")


def announce(tracking: Tracking | None) -> None:
    """Say where to look, unless a cluster runs this script: whoever reads its log has found it."""
    if os.environ.get("INSTEP_QUIET", "") not in ("", "0"):
        return
    if tracking is None:
        say("neither INSTEP_MASTER nor DET_MASTER is set: metrics and output are not recorded")
    elif not tracking.managed:
        page = f"{tracking.info.master_url.rstrip('/')}/det/experiments/{tracking.experiment_id}"
        say(f"recording trial {tracking.trial_id} of experiment {tracking.experiment_id}: {page}")


def warn_of_one_experiment_each() -> None:
    """Say on rank 0 that the ranks of a job do not know of each other here."""
    environment = os.environ
    world, rank = environment.get("WORLD_SIZE", ""), environment.get("RANK", "0")
    if world.isdigit() and int(world) > 1 and rank == "0" and master_address():
        say(
            f"warning: WORLD_SIZE is {world}, and init() got no distributed=: every rank records an experiment of its "
            "own\n"
            "hint: pass distributed=instep.core.DistributedContext.from_torch_distributed() on all ranks"
        )


def init(
    *,
    config: Config | None = None,
    distributed: DistributedContext | None = None,
    checkpoint_storage: Storage | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Context:
    """Begin to record; all ranks of a job call this with their `distributed`.

    In a trial that a cluster runs, its configuration says where checkpoints go, and `config` is not looked at.
    Elsewhere, without INSTEP_MASTER and DET_MASTER nothing is recorded. A master that is named and cannot be reached is
    an error. Rank 0 says on stderr where the experiment is shown, or that nothing is recorded, unless INSTEP_QUIET=1.
    `checkpoint_storage` is the path of a folder that all ranks share.
    """
    TensorboardMode(tensorboard_mode)
    preempt_mode = PreemptMode(preempt_mode)
    config = config or Config()
    given_none, distributed = distributed is None, distributed or DistributedContext.alone()
    info = get_cluster_info()
    # A task of another kind, such as a command, has no trial; what it runs is recorded like any script.
    if info is not None and info.allocation_id and info._trial_info is not None:
        given = info.trial._config
        storage = storage_config(checkpoint_storage or given.get("checkpoint_storage"))
        tracking: Tracking | None = Tracking.join(info, storage, distributed)
        searcher = given.get("searcher") or {}
    else:
        if given_none:
            warn_of_one_experiment_each()
        storage = storage_config(checkpoint_storage or config.checkpoint_storage)
        tracking = Tracking.start(config, storage, distributed)
        searcher = config.searcher or {}
    if distributed.rank == 0:
        announce(tracking)
    return Context(
        tracking=tracking, distributed=distributed, storage=storage, searcher=searcher, preempt_mode=preempt_mode
    )
