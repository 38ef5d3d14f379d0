"""DDP modules on a group that was connected again.

A replacement's reducer has the first layout of buckets, the survivors' have the one that DDP chose after the first
step, and a pass that was interrupted left theirs half done. So all make new reducers, which agree again. Sums are
element by element, so the layout does not change them.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def modules(models: Sequence[torch.nn.Module]) -> list[DistributedDataParallel]:
    """The DDP modules among these, inside them, and around them: scripts may give a session what DDP wraps."""
    parts = {id(part) for model in models for part in model.modules()}
    existing = [each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel)]
    return [each for each in existing if id(each) in parts or id(each.module) in parts]


def rebuild(ddp: DistributedDataParallel) -> None:
    """Give a DDP module a new reducer, as if it had just been made."""
    parameters, expect_sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._has_rebuilt_buckets = ddp._static_graph_delay_allreduce_enqueued = False
    ddp._ddp_init_helper(parameters, expect_sparse, names, ddp.static_graph)
    if ddp.static_graph:
        ddp.reducer._set_static_graph()
        assert ddp.logger is not None
        ddp.logger._set_static_graph()
    for hook, state in getattr(ddp, "_comm_hooks", ()):
        dist._register_comm_hook(ddp.reducer, state, hook)  # type: ignore[attr-defined]  # torch does not type it
