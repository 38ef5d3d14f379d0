"""The functions that SageMaker's library had before version 1.4, each passed on to torch.distributed.

Scripts written for those versions run as they are; every call says in a `DeprecationWarning` what to write instead.
Signatures and defaults are the documented ones of version 1.3. `group=None` stands for the default group, as in torch:
there is no group yet when this module is imported.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import torch_smddp  # noqa: F401 (for its effect: from here on torch knows the backend "smddp")

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, ReduceOp, Work, group

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "is_available",
    "is_initialized",
]

BACKEND = "smddp"
# Classes, handed out by `__getattr__`: torch's own, so that they can be passed to either API.
_CLASSES = {"ReduceOp": dist.ReduceOp, "group": dist.group}


def _deprecated(name: str, instead: str, *, depth: int = 3) -> None:
    """Point at the caller's line; `depth` counts from `warnings.warn` up to it."""
    warnings.warn(
        f"smdistributed.dataparallel.torch.distributed.{name} is deprecated; use {instead}",
        DeprecationWarning,
        stacklevel=depth,
    )


def __getattr__(name: str) -> object:
    """Give `ReduceOp` and `group`, with the warning that functions give when they are called."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _deprecated(name, f"torch.distributed.{name}")
    return _CLASSES[name]


def is_available() -> bool:
    """Whether torch was built with its distributed package."""
    _deprecated("is_available", "torch.distributed.is_available")
    return dist.is_available()


def init_process_group(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 (torch's own, whatever its version takes)
    """Join the job, with the backend "smddp" unless another is named."""
    _deprecated("init_process_group", "torch.distributed.init_process_group(backend='smddp')")
    if not args:
        kwargs.setdefault("backend", BACKEND)
    dist.init_process_group(*args, **kwargs)


def is_initialized() -> bool:
    """Whether this process has joined its job."""
    _deprecated("is_initialized", "torch.distributed.is_initialized")
    return dist.is_initialized()


def get_world_size(group: ProcessGroup | None = None) -> int:
    """How many ranks there are."""
    _deprecated("get_world_size", "torch.distributed.get_world_size")
    return dist.get_world_size(group)


def get_rank(group: ProcessGroup | None = None) -> int:
    """Which of them this process is."""
    _deprecated("get_rank", "torch.distributed.get_rank")
    return dist.get_rank(group)


def get_local_rank() -> int:
    """Which of the ranks on this machine this process is: what its launcher wrote into LOCAL_RANK."""
    _deprecated("get_local_rank", "int(os.environ['LOCAL_RANK'])")
    value = os.environ.get("LOCAL_RANK", "")
    if not value.isdecimal():
        said = f"is {value!r}" if value else "is not set"
        raise RuntimeError(
            f"get_local_rank: the environment variable LOCAL_RANK {said}\n"
            "hint: start the script with `instep run` or torchrun, which set it"
        )
    return int(value)


def all_reduce(
    tensor: torch.Tensor,
    op: ReduceOp | ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combine `tensor` over all ranks; everyone gets the result in place."""
    _deprecated("all_reduce", "torch.distributed.all_reduce")
    return dist.all_reduce(tensor, op=op, group=group, async_op=async_op)


def broadcast(
    tensor: torch.Tensor, src: int = 0, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """Give everyone the tensor of rank `src`."""
    _deprecated("broadcast", "torch.distributed.broadcast")
    return dist.broadcast(tensor, src, group=group, async_op=async_op)


def all_gather(
    tensor_list: list[torch.Tensor], tensor: torch.Tensor, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """Collect everyone's `tensor` in `tensor_list`, by rank."""
    _deprecated("all_gather", "torch.distributed.all_gather")
    return dist.all_gather(tensor_list, tensor, group=group, async_op=async_op)


def all_to_all_single(
    output_t: torch.Tensor,
    input_t: torch.Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send the i-th part of `input_t` to rank i, and collect what the others send in `output_t`."""
    _deprecated("all_to_all_single", "torch.distributed.all_to_all_single")
    return dist.all_to_all_single(
        output_t,
        input_t,
        output_split_sizes=output_split_sizes,
        input_split_sizes=input_split_sizes,
        group=group,
        async_op=async_op,
    )


def barrier(group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """Wait until everyone is here."""
    _deprecated("barrier", "torch.distributed.barrier")
    return dist.barrier(group=group, async_op=async_op)
