"""Sums of sparse tensors (COO): all ranks' indices and values are gathered, and added up on every rank.

The ranks first tell each other how many entries they have, so this takes three collectives, on the caller's thread even
if it asked for an operation in the background.
"""

from __future__ import annotations

import math

import torch

from instep._native import REDUCTIONS, Operation
from instep.backend.link import Link
from instep.backend.tensors import Memory, Staging, movable, parts
from instep.errors import InvalidCall


def all_reduce(link: Link, tensor: torch.Tensor, reduce: int, seconds: float) -> None:
    """Replace the tensor by the coalesced sum, or average, of all ranks' tensors."""
    name = REDUCTIONS[reduce]
    if name not in ("SUM", "AVG"):
        raise InvalidCall(f"{name} is not defined for sparse tensors; use SUM or AVG")
    link.sequence += 1
    own = tensor.detach().coalesce()
    # Sizes first: of equal length on every rank if the tensors have equally many dimensions, else a mismatch by name.
    form = torch.tensor([own.sparse_dim(), own.dense_dim(), *own.shape, own._nnz()], dtype=torch.int64)
    forms = torch.empty(link.size, form.numel(), dtype=torch.int64)
    staging = Staging()
    cut = parts(forms, staging.write(forms), form, link.size, "the sizes")
    link.native.run(Operation.all_gather(staging.read(form), cut, movable([form])), seconds)
    for rank, other in enumerate(forms):
        if not torch.equal(other[:-1], form[:-1]):
            raise InvalidCall(
                f"sparse tensors must have one shape: rank {link.rank} has {_shape(form)}, rank {rank} {_shape(other)}"
            )
    counts = [int(other[-1]) for other in forms]
    indices = _gather(link, own.indices().cpu().t().contiguous(), counts, seconds)
    values = _gather(link, own.values().cpu().contiguous(), counts, seconds)
    total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False).coalesce()
    if name == "AVG":
        total = total / link.size
    with torch.no_grad():
        tensor.copy_(total.to(tensor.device))


def _shape(form: torch.Tensor) -> str:
    sparse_dim, dense_dim, *shape = form[:-1].tolist()
    return f"{tuple(shape)} with {sparse_dim} sparse and {dense_dim} dense dimensions"


def _gather(link: Link, own: torch.Tensor, counts: list[int], seconds: float) -> torch.Tensor:
    """All ranks' rows, one after the other; each has as many as `counts` says."""
    gathered = own.new_empty((sum(counts), *own.shape[1:]))
    staging = Staging()
    address, _ = staging.write(gathered)
    row = math.prod(own.shape[1:]) * own.element_size()
    targets: list[Memory] = []
    for count in counts:
        targets.append((address, count * row))
        address += count * row
    source = staging.read(own)
    link.native.run(Operation.all_to_all([source] * link.size, targets, movable([own])), seconds)
    return gathered
