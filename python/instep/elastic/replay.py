"""Every step twice: whether a step that is done again comes to the same bits, before a loss makes it necessary.

What is compared is what recovery relies on: when ranks vote, the gradients, the buffers, what is private, and the state
of the random generators follow from what the step began with, and from nothing else.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import torch

from instep.elastic import drill
from instep.elastic.state import State
from instep.errors import CollectiveError


class ReplayDiffers(CollectiveError):
    """A step that was done twice came to different bits."""


class Replay:
    """Compares the second time of a step with the first."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._first: dict[str, bytes | torch.Tensor | None] | None = None
        self._steps = 0

    def once_more(self, step: int) -> bool:
        """A step is done up to its vote: True after the first time, when it is taken back to be done again."""
        found = dict(self._result())
        if self._first is None:
            self._first = {name: _copy(value) for name, value in found.items()}
            self._state.take_back()
            return True
        first, self._first = self._first, None
        for name in first | found:
            if not _same(first.get(name), found.get(name)):
                raise ReplayDiffers(
                    f"step {step}, done twice, differs{_difference(first.get(name), found.get(name))}: {name}\n"
                    "hint: a step may depend on its batch, the weights, and random, numpy and torch's generators only; "
                    "torch.use_deterministic_algorithms(True) names kernels that do not repeat themselves"
                )
        self._steps += 1
        drill.replayed(self._steps)
        return False

    def forget(self) -> None:
        """The step begins anew: both times are still to come."""
        self._first = None

    def _result(self) -> Iterator[tuple[str, bytes | torch.Tensor | None]]:
        names = {id(parameter): name for model in self._state.models for name, parameter in model.named_parameters()}
        for place, parameter in enumerate(self._state.parameters()):
            yield f"the gradient of {names.get(id(parameter), f'parameter {place}')}", parameter.grad
        for place, model in enumerate(self._state.models):
            for name, buffer in model.named_buffers():
                yield f"the buffer {name} of model {place}", buffer
        yield "what is private", self._state.private() if self._state.has_private() else None
        yield "random numbers drawn from torch", torch.get_rng_state()
        yield "random numbers drawn from random", repr(random.getstate()).encode()
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            yield "random numbers drawn from numpy", repr(numpy.random.get_state()).encode()


def _copy(value: bytes | torch.Tensor | None) -> bytes | torch.Tensor | None:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _same(first: bytes | torch.Tensor | None, second: bytes | torch.Tensor | None) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        if first.is_sparse or second.is_sparse:
            first, second = first.to_dense(), second.to_dense()
        return first.dtype == second.dtype and first.shape == second.shape and torch.equal(_bits(first), _bits(second))
    return type(first) is type(second) and not isinstance(first, torch.Tensor) and first == second


def _difference(first: bytes | torch.Tensor | None, second: bytes | torch.Tensor | None) -> str:
    """By how much numbers differ at most, as far as that can be said."""
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return ""
    if first.shape != second.shape or not first.is_floating_point():
        return ""
    return f" (by at most {float((first.detach() - second.detach()).abs().max()):.3g})"
