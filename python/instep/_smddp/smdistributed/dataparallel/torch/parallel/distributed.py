"""`DistributedDataParallel` as SageMaker's library had it before version 1.4: torch's, with fewer parameters."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(TorchDistributedDataParallel):
    """torch's class; only the order of its parameters is the older library's."""

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        broadcast_buffers: bool = True,
        process_group: ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
    ) -> None:
        warnings.warn(
            "smdistributed.dataparallel.torch.parallel.DistributedDataParallel is deprecated; "
            "use torch.nn.parallel.DistributedDataParallel",
            DeprecationWarning,
            stacklevel=2,
        )
        # Passed on only when chosen: torch's own defaults, and what it warns of, change between its versions.
        chosen: dict[str, Any] = {}
        if not broadcast_buffers:
            chosen["broadcast_buffers"] = False
        if bucket_cap_mb is not None:
            chosen["bucket_cap_mb"] = bucket_cap_mb
        super().__init__(
            module,
            device_ids=device_ids,
            output_device=output_device,
            process_group=process_group,
            **chosen,
        )
