"""What a session keeps: models, optimizers and what belongs to them.

Two kinds of state are told apart by who has it and when it changes:

- **Replicated** state is the same on all ranks between two steps, and changes only after the step's vote: parameters,
  optimizers, schedulers, the scaler, objects given as `state`. A replacement gets it from its peers.
- **Private** state is each rank's own, and may change at any time in a step: buffers of models, such as BatchNorm's
  statistics, and objects given as `private`. It is copied when a step begins, to take the step back, and a peer holds
  another copy, for a replacement.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.nn.modules.batchnorm import _NormBase

from instep.elastic.trees import Tree, pack, unpack
from instep.errors import SessionMisuse

# Kernels such as BatchNorm's change buffers without torch counting it: buffers so small are copied in every step.
SMALL = 64 << 10


class Stateful(Protocol):
    """An object that can say what it holds."""

    def state_dict(self) -> dict[str, Any]: ...  # noqa: D102  # torch's protocol

    def load_state_dict(self, state_dict: Tree, /) -> object: ...  # noqa: D102


class State:
    """See the module documentation."""

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        schedulers: Sequence[Stateful],
        scaler: Stateful | None,
        shared: Sequence[Stateful],
        private: Sequence[Stateful],
    ) -> None:
        self.models = models
        self.optimizers = optimizers
        self._objects = [*schedulers, *([scaler] if scaler is not None else []), *shared]
        self._scaler = scaler
        self._has_scheduler = bool(schedulers)
        self._private = private
        # Where buffers are kept, as modules may put other tensors in their place.
        owners = {id(part): part for model in models for part in model.modules()}.values()
        found = [(part, name, each) for part in owners for name, each in part._buffers.items() if each is not None]
        self._buffers = [(part._buffers, name) for part, name, _ in found]
        # What may change unnoticed is taken to change in every step. Of others torch counts the changes.
        self._changing = {
            place for place, (part, _, each) in enumerate(found) if isinstance(part, _NormBase) or each.nbytes <= SMALL
        }
        self._versions: list[tuple[int, int]] = []
        self._copies: list[torch.Tensor] = []
        self._packed = b""
        self._had_gradient: list[bool] = []
        # What `parameters` gives, and how many the optimizers had then.
        self._parameters: list[torch.nn.Parameter] = []
        self._counts: list[int] = []

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """All parameters, of models and optimizers, each once."""
        groups = (parameter for each in self.optimizers for group in each.param_groups for parameter in group["params"])
        seen: set[int] = set()
        for parameter in (*(found for model in self.models for found in model.parameters()), *groups):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter

    def _known_parameters(self) -> list[torch.nn.Parameter]:
        """As `parameters`, not looked for in every step: optimizers may be given more, modules must not be."""
        counts = [len(group["params"]) for optimizer in self.optimizers for group in optimizer.param_groups]
        if counts != self._counts:
            self._parameters, self._counts = list(self.parameters()), counts
        return self._parameters

    def settings(self) -> int:
        """A number that differs where optimizers have other settings, such as the learning rate."""
        numbers = [
            (key, float(value))
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for key, value in group.items()
            if isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)
        ]
        return zlib.crc32(repr(numbers).encode())

    def has_unknown_scheduler(self) -> bool:
        """Whether something schedules the learning rate that the session does not know."""
        scheduled = any("initial_lr" in group for optimizer in self.optimizers for group in optimizer.param_groups)
        return scheduled and not self._has_scheduler

    def check_gradients(self) -> None:
        """The last step has changed no weights: its gradients must not be meant for this one."""
        if any(parameter.grad is not None and bool(parameter.grad.any()) for parameter in self.parameters()):
            raise SessionMisuse(
                "gradients are left from a step without optimizer.step(): a replacement would not have them\n"
                "hint: accumulate inside one step: for batches in session.batches(loader, accumulate=4)"
            )

    # Taking a step back.

    def remember(self) -> None:
        """A step begins: copy what it may change before its vote."""
        if not self._copies:
            self._copies = [buffer.clone() for buffer in self.buffers()]
            self._versions = [self._version(place) for place in range(len(self._buffers))]
        for place in self._changed():
            self._copies[place].copy_(self._buffer(place))
            self._versions[place] = self._version(place)
        if self._private:
            self._packed = pack([each.state_dict() for each in self._private])
        self._had_gradient = [parameter.grad is not None for parameter in self._known_parameters()]

    def take_back(self) -> None:
        """The step is to be done again: everything is what it was when it began."""
        with torch.no_grad():
            for place in self._changed():
                self._buffer(place).copy_(self._copies[place])
                self._versions[place] = self._version(place)
            for parameter, had in zip(self._parameters, self._had_gradient, strict=True):
                # Zeros and nothing differ: adding to zeros turns -0.0 into 0.0.
                parameter.grad = torch.zeros_like(parameter) if had else None
        if self._private:
            self._load_private(unpack(self._packed))
        if self._scaler is not None:
            getattr(self._scaler, "_per_optimizer_states", {}).clear()

    # What a peer keeps for this rank.

    def has_private(self) -> bool:
        """Whether there is anything that only this rank has."""
        return bool(self._buffers or self._private)

    def private(self) -> bytes:
        """What only this rank has, as it is now: what the next step begins with, if this one is committed."""
        buffers = {place: self._buffer(place) for place in self._changed()}
        return pack({"buffers": buffers, "private": [each.state_dict() for each in self._private]})

    def install_private(self, packed: bytes) -> None:
        """Become what `private` has packed."""
        found = unpack(packed)
        with torch.no_grad():
            for place, tensor in found["buffers"].items():
                self._buffer(place).copy_(tensor)
                self._changing.add(place)
        self._load_private(found["private"])

    def buffers(self) -> list[torch.Tensor]:
        """All buffers: those that never change are the same on all ranks."""
        return [self._buffer(place) for place in range(len(self._buffers))]

    def install_buffers(self, buffers: Sequence[torch.Tensor]) -> None:
        """Become another rank's, before what was this rank's own is put into their place."""
        with torch.no_grad():
            for mine, theirs in zip(self.buffers(), buffers, strict=True):
                mine.copy_(theirs)

    # What all ranks have.

    def tree(self) -> dict[str, Any]:
        """What a replacement needs of a survivor, whose step has not begun or was taken back. Nothing is copied."""
        return {
            "parameters": [parameter.detach() for parameter in self.parameters()],
            "gradients": [parameter.grad is not None for parameter in self.parameters()],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "objects": [each.state_dict() for each in self._objects],
        }

    def install(self, tree: dict[str, Any]) -> None:
        """Become what a survivor is."""
        with torch.no_grad():
            for parameter, tensor, has_gradient in zip(
                self.parameters(), tree["parameters"], tree["gradients"], strict=True
            ):
                _copy(parameter, tensor)
                parameter.grad = torch.zeros_like(parameter) if has_gradient else None
        for optimizer, found in zip(self.optimizers, tree["optimizers"], strict=True):
            _install_optimizer(optimizer, found)
        for each, found in zip(self._objects, tree["objects"], strict=True):
            each.load_state_dict(found)

    def _buffer(self, place: int) -> torch.Tensor:
        buffers, name = self._buffers[place]
        found = buffers[name]
        assert found is not None
        return found

    def _changed(self) -> list[int]:
        """Which buffers have changed, in this step or before."""
        self._changing.update(place for place, known in enumerate(self._versions) if self._version(place) != known)
        return sorted(self._changing)

    def _version(self, place: int) -> tuple[int, int]:
        found = self._buffer(place)
        return id(found), found._version

    def _load_private(self, found: Sequence[Any]) -> None:
        for each, state in zip(self._private, found, strict=True):
            each.load_state_dict(state)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    if target.data_ptr() != source.data_ptr() or target.stride() != source.stride():
        target.copy_(source)


def _install_optimizer(optimizer: torch.optim.Optimizer, found: dict[str, Any]) -> None:
    """As `load_state_dict`, without its copies and its change of types, unless a class has its own."""
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        optimizer.load_state_dict(found)
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for group, saved in zip(optimizer.param_groups, found["param_groups"], strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})
    optimizer.state.clear()
    for place, state in found["state"].items():
        optimizer.state[parameters[place] if isinstance(place, int) else place] = state
