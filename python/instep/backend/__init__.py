"""`torch.distributed` on instep's collectives: `init_process_group(backend="instep")`.

With torch 2.14 and later there is nothing to import; older torch, down to 2.8, needs `import instep` before.

    torch.distributed.init_process_group(backend="instep")
    cpu_group = torch.distributed.new_group(backend="instep")             # beside others
    torch.distributed.init_process_group(backend="cpu:instep,cuda:nccl")  # torch 2.14 and later

What older torch does not have: other backends in the same group (a CUDA tensor is refused then), `monitored_barrier`
(call it on the group itself), `split_group`. What none has on this backend: `DistributedDataParallel`'s private hook
`_register_builtin_comm_hook(FP16_COMPRESS)`; `fp16_compress_hook` does the same.

CUDA tensors travel through the host's memory.

Environment, read whenever a group is made:

    INSTEP_SINGLE_COPY=0     long messages are sent also where ranks may read each other's memory
    INSTEP_LANES=1           threads of a rank that share a large tensor in a host; up to four unless given
    INSTEP_NETWORK_LANES=1   the same between hosts, with a connection for each thread
    INSTEP_TRANSPORT=tcp     TCP also between ranks of one host; otherwise only if they do not all share memory
    INSTEP_SOCKET_IFNAME=eth0  the network interfaces to be reached at, with commas between; all unless given
    INSTEP_SECRET=…          what ranks of other hosts must know to be let in; set by `instep run` where you do not
    INSTEP_ENCRYPT=1         what goes to ranks of other hosts is encrypted; on all nodes, or on none
    INSTEP_ORDER=canonical   sums in the order of ranks whatever the hosts: the same bits, more bytes between hosts
"""

from __future__ import annotations

from datetime import timedelta

from torch._C._distributed_c10d import ProcessGroup, Store
from torch.distributed import Backend

from instep import _registration
from instep.backend.groups import link_of

__all__ = ["reconfigure", "register"]


def register(name: str = "instep") -> None:
    """Make the backend known to torch under this name. Does nothing the second time."""
    _registration.register(name, Backend)


def reconfigure(
    group: ProcessGroup,
    store: Store,
    rank: int,
    world_size: int,
    generation: int,
    *,
    timeout: timedelta | None = None,
) -> int | None:
    """Give a group other peers, in place: whoever holds it, DDP say, goes on with the same object.

    Every rank of the new group calls this with the same store and the same generation, which must be higher than the
    one before (a new group has 0). What is under way is aborted first. After an error the group is not connected and
    can be reconfigured again.

    Gives the number of operations of the generation before that every surviving rank had completed, or None if nobody
    survived it. torch's own records, such as `dist.get_world_size()`, stay as they were.
    """
    link = link_of(group)
    seconds = timeout.total_seconds() if timeout is not None else link.seconds
    return link.reconfigure(store, rank, world_size, generation, seconds)
