"""CUDA tensors: exchanged on the device by ranks that share it and can reach each other's memory there.

The first operation on CUDA tensors in a group finds out, on all ranks together, whether they can; if not, because the
GPUs differ, there are several hosts, or the driver or the free memory does not allow it, tensors travel through pinned
memory of the host, chunk by chunk. An operation is behind what the current stream has been given, and `wait` puts the
current stream behind the operation.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from instep._native import DeviceGroup, DeviceTicket, Operation
from instep.backend.tensors import Memory, Staging, refuse_what_has_no_memory, settled
from instep.backend.work import Work
from instep.errors import InvalidCall

if TYPE_CHECKING:
    from instep.backend.link import Link


class Device:
    """The ranks of a group on their GPUs."""

    def __init__(self, native: DeviceGroup, signals: Link, device: torch.device) -> None:
        self.native = native
        self.device = device
        self._index: int = device.index
        self._signals = signals
        self._stream = torch.cuda.ExternalStream(native.stream, device)
        # Where futures are completed, so that nobody's own stream has to wait.
        self._side = torch.cuda.Stream(device)

    def begin(
        self, operations: list[Operation], staging: DeviceStaging, outputs: list[torch.Tensor], seconds: float
    ) -> DeviceWork:
        """Have the operations done, one after the other."""
        self._lend(staging)
        ticket = self.native.submit(operations, self._current(), seconds, staging.keep)
        return DeviceWork(ticket, outputs, self)

    def run(self, operations: list[Operation], staging: DeviceStaging, seconds: float) -> None:
        """Do the operations, one after the other, and put the current stream behind them."""
        done = False
        try:
            done = self.native.run(operations, self._current(), seconds)
        finally:
            if not done:
                self._lend(staging)

    def _lend(self, staging: DeviceStaging) -> None:
        """Let our stream have the memory of an operation that it is not done with."""
        for tensor in staging.keep:
            # Their memory is not given to others before our stream is done with it.
            tensor.record_stream(self._stream)

    def _current(self) -> int:
        """The current stream, which operations are behind."""
        return torch._C._cuda_getCurrentRawStream(self._index)

    def order(self, ticket: DeviceTicket) -> None:
        """Put the current stream behind an operation."""
        ticket.order(self._current())

    def aside(self) -> torch.cuda.StreamContext:
        """Be on a stream that nobody else uses."""
        return torch.cuda.stream(self._side)

    def abort(self) -> None:
        """Fail everything under way, here and on the peers."""
        self.native.abort()

    def close(self) -> None:
        """Give everything back."""
        self._signals.close()
        self.native.close()


def connect(signals: Link, home: Link, device: torch.device) -> Device | None:
    """Find out how the ranks of a group can use their devices; called by all of them. None: only torch can."""
    ordinal = device.index if device.index is not None else torch.cuda.current_device()
    torch.cuda.init()
    share, pin = (os.environ.get(name, "1") != "0" for name in ("INSTEP_DEVICE_EXCHANGE", "INSTEP_PINNED_MEMORY"))
    native, _why_not = DeviceGroup.connect(signals.native, home.native, ordinal, share, pin, home.seconds)
    if native is None:
        signals.close()
        return None
    return Device(native, signals, torch.device("cuda", ordinal))


class DeviceStaging(Staging):
    """The device memory of one operation. Strided views travel through a contiguous copy on the device."""

    __slots__ = ("_device",)

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def read(self, tensor: torch.Tensor) -> Memory:
        """Memory that is only read."""
        return self._lend(self._contiguous(settled(tensor)))

    def update(self, tensor: torch.Tensor) -> Memory:
        """Memory that is read and then written."""
        tensor = settled(tensor)
        copy = self._contiguous(tensor)
        if copy is not tensor:
            self._back.append((tensor, copy))
        return self._lend(copy)

    def write(self, tensor: torch.Tensor) -> Memory:
        """Memory that is only written."""
        self._check(tensor := settled(tensor))
        if not _is_what_it_says(tensor):
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            self._back.append((tensor, copy))
            tensor = copy
        return self._lend(tensor)

    def begin(
        self, operations: list[Operation], outputs: list[torch.Tensor], seconds: float, *, wait: bool
    ) -> Work | None:
        """Have the operations done; None if the caller waits for them."""
        if not wait and not self._back:
            return self._device.begin(operations, self, outputs, seconds)
        self._device.run(operations, self, seconds)
        for tensor, copy in self._back:
            tensor.detach().copy_(copy)
        self._back.clear()
        return None if wait else Work(None, outputs)

    def _contiguous(self, tensor: torch.Tensor) -> torch.Tensor:
        self._check(tensor)
        if _is_what_it_says(tensor):
            return tensor
        return tensor.detach().resolve_conj().resolve_neg().contiguous()

    def _check(self, tensor: torch.Tensor) -> None:
        refuse_what_has_no_memory(tensor)
        if tensor.device != self._device.device:
            raise InvalidCall(
                f"tensors of one call must be on one device, not on {self._device.device} and {tensor.device}"
            )


def _is_what_it_says(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory holds its values, in order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


class DeviceWork(Work):
    """An operation on the device."""

    def __init__(self, native: DeviceTicket, outputs: list[torch.Tensor], device: Device) -> None:
        super().__init__(native.ticket, outputs)
        self._native = native
        self._device = device
        # A GPU that took no more orders when the operation had ended.
        self._late: Exception | None = None

    def exception(self) -> BaseException | None:
        """What it ended with, None if well or under way."""
        return self._late or super().exception()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Put the current stream behind the operation, and raise what went wrong."""
        super().wait(timeout)
        self._device.order(self._native)
        return True

    def _settle(self) -> None:
        try:
            with self._device.aside():
                if self.exception() is None:
                    self._device.order(self._native)
                super()._settle()
        except Exception as error:  # whoever waits gets it
            self._late = error
            if not self._settled.is_set():
                super()._settle()
