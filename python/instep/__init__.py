"""Distributed training for PyTorch: launcher, collectives, checkpoints and experiment tracking.

    instep run --nproc-per-node 2 train.py          # the command line, a drop-in for torchrun
    python -m instep.run --nproc-per-node 2 train.py

    torch.distributed.init_process_group(backend="instep")

    with instep.core.init() as context:             # metrics, output and checkpoints, recorded by `instep master`
        context.train.report_training_metrics(steps_completed=1, metrics={"loss": 0.5})

Importing this package is cheap: it loads neither torch nor the native extension. It is needed for the backend with
torch before 2.14 only; newer torch finds it by itself.
"""

from __future__ import annotations

from instep._registration import register_when_torch_is_there

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` for it would be most of this import's cost
if TYPE_CHECKING:
    from instep import core, experimental
    from instep.core._information import ClusterInfo, get_cluster_info
    from instep.core.errors import InvalidHP

    __version__: str

__all__ = ["LOG_FORMAT", "ClusterInfo", "InvalidHP", "__version__", "core", "experimental", "get_cluster_info"]

# A format for `logging` from which the master can read the level of a line.
LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"


def __dir__() -> list[str]:
    """List what is meant to be used, and not what this file happens to import."""
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "annotations", "register_when_torch_is_there"})


def __getattr__(name: str) -> object:
    """Load what somebody asks for: reading package metadata alone costs more than importing this package."""
    if name in ("core", "experimental"):
        from importlib import import_module

        return import_module(f"instep.{name}")
    if name in ("ClusterInfo", "get_cluster_info"):
        from instep.core import _information

        return getattr(_information, name)
    if name == "InvalidHP":
        from instep.core.errors import InvalidHP

        return InvalidHP
    if name == "__version__":
        from importlib.metadata import version

        value = version("instep")
        globals()["__version__"] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register_when_torch_is_there()
