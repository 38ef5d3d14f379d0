"""Where scripts import `DistributedDataParallel` from, at either of its two old addresses."""

from __future__ import annotations

from .distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
