"""The objects torch gets: a process group, and a backend.

**`Group`** is a `ProcessGroup` of torch in Python, with a backend registered in it for its devices. `torch.distributed`
calls it directly, without torch's dispatcher in between, and callers get our `Work` as it is. It is what
`backend="instep"` makes.

**`GroupBackend`** is a `Backend` of torch in Python, which torch 2.14 and later allow. Torch keeps it in a process
group of its own, beside the backends of other devices: `backend="cpu:instep,cuda:nccl"`. Its `Work` reaches callers
inside an object of torch that only knows `wait()` and `get_future()`. It also is the backend registered in a `Group`;
older torch gets a placeholder there, which nobody calls.

Which of the two a group becomes is decided by `other_backends`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore, ProcessGroup, Store

from instep._native import Operation
from instep._registration import DEVICES, names
from instep.backend import backward, compiler, link, monitor, operations, sparse, tensors, work
from instep.backend.link import Link
from instep.backend.operations import Operations
from instep.errors import CollectiveError, InvalidCall

# Python can derive from torch's Backend since 2.14; before, it cannot be made from Python at all.
HAS_BACKEND_CLASS = "rank" in (c10d.Backend.__init__.__doc__ or "")
_CUSTOM = ProcessGroup.BackendType.CUSTOM
# Before, DDP waits for ever for the `Work` that C++ got from us.
OLDEST_TORCH = (2, 8)


class CreationOptions(Protocol):
    """What torch says about a group that it is making."""

    store: Store
    group_rank: int
    group_size: int
    timeout: timedelta
    group_id: str
    global_ranks_in_group: list[int]
    process_group: ProcessGroup  # since torch 2.14
    enable_reconfigure: bool  # since torch 2.14


class SplitOptions(Protocol):
    """What torch says about a part of a group that it is making."""

    _timeout: timedelta
    group_name: str


class ReconfigureOptions(Protocol):
    """What torch says to a group that is to have other peers."""

    uuid: int
    handles: set[str] | list[str]
    timeout: timedelta | None


class _Member(Operations):
    """What group and backend have in common besides the operations."""

    _name: str

    def getBackendName(self) -> str:  # C++ asks for this name
        """The name it was registered under."""
        return self._name

    def rank(self) -> int:
        """This rank's number in the group."""
        return self._link.rank

    def size(self) -> int:
        """How many ranks there are."""
        return self._link.size

    def getRank(self) -> int:  # C++ asks by this name, and would else know the group only as it was made
        """This rank's number in the group."""
        return self._link.rank

    def getSize(self) -> int:  # DDP's average divides by it
        """How many ranks there are."""
        return self._link.size

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long operations may take from now on."""
        self._link.seconds = timeout.total_seconds()

    def shutdown(self) -> None:
        """Leave the group: peers that still wait for this rank get an error."""
        self._link.close()

    def abort(self) -> None:
        """Fail everything under way, here and on the peers. Returns at once."""
        self._link.abort()

    def get_error(self) -> c10d.ErrorType:
        """Whether the group is aborted, in torch's terms."""
        failure = self._link.native.failure()
        if failure is None:
            return c10d.ErrorType.SUCCESS
        return c10d.ErrorType.TIMEOUT if type(failure).__name__ == "CollectiveTimeout" else c10d.ErrorType.COMM_ERROR

    def get_reconfigure_handle(self) -> str:
        """What this rank is called in the handles that `reconfigure` is given."""
        return self._link.handle

    def reconfigure(self, opts: ReconfigureOptions) -> work.Work:
        """Give the group other peers, in place. Returns when they are connected, or fails; hints change nothing."""
        self._link.regroup(opts.uuid, opts.handles, self._seconds(opts.timeout))
        return work.Work(None, [])

    def _get_sequence_number_for_group(self) -> int:
        return self._link.sequence

    def _set_sequence_number_for_group(self) -> None:
        """Torch asks for it when a group is made; ours starts at 0 everywhere."""

    def _split(self, store: Store, ranks: Sequence[int], timeout: timedelta | None, name: str) -> Link | None:
        """Connect a part of this group; None on ranks that are not in it."""
        if self._link.rank not in ranks:
            return None
        return Link(
            store,
            list(ranks).index(self._link.rank),
            len(ranks),
            timeout if timeout is not None else timedelta(seconds=self._link.seconds),
            name=name,
            global_ranks=[self._link.global_ranks[rank] if self._link.global_ranks else rank for rank in ranks],
        )


if HAS_BACKEND_CLASS:

    class GroupBackend(_Member, c10d.Backend):
        """A backend of torch, over one connection."""

        def __init__(self, link: Link, name: str, *, inside: bool = False) -> None:
            c10d.Backend.__init__(self, link.rank, link.size)
            self._link = link
            self._name = name
            # Whether it is the backend of a `Group`, which answers for its size.
            self._inside = inside

        def name(self) -> str:
            """The name it was registered under."""
            return self._name

        @property
        def options(self) -> c10d.Backend.Options:
            """What a split of the group starts from."""
            return c10d.Backend.Options(self._name, timedelta(seconds=self._link.seconds))

        def split(self, store: Store, ranks: Sequence[int], opts: SplitOptions) -> GroupBackend | None:
            """Connect a part of this group; None on ranks that are not in it."""
            link = self._split(store, ranks, opts._timeout, opts.group_name or "split")
            return None if link is None else GroupBackend(link, self._name)

        def get_reconfigure_handle(self) -> str:
            """What this rank is called in the handles that `reconfigure` is given."""
            self._check_reconfigurable()
            return super().get_reconfigure_handle()

        def reconfigure(self, opts: ReconfigureOptions) -> work.Work:
            """Give the group other peers, in place."""
            self._check_reconfigurable()
            return super().reconfigure(opts)

        def _check_reconfigurable(self) -> None:
            # The group asks `c10d::Backend` for rank and size, which are set when it is made and cannot be overridden.
            if not self._inside:
                raise InvalidCall(
                    f"a group that may have other backends than {self._name!r} cannot be reconfigured: torch keeps the "
                    f"rank and size that its backend was made with\nhint: init_process_group({self._name!r}), and a "
                    "group of its own for each other backend"
                )

        # Torch looks all of these up; one that is missing would be looked up for ever.
        supports_splitting = property(lambda _: True)
        supports_coalescing = property(lambda _: False)
        supports_shrinking = property(lambda _: False)
        supports_reconfigure = property(lambda self: self._inside)
        supports_window = property(lambda _: False)
        supports_tensor_alloc = property(lambda _: False)
        supports_completion_hooks = property(lambda _: False)
        supports_abort_hooks = property(lambda _: False)
        _supports_time_estimate = property(lambda _: False)


def _registered_backend(link: Link, name: str) -> c10d.Backend:
    """What `Group` has registered for its devices."""
    if HAS_BACKEND_CLASS:
        return GroupBackend(link, name, inside=True)
    from torch._C._distributed_c10d import FakeProcessGroup
    from torch.testing._internal.distributed import fake_pg  # noqa: F401  # loads the class below

    create = getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)
    return create(link.rank, link.size)


class Group(_Member, ProcessGroup):  # type: ignore[misc]  # torch does not type it
    """A process group of torch, over one connection."""

    def __init__(self, link: Link, name: str) -> None:
        try:
            ProcessGroup.__init__(self, link.store, link.rank, link.size)
        except TypeError:  # up to 2.13
            ProcessGroup.__init__(self, link.rank, link.size)
        self._link = link
        self._name = name
        backend = _registered_backend(link, name)
        for device in DEVICES:
            self._register_backend(torch.device(device), _CUSTOM, backend)
        self._set_default_backend(_CUSTOM)

    supports_reconfigure = property(lambda _: True)

    def name(self) -> str:
        """The name of the backend that the script asked for."""
        return self._name

    def _get_backend_name(self) -> str:
        return self._name

    def getBackendName(self) -> str:  # C++ asks for this name, and takes what is called gloo for an object of its own
        """The name it was registered under; ours in place of another backend's."""
        return self._name if self._name in names else "instep"

    def _begin(
        self,
        operations: list[Operation],
        staging: tensors.Staging,
        outputs: list[torch.Tensor],
        terms: operations.Terms,
    ) -> work.Work | None:
        for tensor in outputs:
            if not tensor.is_cpu:
                self._check_device(tensor.device.type)
        return super()._begin(operations, staging, outputs, terms)

    def _check_device(self, device: str) -> None:
        """Refuse a device that the group's configuration gives to another backend, which was then never made.

        With torch 2.14 and later this cannot happen, see `other_backends`; what it says is known only after the group
        has been made.
        """
        configured = dict(pair.split(":") for pair in dist.get_backend_config(self).split(","))
        if configured.get(device, self._name) not in {self._name, *names}:
            raise InvalidCall(
                f"torch {torch.__version__} cannot have {configured[device]!r} for {device} and {self._name!r} in one "
                f"group\nhint: init_process_group({configured[device]!r}) and new_group(backend={self._name!r}) for "
                "tensors on the CPU; torch 2.14 and later can"
            )

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> Group | None:
        """Make a group of some of these ranks, in this order; None on ranks that are not in it."""
        del opts, device_types  # the only option is the time limit, and all devices go through the host
        name = group_name or "split_" + "_".join(map(str, ranks))
        store = PrefixStore(f"{name}/", self._link.store)
        link = self._split(store, ranks, timeout, name)
        if link is None:
            return None
        group = Group(link, self._name)
        group._set_group_name(name)  # type: ignore[arg-type]  # a name like any other
        group._set_group_desc(group_desc or f"{self.group_desc}:split")
        return group


def other_backends(process_group: ProcessGroup | None, device: str) -> bool:
    """Whether a group that torch is making will, or may, have backends beside ours.

    Torch asks for one backend per device, in the order of the configuration, and says neither for which device nor what
    the others are; it does hand over the group so far. A `Group` would take its place and the other backends would
    never be made, so in doubt the answer is yes. Certain are `backend="instep"` and `backend="cpu:instep"`: the first
    call is for the CPU, nothing is registered yet, and the default backend, which is the accelerator's if there is one,
    is a custom one.
    """
    if process_group is None:
        return False  # before 2.14 there is no choice; see `Group._check_device`
    others = {
        name
        for name, kind in dist.Backend.backend_type_map.items()
        if kind == _CUSTOM and name not in names and name not in ("fake", "threaded", "undefined")
    }
    return bool(others or device != "cpu" or process_group._device_types or process_group.name() != "custom")


def create(opts: CreationOptions, name: str) -> ProcessGroup | c10d.Backend:
    """Make what torch asks for: called by `torch.distributed` for every group that we are a backend of."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH:
        raise CollectiveError(
            f"torch {torch.__version__} is too old for the instep backend: its C++ code loses the results of "
            "collectives written in Python\nhint: use torch 2.8 or later; the launcher and the store work with this one"
        )
    link = Link(
        opts.store,
        opts.group_rank,
        opts.group_size,
        opts.timeout,
        name=opts.group_id,
        global_ranks=opts.global_ranks_in_group,
        deferred=getattr(opts, "enable_reconfigure", False),
    )
    if other_backends(getattr(opts, "process_group", None), _device(opts.store)):
        return GroupBackend(link, name)
    return Group(link, name)


def _device(store: Store) -> str:
    """For which device torch asks, as the prefix of the store it gives us tells."""
    key = "instep/device"
    store.set(key, "")
    below = getattr(store, "underlying_store", None)
    for device in DEVICES:
        # The prefix is "cpu/", and a prefix store puts another slash behind it.
        if below is not None and any(below.check([f"{device}{slashes}{key}"]) for slashes in ("//", "/")):
            return device
    return "another"


def is_ours(group: ProcessGroup) -> bool:
    """Whether a group's collectives of CPU tensors are ours."""
    return isinstance(group, _Member) or isinstance(group._get_backend(torch.device("cpu")), _Member)


def link_of(group: object) -> Link:
    """The connection of a group made by us."""
    if isinstance(group, _Member):
        return group._link
    raise InvalidCall(f"{group} is not an instep group\nhint: create it with backend='instep'")


compiler.leave_alone(backward, link, monitor, operations, sparse, tensors, work, sys.modules[__name__])
