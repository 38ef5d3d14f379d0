"""Nested state, such as `state_dict()` gives, as a skeleton and the tensors in it.

The skeleton is small and travels as a pickle, between ranks of one job that know each other by its secret; tensors
travel as they lie in memory.
"""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

Path = tuple[object, ...]
# Dictionaries and lists, of these or of whatever else.
Tree: TypeAlias = Any


@dataclass(frozen=True)
class Slot:
    """Where a tensor stands in a skeleton."""

    index: int


@dataclass(frozen=True)
class Shape:
    """What a tensor's memory has to look like."""

    size: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Shape:
        """That of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype)

    def empty(self) -> torch.Tensor:
        """Memory for such a tensor."""
        return torch.empty(self.size, dtype=self.dtype)


def flatten(tree: object) -> tuple[object, dict[Path, torch.Tensor]]:
    """The skeleton of a tree, and its tensors by their paths, in order."""
    tensors: dict[Path, torch.Tensor] = {}

    def walk(node: object, path: Path) -> object:
        if isinstance(node, torch.Tensor):
            tensors[path] = node.detach()
            return Slot(len(tensors) - 1)
        if isinstance(node, Mapping):
            return {key: walk(value, (*path, key)) for key, value in node.items()}
        if type(node) in (list, tuple):
            assert isinstance(node, (list, tuple))
            return type(node)([walk(value, (*path, place)) for place, value in enumerate(node)])
        return node

    return walk(tree, ()), tensors


def unflatten(skeleton: object, tensors: Sequence[torch.Tensor]) -> Tree:
    """The tree that has this skeleton and these tensors."""
    if isinstance(skeleton, Slot):
        return tensors[skeleton.index]
    if isinstance(skeleton, dict):
        return {key: unflatten(value, tensors) for key, value in skeleton.items()}
    if type(skeleton) in (list, tuple):
        assert isinstance(skeleton, (list, tuple))
        return type(skeleton)([unflatten(value, tensors) for value in skeleton])
    return skeleton


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory as bytes."""
    return tensor.reshape(-1).view(torch.uint8)


def memory_of(tensor: torch.Tensor) -> bytes:
    """A copy of a contiguous tensor's memory."""
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""


def pack(tree: object) -> bytes:
    """A small tree as one piece of memory, tensors and all."""
    skeleton, found = flatten(tree)
    tensors = [tensor.cpu().contiguous() for tensor in found.values()]
    head = pickle.dumps((skeleton, [Shape.of(tensor) for tensor in tensors]))
    body = torch.cat([bytes_of(tensor) for tensor in tensors]) if tensors else torch.empty(0, dtype=torch.uint8)
    return len(head).to_bytes(8, "little") + head + memory_of(body)


def unpack(data: bytes) -> Tree:
    """The tree that `pack` has packed."""
    start = 8 + int.from_bytes(data[:8], "little")
    skeleton, shapes = pickle.loads(data[8:start])  # from a rank of the same job
    tensors = []
    memory = torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8) if len(data) > start else None
    place = 0
    for shape in shapes:
        tensor = shape.empty()
        if tensor.numel() and memory is not None:
            bytes_of(tensor).copy_(memory[place : place + tensor.nbytes])
        place += tensor.nbytes
        tensors.append(tensor)
    return unflatten(skeleton, tensors)
