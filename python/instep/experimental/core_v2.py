"""Detached mode with module-level state, as `determined.experimental.core_v2` has it.

    from instep.experimental import core_v2

    core_v2.init(config=core_v2.Config(name="my model"))
    core_v2.train.report_training_metrics(steps_completed=1, metrics={"loss": 0.5})
    print("See the experiment at:", core_v2.url_reverse_webui_exp_view())
    core_v2.close()

A script on Determined's module runs when its imports are changed. `train`, `checkpoint`, `distributed`, `preempt`,
`searcher`, `profiler` and `info` exist between `init` and `close`. `instep.core.init` gives the same as an object.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from instep.core import (
    CheckpointContext,
    ClusterInfo,
    Config,
    Context,
    DistributedContext,
    PreemptContext,
    PreemptMode,
    ProfilerContext,
    SearcherContext,
    TensorboardMode,
    TrainContext,
)
from instep.core import init as _init

__all__ = [
    "Config",
    "DefaultConfig",
    "DistributedContext",
    "PreemptMode",
    "TensorboardMode",
    "UnmanagedConfig",
    "checkpoint",
    "close",
    "distributed",
    "info",
    "init",
    "init_context",
    "preempt",
    "profiler",
    "searcher",
    "train",
    "url_reverse_webui_exp_view",
]

_context: Context | None = None
_NAMES = ("train", "checkpoint", "distributed", "preempt", "searcher", "profiler", "info")

if TYPE_CHECKING:
    # What `init` sets; outside of init and close they are not there, and __getattr__ says so.
    train: TrainContext
    checkpoint: CheckpointContext
    distributed: DistributedContext
    preempt: PreemptContext
    searcher: SearcherContext
    profiler: ProfilerContext
    info: ClusterInfo | None


def __getattr__(name: str) -> object:
    """Say what is missing when something is used before `init`; `info` is None then, as scripts ask for that."""
    if name == "info":
        return None
    if name in _NAMES:
        raise RuntimeError(f"core_v2.{name} does not exist before core_v2.init() and after core_v2.close()")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass
class DefaultConfig(Config):
    """The older name of `Config`, for `init(defaults=...)`."""

    def __post_init__(self) -> None:
        """Point to the new name."""
        _deprecated("DefaultConfig is now Config")
        super().__post_init__()


@dataclass
class UnmanagedConfig(Config):
    """What `init(unmanaged=...)` takes: workspace, project and external ids, which `Config` has too."""

    def __post_init__(self) -> None:
        """Point to the new name, and leave the check of ids to the joined configuration."""
        _deprecated("UnmanagedConfig is now Config")


def _deprecated(what: str) -> None:
    warnings.warn(f"{what}: init(config=Config(...)) takes everything", FutureWarning, stacklevel=4)


def _joined(config: Config | None, defaults: Config | None, unmanaged: Config | None) -> Config:
    if config is not None:
        return config
    if defaults is None and unmanaged is None:
        raise ValueError("init needs a configuration\nhint: core_v2.init(config=core_v2.Config(name=...))")
    fields: dict[str, Any] = {}
    for given in (unmanaged, defaults):
        if given is not None:
            fields.update({name: value for name, value in vars(given).items() if value is not None})
    return Config(**fields)


def init_context(
    *,
    config: Config | None = None,
    defaults: Config | None = None,
    unmanaged: Config | None = None,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Context:
    """Begin to record, and give the context as an object."""
    return _init(
        config=_joined(config, defaults, unmanaged),
        distributed=distributed,
        checkpoint_storage=checkpoint_storage,
        preempt_mode=preempt_mode,
        tensorboard_mode=tensorboard_mode,
    )


def init(
    *,
    config: Config | None = None,
    defaults: Config | None = None,
    unmanaged: Config | None = None,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> None:
    """Begin to record; see `instep.core.init`. What was begun before is closed."""
    global _context
    close()
    _context = init_context(
        config=config,
        defaults=defaults,
        unmanaged=unmanaged,
        distributed=distributed,
        checkpoint_storage=checkpoint_storage,
        preempt_mode=preempt_mode,
        tensorboard_mode=tensorboard_mode,
    )
    for name in _NAMES:
        globals()[name] = getattr(_context, name)


def close() -> None:
    """Send what is left and say how the trial ended; at the end of a script this happens by itself."""
    global _context
    context, _context = _context, None
    for name in _NAMES:
        globals().pop(name, None)
    if context is not None:
        context.close()


def url_reverse_webui_exp_view() -> str:
    """Give the address of the experiment's page; empty if nothing is recorded."""
    if _context is None:
        raise RuntimeError("there is no experiment before core_v2.init() and after core_v2.close()")
    if _context.info is None:
        return ""
    return f"{_context.info.master_url}/det/experiments/{_context.info.trial.experiment_id}"
