"""Batches in an order that can be taken up anywhere.

Which samples a batch has depends on (seed, epoch, batch, rank) alone, and so do the random numbers that it is loaded
with: a process that starts in the middle of an epoch gets the batches that the one before it would have got. Samplers
that draw their whole order at once, as torch's own do, are seeded and skipped; of others the order is written down when
the epoch begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from instep.elastic.randomness import derive, seed_all
from instep.errors import SessionMisuse

# What a body gets.
Batch: TypeAlias = Any
# A data set, or what one gives: whatever the script has.
_Anything: TypeAlias = Any
# A batch as the loader's workers get it: the seed to load it with, and what the sampler chose.
_Choice = tuple[int, _Anything]


class Source(Protocol):
    """Where batches come from."""

    def __len__(self) -> int:
        """How many batches an epoch has."""

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch, from one on."""

    def batch(self, epoch: int, place: int) -> Batch:
        """One batch, again."""


def source(data: object, seed: int, rank: int) -> Source:
    """Where the batches of a loader, or of a sequence of batches, come from."""
    if isinstance(data, DataLoader):
        return _Loader(data, seed, rank)
    if isinstance(data, Dataset):
        raise SessionMisuse(f"{type(data).__name__} is a data set\nhint: give session.batches() a DataLoader of it")
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return _Sequence(data, seed, rank)
    raise SessionMisuse(
        f"{type(data).__name__} has no length and no order, so nobody can begin in the middle of it\n"
        "hint: give session.batches() a DataLoader of a data set with a length, or a sequence of batches"
    )


class _Sequence:
    """Batches that are there, by their number."""

    def __init__(self, data: _Anything, seed: int, rank: int) -> None:
        self._data = data
        self._seed = seed
        self._rank = rank

    def __len__(self) -> int:
        return len(self._data)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        return (self.batch(epoch, place) for place in range(start, len(self._data)))

    def batch(self, epoch: int, place: int) -> Batch:
        seed_all(derive("batch", self._seed, epoch, place, self._rank))
        return self._data[place]


class _Loader:
    """Batches of a `DataLoader`, which says what to load and how; the order is ours."""

    def __init__(self, loader: DataLoader[Any], seed: int, rank: int) -> None:
        if isinstance(loader.dataset, IterableDataset):
            raise SessionMisuse(
                f"{type(loader.dataset).__name__} is an iterable data set: it cannot be taken up in the middle\n"
                "hint: use a data set with __len__ and __getitem__"
            )
        if loader.batch_sampler is None:
            raise SessionMisuse("the DataLoader has batch_size=None\nhint: give it a batch size or a batch_sampler")
        self._loader = loader
        self._sampler: Any = loader.batch_sampler
        self._seed = seed
        self._rank = rank

    def __len__(self) -> int:
        return len(self._sampler)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        return self._load(_Choices(lambda: self._choices(epoch, start)))

    def batch(self, epoch: int, place: int) -> Batch:
        one = itertools.islice(self._choices(epoch, place), 1)
        return next(self._load(_Choices(lambda: one), workers=False))

    def _choices(self, epoch: int, start: int) -> Iterator[_Choice]:
        """What the sampler chooses for an epoch, from a batch on."""
        seed = derive("order", self._seed, epoch, self._rank)
        sampler: _Anything = getattr(self._sampler, "sampler", None)
        for each in (self._sampler, sampler):
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)
        if isinstance(getattr(sampler, "generator", None), torch.Generator):
            sampler.generator.manual_seed(seed)
        seed_all(seed)
        chosen: Any = iter(self._sampler)
        if not _draws_at_once(self._sampler):
            chosen = iter(list(chosen))
        for place, choice in enumerate(itertools.islice(chosen, start, None), start):
            yield derive("batch", self._seed, epoch, place, self._rank), choice

    def _load(self, choices: _Choices, *, workers: bool = True) -> Iterator[Batch]:
        like = self._loader
        several = workers and like.num_workers > 0
        return iter(
            DataLoader(
                _Seeded(like.dataset),
                batch_sampler=choices,  # type: ignore[arg-type]  # what it yields goes to `_Seeded`
                num_workers=like.num_workers if several else 0,
                collate_fn=like.collate_fn,
                pin_memory=like.pin_memory,
                timeout=like.timeout if several else 0,
                worker_init_fn=like.worker_init_fn,
                multiprocessing_context=like.multiprocessing_context if several else None,
                prefetch_factor=like.prefetch_factor if several else None,
            )
        )


def _draws_at_once(batches: object) -> bool:
    """Whether a sampler has drawn its whole order when the first batch is asked for."""
    known = (DistributedSampler, RandomSampler, SequentialSampler)
    return type(batches) is BatchSampler and type(batches.sampler) in known


class _Choices:
    """A sampler of batches, for torch's loader."""

    def __init__(self, begin: Callable[[], Iterator[_Choice]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[_Choice]:
        return self._begin()


class _Seeded(Dataset[Any]):
    """A data set whose batches are loaded with random numbers of their own."""

    def __init__(self, dataset: _Anything) -> None:
        self._dataset = dataset

    def __getitems__(self, choice: _Choice) -> Sequence[Any]:
        seed, chosen = choice
        seed_all(seed)
        several = getattr(self._dataset, "__getitems__", None)
        if several is not None:
            return several(chosen)  # type: ignore[no-any-return]
        return [self._dataset[each] for each in chosen]

    def __getitem__(self, index: int) -> _Anything:
        return self._dataset[index]
