"""Tensors as the native library wants them: addresses of plain memory, and the types and reductions by number.

What is no plain memory of this process (strided views, CUDA tensors unless `device` takes them, conjugated views)
travels through a contiguous copy on the host: `Staging` makes it, remembers what must be copied back, and keeps
everything alive meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from instep._native import DTYPES, REDUCTIONS
from instep.errors import InvalidCall

Memory = tuple[int, int]

_TORCH_NAMES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
# The native library's number of each type it can reduce.
REDUCIBLE = {_TORCH_NAMES[name]: index for index, name in enumerate(DTYPES) if name in _TORCH_NAMES}
_STRIDED = torch.strided
# Everything else can be moved.
BYTES = DTYPES.index("bytes")

# The native library's number of each reduction, by torch's: the names are the same.
_BY_VALUE = {getattr(ReduceOp, name).value: index for index, name in enumerate(REDUCTIONS) if hasattr(ReduceOp, name)}
_PREMUL_SUM = REDUCTIONS.index("PREMUL_SUM")


def reduction(reduce_op: object) -> tuple[int, float]:
    """The native library's number of a reduction, and its factor; torch hands out `ReduceOp` objects and bare names."""
    index = _BY_VALUE.get(getattr(getattr(reduce_op, "op", reduce_op), "value", None))
    if index is None:
        raise InvalidCall(f"unknown reduction {reduce_op}")
    return index, _factor(reduce_op) if index == _PREMUL_SUM else 1.0


def _factor(reduce_op: object) -> float:
    """What a premultiplied sum multiplies by."""
    if hasattr(reduce_op, "factor"):
        return float(reduce_op.factor)
    # Older torch only tells when it is pickled.
    state: Any = reduce_op.__getstate__()
    return float(state[1])


def reducible(tensor: torch.Tensor, index: int) -> int:
    """The native library's number of the tensor's type, for a reduction."""
    code = REDUCIBLE.get(tensor.dtype)
    if code is None:
        raise InvalidCall(f"{REDUCTIONS[index]} is not defined for {tensor.dtype}")
    return code


def movable(tensors: Sequence[torch.Tensor]) -> int:
    """The native library's number of the tensors' type, for moving them; they must agree on it."""
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype is not dtype:
            raise InvalidCall(f"tensors of one call must have one type, not {dtype} and {tensor.dtype}")
    return REDUCIBLE.get(dtype, BYTES)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is what its memory says, on this host and in order."""
    return (
        tensor.is_cpu
        and tensor.layout is _STRIDED
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)  # what wraps another tensor has no memory of its own
    )


class Staging:
    """The memory of one operation: what the native library reads and writes, and what happens to it afterwards."""

    __slots__ = ("_back", "keep")

    def __init__(self) -> None:
        # What must stay alive until the operation has ended.
        self.keep: list[torch.Tensor] = []
        self._back: list[tuple[torch.Tensor, torch.Tensor]] = []

    def read(self, tensor: torch.Tensor) -> Memory:
        """Memory that the native library only reads."""
        if not is_plain(tensor := settled(tensor)):
            tensor = self._host_copy(tensor)
        return self._lend(tensor)

    def update(self, tensor: torch.Tensor) -> Memory:
        """Memory that the native library reads and then writes."""
        if not is_plain(tensor := settled(tensor)):
            copy = self._host_copy(tensor)
            self._back.append((tensor, copy))
            tensor = copy
        return self._lend(tensor)

    def write(self, tensor: torch.Tensor) -> Memory:
        """Memory that the native library only writes."""
        if not is_plain(tensor := settled(tensor)):
            refuse_what_has_no_memory(tensor)
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            self._back.append((tensor, copy))
            tensor = copy
        return self._lend(tensor)

    @property
    def copies_back(self) -> bool:
        """Whether something is left to do when the operation has ended."""
        return bool(self._back)

    def copy_back(self) -> None:
        """Bring results to where the caller wants them. Returns when they are there, on CUDA devices too."""
        for tensor, copy in self._back:
            # From pageable memory, and on the calling thread's own stream: the copy is over when this returns.
            tensor.detach().copy_(copy)
            if tensor.is_cuda:
                torch.cuda.current_stream(tensor.device).synchronize()
        self._back.clear()

    def _lend(self, tensor: torch.Tensor) -> Memory:
        self.keep.append(tensor)
        return tensor.data_ptr(), tensor.nbytes

    def _host_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        refuse_what_has_no_memory(tensor)
        tensor = tensor.detach().resolve_conj().resolve_neg()
        # To the host in order with the current stream; this waits for it.
        tensor = tensor.cpu()
        return tensor if tensor.is_contiguous() else tensor.contiguous()


def settled(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or the one it stands for: the result of a functional collective, which is waited for."""
    return tensor.trigger_wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor


def refuse_what_has_no_memory(tensor: torch.Tensor) -> None:
    """Say why a tensor cannot be sent."""
    if tensor.layout is not torch.strided:
        raise InvalidCall(
            f"a tensor of layout {tensor.layout} cannot be sent\nhint: only all_reduce takes sparse tensors (COO); "
            "use to_dense() for the rest"
        )
    if tensor.is_meta:
        raise InvalidCall("a tensor on the meta device has no values that could be sent")
    if tensor.data_ptr() == 0 and tensor.numel():
        raise InvalidCall(
            f"a {type(tensor).__name__} has no memory that could be sent\n"
            "hint: send the tensor in it; for a DTensor: to_local()"
        )


def parts(whole: torch.Tensor, memory: Memory, each: torch.Tensor, count: int, what: str) -> list[Memory]:
    """Cut the memory of a tensor into parts as long as `each`, one per rank."""
    if whole.numel() != each.numel() * count:
        raise InvalidCall(
            f"{what} has {whole.numel()} elements, and must have {each.numel()} for each of {count} ranks"
        )
    return _equal(memory, count)


def _equal(memory: Memory, count: int) -> list[Memory]:
    address, length = memory
    each = length // count
    return [(address + part * each, each) for part in range(count)]


def rows(tensor: torch.Tensor, memory: Memory, splits: Sequence[int], count: int, what: str) -> list[Memory]:
    """Cut memory along the tensor's first dimension, by rows per rank or evenly when no splits are given."""
    height = tensor.size(0) if tensor.dim() else 1
    if not splits:
        if height % count:
            raise InvalidCall(f"{what} has {height} rows, which {count} ranks cannot divide evenly")
        return _equal(memory, count)
    if len(splits) != count:
        raise InvalidCall(f"{what}: {len(splits)} split sizes given, there are {count} ranks")
    if sum(splits) != height or min(splits) < 0:
        raise InvalidCall(f"{what} has {height} rows, its split sizes {list(splits)} do not add up to that")
    address, length = memory
    row = length // height if height else 0
    cut = []
    for split in splits:
        cut.append((address, split * row))
        address += split * row
    return cut
