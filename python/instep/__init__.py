"""Distributed training for PyTorch: launcher, collectives, checkpoints and experiment tracking.

    instep run --nproc-per-node 2 train.py          # the command line, a drop-in for torchrun
    python -m instep.run --nproc-per-node 2 train.py

    torch.distributed.init_process_group(backend="instep")

Importing this package is cheap: it loads neither torch nor the native extension. It is needed for the backend with
torch before 2.14 only; newer torch finds it by itself.
"""

from __future__ import annotations

from instep._registration import register_when_torch_is_there

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` for it would be most of this import's cost
if TYPE_CHECKING:
    __version__: str

__all__ = ["__version__"]


def __getattr__(name: str) -> object:
    """Look the version up when somebody asks: reading package metadata costs more than importing this package."""
    if name == "__version__":
        from importlib.metadata import version

        value = version("instep")
        globals()["__version__"] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register_when_torch_is_there()
