"""How a replacement gets its peers' state: every survivor sends a stripe of it.

The first survivor sends the skeleton, all small tensors and what is not compared in one message. The memory of large
tensors, one after the other, is cut into as many stripes as there are survivors; each sends its own straight from its
tensors into the replacement's. Every stripe is hashed by who sent it and by one other survivor, the small tensors by
all: the replacement compares, so that survivors whose state differs are noticed, and so is a byte that changed on its
way.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from instep._native import Ticket, digest
from instep.backend.link import Link
from instep.elastic import drill
from instep.elastic.trees import Path, Shape, Tree, flatten, memory_of, pack, unflatten, unpack
from instep.errors import CollectiveError

# Smaller tensors travel together.
SMALL = 64 << 10
# Tags of messages; scripts' own are not under way while ranks recover.
_HEAD, _LENGTH, _STRIPE, _DIGEST = ((1 << 62) + offset for offset in (0, 1, 2, 3))


class StateDiffers(CollectiveError):
    """What the ranks hold is not the same, so none of it can be handed on."""


@dataclass(frozen=True)
class Piece:
    """Part of a tensor's memory."""

    tensor: int
    start: int
    end: int


def stripes(sizes: Sequence[int], count: int) -> list[list[Piece]]:
    """Cut memory of these sizes, one after the other, into so many stripes of equal length."""
    total = sum(sizes)
    found: list[list[Piece]] = []
    for stripe in range(count):
        first, last = total * stripe // count, total * (stripe + 1) // count
        pieces, offset = [], 0
        for tensor, size in enumerate(sizes):
            start, end = max(first - offset, 0), min(last - offset, size)
            if start < end:
                pieces.append(Piece(tensor, start, end))
            offset += size
        found.append(pieces)
    return found


def send(link: Link, tree: object, own_too: object, to: Sequence[int], donors: Sequence[int]) -> None:
    """Give replacements the part of the state that is this rank's to give. Called by all donors.

    `own_too` may differ between them: the first donor's is sent.
    """
    drill.reached(drill.TRANSFER)
    own = donors.index(link.rank)
    skeleton, found = flatten(tree)
    tensors = {path: tensor.cpu().contiguous() for path, tensor in found.items()}
    large = [tensor for tensor in tensors.values() if tensor.nbytes > SMALL]
    small = {place: tensor for place, tensor in enumerate(tensors.values()) if tensor.nbytes <= SMALL}
    tickets: list[Ticket] = []
    keep: list[object] = [large]
    if own == 0:
        layout = [(path, Shape.of(tensor)) for path, tensor in tensors.items()]
        head = pack({"skeleton": pickle.dumps((skeleton, layout)), "small": small, "own_too": own_too})
        for peer in to:
            tickets += _send_bytes(link, head, peer, _HEAD, keep)
    cut = stripes([tensor.nbytes for tensor in large], len(donors))
    for peer in to:
        for piece in cut[own]:
            tickets.append(link.native.send(_memory(large, piece), peer, _STRIPE, link.seconds, keep))
    # That of the next one too: so two survivors vouch for every stripe.
    mine, after = _digest(large, cut[own]), (own + 1) % len(donors)
    theirs = _digest(large, cut[after]) if after != own else mine
    for peer in to:
        tickets += _send_bytes(link, mine + theirs + digest_of(small.values()), peer, _DIGEST, keep)
    for ticket in tickets:
        ticket.wait()


def receive(link: Link, own: object, donors: Sequence[int]) -> tuple[Tree, Tree]:
    """The donors' state, in this rank's own tensors where they fit, and what the first donor has sent with it."""
    head = unpack(_receive_bytes(link, donors[0], _HEAD))
    drill.reached(drill.TRANSFER)
    skeleton, layout = pickle.loads(head["skeleton"])  # from a rank of the same job
    tensors = _targets(layout, flatten(own)[1])
    for place, tensor in head["small"].items():
        tensors[place].copy_(tensor)
    large = [tensor for tensor in tensors if tensor.nbytes > SMALL]
    cut = stripes([tensor.nbytes for tensor in large], len(donors))
    tickets = [
        [link.native.receive(_memory(large, piece), donor, _STRIPE, link.seconds, large) for piece in pieces]
        for donor, pieces in zip(donors, cut, strict=True)
    ]

    def hashed(pieces: Sequence[Piece], arriving: Sequence[Ticket]) -> bytes:
        for ticket in arriving:
            ticket.wait()
        return _digest(large, pieces)

    # A stripe is hashed while others are under way.
    with ThreadPoolExecutor(len(donors)) as threads:
        hashes = threads.map(hashed, cut, tickets)
        digests = [_receive_bytes(link, donor, _DIGEST) for donor in donors]
        received = list(hashes)
    for place, ours in enumerate(received):
        before = (place - 1) % len(donors)
        if digests[place][:32] != digests[before][32:64] or digests[place][64:] != digests[before][64:]:
            raise StateDiffers(
                f"ranks {donors[before]} and {donors[place]} hold different weights or optimizer state\n"
                "hint: a model whose parameters differ between ranks cannot be recovered; look for what makes "
                "them differ"
            )
        if digests[place][:32] != ours:
            raise StateDiffers(f"what came from rank {donors[place]} is not what it sent")
    return unflatten(skeleton, tensors), head["own_too"]


def _targets(layout: Sequence[tuple[Path, Shape]], own: dict[Path, torch.Tensor]) -> list[torch.Tensor]:
    def target(path: Path, shape: Shape) -> torch.Tensor:
        mine = own.get(path)
        fits = mine is not None and mine.is_cpu and mine.is_contiguous() and Shape.of(mine) == shape
        return mine if fits and mine is not None else shape.empty()

    return [target(path, shape) for path, shape in layout]


def exchange(link: Link, data: bytes, to: int, source: int) -> bytes:
    """Send bytes to one rank and receive those of another, in a ring of which every rank is a part."""
    keep: list[object] = []
    tickets = _send_bytes(link, data, to, _HEAD, keep)
    received = _receive_bytes(link, source, _HEAD)
    for ticket in tickets:
        ticket.wait()
    return received


def send_bytes(link: Link, data: bytes, to: int) -> None:
    """Send bytes to one rank."""
    for ticket in _send_bytes(link, data, to, _HEAD, []):
        ticket.wait()


def receive_bytes(link: Link, source: int) -> bytes:
    """Receive what `send_bytes` has sent."""
    return _receive_bytes(link, source, _HEAD)


def _send_bytes(link: Link, data: bytes, to: int, tag: int, keep: list[object]) -> list[Ticket]:
    length = torch.tensor([len(data)])
    memory = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    keep += [length, memory]
    return [
        link.native.send((each.data_ptr(), each.nbytes), to, which, link.seconds, each)
        for each, which in ((length, _LENGTH), (memory, tag))
    ]


def _receive_bytes(link: Link, source: int, tag: int) -> bytes:
    length = torch.tensor([0])
    link.native.receive((length.data_ptr(), length.nbytes), source, _LENGTH, link.seconds, length).wait()
    memory = torch.empty(int(length.item()), dtype=torch.uint8)
    link.native.receive((memory.data_ptr(), memory.nbytes), source, tag, link.seconds, memory).wait()
    return memory_of(memory)


def _memory(tensors: Sequence[torch.Tensor], piece: Piece) -> tuple[int, int]:
    return tensors[piece.tensor].data_ptr() + piece.start, piece.end - piece.start


def _digest(tensors: Sequence[torch.Tensor], pieces: Sequence[Piece]) -> bytes:
    return digest([_memory(tensors, piece) for piece in pieces])


def digest_of(tensors: Iterable[torch.Tensor]) -> bytes:
    """A hash of tensors' values."""
    kept = [tensor.detach().cpu().contiguous() for tensor in tensors]
    return digest([(tensor.data_ptr(), tensor.nbytes) for tensor in kept])
