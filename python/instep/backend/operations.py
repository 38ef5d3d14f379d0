"""What torch calls on a process group or backend, in all the forms in which it and its users call it.

Torch renamed some methods in 2.13; both names are here. Options carry `timeout` (negative: the group's) and `asyncOp`:
where it is False nobody looks at the result, so the operation runs on the caller's thread and None comes back.
Without options, a tensor may stand in place of the list of one, and `op`, `root` and `timeout` in place of the options.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, Protocol, TypeVar

import torch
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from instep._native import DeviceGroup, Operation
from instep.backend import sparse
from instep.backend.device import DeviceStaging
from instep.backend.link import Link
from instep.backend.monitor import monitored_barrier
from instep.backend.tensors import (
    REDUCIBLE,
    Memory,
    Staging,
    is_plain,
    movable,
    parts,
    reducible,
    reduction,
    rows,
)
from instep.backend.work import Transfer, Work
from instep.errors import InvalidCall

Tensor = torch.Tensor


class Terms(Protocol):
    """What all options of torch have."""

    timeout: timedelta
    asyncOp: bool  # torch's name


_Options = TypeVar("_Options", bound=Terms)

# What torch calls in its options what callers give instead of them.
_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


def _single(tensors: Tensor | Sequence[Tensor], what: str, *, instead: Tensor | None = None) -> Tensor:
    """The one tensor of a call: given by its own name, alone, or as a list of one."""
    if instead is not None:
        return instead
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise InvalidCall(f"{what} takes one tensor, not {len(tensors)}")
    return tensors[0]


def _list(tensors: Sequence[Tensor] | Sequence[Sequence[Tensor]], what: str) -> Sequence[Tensor]:
    """The one list of tensors of a call, which may stand in a list of its own or be missing."""
    if not tensors:
        return []
    if isinstance(tensors[0], Tensor):
        return tensors  # type: ignore[return-value]
    if len(tensors) != 1:
        raise InvalidCall(f"{what} takes one list of tensors, not {len(tensors)}")
    return tensors[0]


class Operations:
    """The collectives of a group, over its `Link`; for subclasses that also derive from a class of torch."""

    _link: Link

    # How an operation begins.

    def _begin(self, operations: list[Operation], staging: Staging, outputs: list[Tensor], terms: Terms) -> Work | None:
        """Run the operations, or queue them if the caller wants to go on; one after the other, nothing in between."""
        link = self._link
        link.sequence += 1
        seconds = self._seconds(terms.timeout)
        if isinstance(staging, DeviceStaging):
            return staging.begin(operations, outputs, seconds, wait=not terms.asyncOp)
        after = staging.copy_back if staging.copies_back else None
        if len(operations) == 1:
            if terms.asyncOp:
                return Work(link.native.submit(operations[0], seconds, staging.keep), outputs, after)
            link.native.run(operations[0], seconds)
        else:
            ticket = link.native.submit_together(operations, seconds, staging.keep)
            if terms.asyncOp:
                return Work(ticket, outputs, after)
            ticket.wait()
        if after is not None:
            after()
        return None

    def _staging(self, tensor: Tensor, reduce: int | None = None) -> Staging:
        """Where the tensors of an operation travel, told by one of them: all ranks come to the same conclusion."""
        if tensor.is_cuda:
            code = REDUCIBLE.get(tensor.dtype)
            if reduce is None or (code is not None and DeviceGroup.can_reduce(code, reduce)):
                device = self._link.device(tensor.device)
                if device is not None:
                    return DeviceStaging(device)
        return Staging()

    def _seconds(self, timeout: timedelta | None) -> float:
        """How long an operation may take."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        return seconds if seconds > 0 else self._link.seconds

    # Reductions.

    def allreduce(
        self,
        tensors: Tensor | Sequence[Tensor] = (),
        opts: AllreduceOptions | ReduceOp | None = None,
        timeout: timedelta | None = None,
        *,
        op: ReduceOp | None = None,
        tensor: Tensor | None = None,
    ) -> Work | None:
        """Every rank gets the reduction of all ranks' tensors, in place."""
        terms = _terms(AllreduceOptions, opts, "op", op=op, timeout=timeout)
        one = _single(tensors, "all_reduce", instead=tensor)
        index, factor = reduction(terms.reduceOp)
        if is_plain(one):
            # What training does all day: no detour.
            code = REDUCIBLE.get(one.dtype)
            if code is None:
                code = reducible(one, index)
            operation = Operation.all_reduce(one.data_ptr(), one.nbytes, code, index, factor)
            link = self._link
            link.sequence += 1
            limit = terms.timeout
            seconds = link.seconds if limit.days < 0 else self._seconds(limit)
            if terms.asyncOp:
                return Work(link.native.submit(operation, seconds, one), [one])
            link.native.run(operation, seconds)
            return None
        if one.layout is torch.sparse_coo:
            sparse.all_reduce(self._link, one, index, self._seconds(terms.timeout))
            return Work(None, [one])
        staging = self._staging(one, index)
        operation = Operation.all_reduce(*staging.update(one), reducible(one, index), index, factor)
        return self._begin([operation], staging, [one], terms)

    def allreduce_coalesced(
        self, tensors: Sequence[Tensor], opts: AllreduceCoalescedOptions | None = None
    ) -> Work | None:
        """As `allreduce`, of several tensors at once."""
        if opts is None:
            opts = AllreduceCoalescedOptions()
        index, factor = reduction(opts.reduceOp)
        staging = self._staging(tensors[0], index) if tensors else Staging()
        operations = [
            Operation.all_reduce(*staging.update(tensor), reducible(tensor, index), index, factor) for tensor in tensors
        ]
        return self._begin(operations, staging, list(tensors), opts)

    def reduce(
        self,
        tensors: Tensor | Sequence[Tensor] = (),
        opts: ReduceOptions | int | None = None,
        op: ReduceOp | None = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
        tensor: Tensor | None = None,
    ) -> Work | None:
        """The root gets the reduction of all ranks' tensors."""
        terms = _terms(ReduceOptions, opts, "root", op=op, root=root, timeout=timeout)
        one = _single(tensors, "reduce", instead=tensor)
        index, factor = reduction(terms.reduceOp)
        root = self._root(terms.rootRank)
        staging = self._staging(one, index)
        memory = staging.update(one) if root == self._link.rank else staging.read(one)
        operation = Operation.reduce(memory, reducible(one, index), index, root, factor)
        return self._begin([operation], staging, [one], terms)

    def reduce_scatter(
        self,
        output_tensors: Tensor | Sequence[Tensor] = (),
        input_tensors: Sequence[Tensor] | Sequence[Sequence[Tensor]] = (),
        opts: ReduceScatterOptions | ReduceOp | None = None,
        timeout: timedelta | None = None,
        *,
        op: ReduceOp | None = None,
        output: Tensor | None = None,
        input: Sequence[Tensor] | None = None,  # noqa: A002  # torch's name for it
    ) -> Work | None:
        """Every rank gets the reduction of its entry of all ranks' lists."""
        terms = _terms(ReduceScatterOptions, opts, "op", op=op, timeout=timeout)
        result = _single(output_tensors, "reduce_scatter", instead=output)
        given = _list(input if input is not None else input_tensors, "reduce_scatter")
        index, factor = reduction(terms.reduceOp)
        movable([result, *given])
        staging = self._staging(result, index)
        inputs = [staging.read(tensor) for tensor in given]
        operation = Operation.reduce_scatter(inputs, staging.write(result), reducible(result, index), index, factor)
        return self._begin([operation], staging, [result], terms)

    def reduce_scatter_single(
        self,
        outputTensor: Tensor,  # torch's names
        inputTensor: Tensor,
        opts: ReduceScatterOptions | None = None,
    ) -> Work | None:
        """Every rank gets the reduction of its part of all ranks' tensors."""
        return self.reduce_scatter_single_coalesced([outputTensor], [inputTensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: ReduceScatterOptions | None = None
    ) -> Work | None:
        """As `reduce_scatter_single`, of several tensors at once."""
        if opts is None:
            opts = ReduceScatterOptions()
        index, factor = reduction(opts.reduceOp)
        staging = self._staging(outputs[0], index) if outputs else Staging()
        operations = []
        for output, given in _pairs(outputs, inputs):
            movable([output, given])
            cut = parts(given, staging.read(given), output, self._link.size, "the input")
            operations.append(
                Operation.reduce_scatter(cut, staging.write(output), reducible(output, index), index, factor)
            )
        return self._begin(operations, staging, list(outputs), opts)

    # Moves.

    def broadcast(
        self,
        tensors: Tensor | Sequence[Tensor] = (),
        opts: BroadcastOptions | int | None = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
        tensor: Tensor | None = None,
    ) -> Work | None:
        """Every rank gets the root's tensor."""
        terms = _terms(BroadcastOptions, opts, "root", root=root, timeout=timeout)
        one = _single(tensors, "broadcast", instead=tensor)
        root = self._root(terms.rootRank)
        staging = self._staging(one)
        memory = staging.read(one) if root == self._link.rank else staging.write(one)
        return self._begin([Operation.broadcast(memory, movable([one]), root)], staging, [one], terms)

    def allgather(
        self,
        output_tensors: Sequence[Tensor] | Sequence[Sequence[Tensor]] = (),
        input_tensors: Tensor | Sequence[Tensor] = (),
        opts: AllgatherOptions | timedelta | None = None,
        *,
        timeout: timedelta | None = None,
        input_tensor: Tensor | None = None,
    ) -> Work | None:
        """Every rank gets the tensors of all, which may differ in size."""
        terms = _terms(AllgatherOptions, opts, "timeout", timeout=timeout)
        given = _single(input_tensors, "all_gather", instead=input_tensor)
        outputs = _list(output_tensors, "all_gather")
        staging = self._staging(given)
        return self._begin([self._gather_all(staging, outputs, given)], staging, list(outputs), terms)

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[Tensor]],
        input_list: Sequence[Tensor],
        opts: AllgatherOptions | None = None,
    ) -> Work | None:
        """As `allgather`, of several tensors at once; `output_lists[rank][i]` is that rank's `input_list[i]`."""
        staging = self._staging(input_list[0]) if input_list else Staging()
        operations = [
            self._gather_all(staging, [outputs[place] for outputs in output_lists], given)
            for place, given in enumerate(input_list)
        ]
        flat = [tensor for outputs in output_lists for tensor in outputs]
        return self._begin(operations, staging, flat, opts if opts is not None else AllgatherOptions())

    def _gather_all(self, staging: Staging, outputs: Sequence[Tensor], given: Tensor) -> Operation:
        code = movable([given, *outputs])
        source = staging.read(given)
        targets = [staging.write(output) for output in outputs]
        if any(length != source[1] for _, length in targets) and len(targets) == self._link.size:
            # Every rank sees the same sizes, so every rank comes to this conclusion.
            return Operation.all_to_all([source] * self._link.size, targets, code)
        return Operation.all_gather(source, targets, code)

    def all_gather_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002  # torch's name for it
        opts: AllgatherOptions | None = None,
    ) -> Work | None:
        """Every rank gets the tensors of all, one after the other in one tensor."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: AllgatherOptions | None = None
    ) -> Work | None:
        """As `all_gather_single`, of several tensors at once."""
        staging = self._staging(inputs[0]) if inputs else Staging()
        operations = []
        for output, given in _pairs(outputs, inputs):
            code = movable([output, given])
            cut = parts(output, staging.write(output), given, self._link.size, "the output")
            operations.append(Operation.all_gather(staging.read(given), cut, code))
        return self._begin(operations, staging, list(outputs), opts if opts is not None else AllgatherOptions())

    def gather(
        self,
        output_tensors: Sequence[Tensor] | Sequence[Sequence[Tensor]] = (),
        input_tensors: Tensor | Sequence[Tensor] = (),
        opts: GatherOptions | int | None = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
        input_tensor: Tensor | None = None,
    ) -> Work | None:
        """The root gets the tensors of all."""
        terms = _terms(GatherOptions, opts, "root", root=root, timeout=timeout)
        given = _single(input_tensors, "gather", instead=input_tensor)
        outputs = _list(output_tensors, "gather")
        root = self._root(terms.rootRank)
        staging = self._staging(given)
        source = staging.read(given)
        targets = [staging.write(output) for output in outputs] if root == self._link.rank else []
        operation = Operation.gather(source, targets, movable([given, *outputs]), root)
        return self._begin([operation], staging, list(outputs), terms)

    def gather_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002  # torch's name for it
        opts: GatherOptions | None = None,
    ) -> Work | None:
        """The root gets the tensors of all, one after the other in one tensor."""
        if opts is None:
            opts = GatherOptions()
        root = self._root(opts.rootRank)
        staging = self._staging(input)
        source = staging.read(input)
        targets: list[Memory] = []
        code = movable([input])
        if root == self._link.rank:
            code = movable([output, input])
            targets = parts(output, staging.write(output), input, self._link.size, "the output")
        return self._begin([Operation.gather(source, targets, code, root)], staging, [output], opts)

    def scatter(
        self,
        output_tensors: Tensor | Sequence[Tensor] = (),
        input_tensors: Sequence[Tensor] | Sequence[Sequence[Tensor]] = (),
        opts: ScatterOptions | int | None = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
        output_tensor: Tensor | None = None,
    ) -> Work | None:
        """Every rank gets its entry of the root's list."""
        terms = _terms(ScatterOptions, opts, "root", root=root, timeout=timeout)
        output = _single(output_tensors, "scatter", instead=output_tensor)
        given = _list(input_tensors, "scatter")
        root = self._root(terms.rootRank)
        staging = self._staging(output)
        sources = [staging.read(tensor) for tensor in given] if root == self._link.rank else []
        operation = Operation.scatter(sources, staging.write(output), movable([output, *given]), root)
        return self._begin([operation], staging, [output], terms)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002  # torch's name for it
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: AllToAllOptions | timedelta | None = None,
        *,
        timeout: timedelta | None = None,
    ) -> Work | None:
        """Every rank gets its rows of all ranks' tensors; without split sizes all get as many."""
        terms = _terms(AllToAllOptions, opts, "timeout", timeout=timeout)
        size = self._link.size
        staging = self._staging(output)
        sources = rows(input, staging.read(input), input_split_sizes, size, "the input")
        targets = rows(output, staging.write(output), output_split_sizes, size, "the output")
        operation = Operation.all_to_all(sources, targets, movable([output, input]))
        return self._begin([operation], staging, [output], terms)

    def alltoall(
        self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Tensor], opts: AllToAllOptions | None = None
    ) -> Work | None:
        """Every rank gets its entry of all ranks' lists; sizes may differ from pair to pair."""
        staging = self._staging(output_tensors[0]) if output_tensors else Staging()
        sources = [staging.read(tensor) for tensor in input_tensors]
        targets = [staging.write(tensor) for tensor in output_tensors]
        code = movable([*input_tensors, *output_tensors])
        operation = Operation.all_to_all(sources, targets, code)
        return self._begin([operation], staging, list(output_tensors), opts if opts is not None else AllToAllOptions())

    # One to one.

    def send(
        self,
        tensors: Tensor | Sequence[Tensor],
        dstRank: int,  # torch's names
        tag: int = 0,
    ) -> Work:
        """Send a tensor to one rank."""
        one = _single(tensors, "send")
        staging = Staging()
        memory = staging.read(one)
        link = self._link
        return Transfer(link.native.send(memory, dstRank, tag, link.seconds, staging.keep), [one])

    def recv(
        self,
        tensors: Tensor | Sequence[Tensor],
        srcRank: int,
        tag: int = 0,
    ) -> Work:
        """Receive a tensor from one rank."""
        return self._receive(_single(tensors, "recv"), srcRank, tag)

    def recv_anysource(self, tensors: Tensor | Sequence[Tensor], tag: int = 0) -> Work:
        """Receive a tensor from whoever sends first; `source_rank()` of the result says who."""
        return self._receive(_single(tensors, "recv"), None, tag)

    def _receive(self, one: Tensor, source: int | None, tag: int) -> Work:
        staging = Staging()
        memory = staging.write(one)
        link = self._link
        ticket = link.native.receive(memory, source, tag, link.seconds, staging.keep)
        return Transfer(ticket, [one], staging.copy_back if staging.copies_back else None)

    # Barriers.

    def barrier(
        self, opts: BarrierOptions | timedelta | None = None, *, timeout: timedelta | None = None
    ) -> Work | None:
        """Done when every rank has come."""
        terms = _terms(BarrierOptions, opts, "timeout", timeout=timeout)
        return self._begin([Operation.barrier()], Staging(), [], terms)

    def monitored_barrier(
        self, timeout: timedelta | BarrierOptions | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Return when every rank has come; otherwise name those that have not, and leave the group usable."""
        limit = timeout.timeout if isinstance(timeout, BarrierOptions) else timeout
        seconds = limit.total_seconds() if limit is not None else -1.0
        monitored_barrier(self._link, self._link.seconds if seconds < 0 else seconds, wait_all_ranks)

    def _root(self, root: int) -> int:
        if not 0 <= root < self._link.size:
            raise InvalidCall(f"root {root} is not one of the {self._link.size} ranks of the group")
        return root

    # The names before torch 2.13, and those that C++ asks for.

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    gather_into_tensor = gather_single
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    recvAnysource = recv_anysource
    monitoredBarrier = monitored_barrier


def _pairs(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    if len(outputs) != len(inputs):
        raise InvalidCall(f"{len(outputs)} outputs and {len(inputs)} inputs were given; the numbers must match")
    return list(zip(outputs, inputs, strict=True))


def _terms(
    kind: type[_Options],
    given: object,
    first: Literal["op", "root", "timeout"],
    *,
    op: object = None,
    root: int | None = None,
    timeout: timedelta | None = None,
) -> _Options:
    """The options of a call: given as such, or made of `op`, `root` and `timeout`.

    Torch's overloads take one of the three in the place of the options; `first` says which it is for this operation.
    """
    if isinstance(given, kind):
        return given
    values = {"op": op, "root": root, "timeout": timeout}
    if values[first] is None:
        values[first] = given
    options = kind()
    for name, value in values.items():
        if value is not None:
            setattr(options, _FIELDS[name], value)
    return options
