"""Distributed training for PyTorch: launcher, collectives, checkpoints and experiment tracking.

    instep run --nproc-per-node 2 train.py          # the command line, a drop-in for torchrun
    python -m instep.run --nproc-per-node 2 train.py

Importing this package is cheap: it loads neither torch nor the native extension.
"""

from __future__ import annotations

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
