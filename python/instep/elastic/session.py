"""The loop of a training script, in a form in which a step can be done again.

A `for` cannot catch the error of its body, and a `with` cannot run its own again; together they can: `Session.step`
recovers and swallows the loss of a peer, and `Session.batches` then yields the same batch again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from instep import _ledger
from instep.backend import groups
from instep.elastic import body, data, drill, recovery
from instep.elastic.ballot import Decision
from instep.elastic.randomness import derive, seed_all
from instep.elastic.recovery import CannotRecover, Position, Recovery
from instep.elastic.replay import Replay
from instep.elastic.state import State, Stateful
from instep.errors import SessionMisuse

__all__ = ["CannotRecover", "Session"]


_Kind = TypeVar("_Kind")
_LOOPS = "hint: for epoch in session.epochs(10): for batch in session.batches(loader): ..."


class _Redo(Exception):  # no error: it leaves a step that is done again
    """The step is to be done again; it was recovered from."""


class Session:
    """See `instep.elastic`."""

    def __init__(
        self,
        model: torch.nn.Module | Sequence[torch.nn.Module],
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        scheduler: Stateful | Sequence[Stateful] = (),
        scaler: Stateful | None = None,
        state: Sequence[Stateful] = (),
        private: Sequence[Stateful] = (),
        seed: int = 0,
    ) -> None:
        """Take charge of a model and of what trains it.

        `state` is more that all ranks have alike and that changes after `optimizer.step()`, such as an average of the
        weights; `private` is what each rank has of its own. Both are objects with `state_dict` and `load_state_dict`.
        """
        optimizers = _several(optimizer, torch.optim.Optimizer)
        schedulers: list[Any] = list(scheduler) if isinstance(scheduler, (list, tuple)) else [scheduler]
        for each in (*schedulers, *([scaler] if scaler is not None else []), *state, *private):
            if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
                raise SessionMisuse(
                    f"{type(each).__name__} has no state_dict and load_state_dict, so it cannot be kept"
                )
        self._state = State(_several(model, torch.nn.Module), optimizers, schedulers, scaler, state, private)
        self._seed = seed
        self._position = Position()
        self._recovery: Recovery | None = None
        self._replay = Replay(self._state) if drill.replays() else None
        self._begun = False
        self._in_epochs = False
        # How often the body of the loop over epochs was entered, and in which of these batches were last taken.
        self._turn = 0
        self._taken: int | None = None
        # The body has a batch.
        self._offered = False
        self._in_step = False
        self._voted = False
        self._done = False
        self._redone = False
        # The batch that is next when this step is done.
        self._following = 0
        # An optimizer has changed weights in the last step.
        self._updated = True
        for each_optimizer in optimizers:
            each_optimizer.register_step_pre_hook(lambda *_: self._before_update())
        drill.watch(self._state.parameters(), optimizers)

    # What scripts ask.

    @property
    def epoch(self) -> int:
        """The epoch that the training is in, from 0."""
        return self._position.epoch

    @property
    def steps(self) -> int:
        """How many steps are done."""
        return self._position.steps

    @property
    def redo(self) -> bool:
        """Whether the step that was just left has to be done again: nothing that counts may follow it then."""
        return self._redone

    def state_dict(self) -> dict[str, int]:
        """How far the training is, for a checkpoint."""
        return {"epoch": self._position.epoch, "batch": self._position.batch, "steps": self._position.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where a checkpoint was made, before the loops begin."""
        if self._begun:
            raise SessionMisuse("the training has begun already\nhint: load the session's state before its loops")
        self._position = Position(int(state["epoch"]), int(state["batch"]), int(state["steps"]))

    # The loops.

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of so many."""
        self._begin()
        if self._in_epochs:
            raise SessionMisuse("session.epochs() was called twice\nhint: one loop over epochs, of all epochs")
        self._in_epochs = True
        while self._position.epoch < count:
            before = self._position.epoch
            self._turn += 1
            yield before
            if self._position.epoch == before:
                # The body has had no batches.
                self._end_epoch()

    def batches(self, data_source: object, *, accumulate: int = 1) -> Batches:
        """The batches that are left of the epoch, each until its step is done; lists of them with `accumulate`."""
        return Batches(self, self._turn, self._batches(data_source, accumulate))

    def _batches(self, data_source: object, accumulate: int) -> Iterator[Any]:
        self._begin()
        if self._taken == self._turn:
            raise SessionMisuse(
                "session.batches() was called a second time: a rank that is replaced could not find its place\n"
                + _LOOPS
            )
        self._taken = self._turn
        if accumulate < 1:
            raise SessionMisuse(f"accumulate is {accumulate}\nhint: a number of batches for each step, from 1")
        rank = dist.get_rank() if dist.is_initialized() else 0
        source = data.source(data_source, self._seed, rank)
        position = self._position
        if not position.opened:
            self._open_epoch(len(source))
        found = source.batches(position.epoch, position.batch)
        while position.batch < len(source):
            places = range(position.batch, min(position.batch + accumulate, len(source)))
            _ledger.switch(_ledger.DATA)
            chosen = self._load(found, len(places))
            _ledger.switch(_ledger.COMPUTE)
            self._done, self._following = False, places.stop
            while not self._done:
                self._redone = False
                versions = _versions(chosen)
                self._offered = True
                try:
                    yield chosen if accumulate > 1 else chosen[0]
                finally:
                    self._offered = False
                if self._in_step or not (self._done or self._redone):
                    raise SessionMisuse(
                        "the body has had a batch without a session.step()\n"
                        "hint: with session.step(): ... around each step; for evaluation, loop over the loader itself"
                    )
                if not self._done and _versions(chosen) != versions:
                    # The body has changed what it was given.
                    chosen = [source.batch(position.epoch, place) for place in places]
        self._end_epoch()

    def _load(self, found: Iterator[Any], count: int) -> list[Any]:
        try:
            return [next(found) for _ in range(count)]
        except Exception:
            self._failed()
            raise

    def step(self) -> Step:
        """Everything that one batch does, `optimizer.step()` included."""
        return Step(self)

    # The life of a step.

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        if recovery.is_wanted() and _can_recover():
            self._recovery = Recovery(self._state, self._position)
            self._recovery.begin()
        _ledger.begin_training(self._position.steps)

    def _enter(self) -> None:
        if self._in_step:
            raise SessionMisuse("session.step() inside session.step()\nhint: one for each batch")
        if not self._offered:
            raise SessionMisuse(
                "session.step() outside session.batches(): a rank that is replaced would train on other samples\n"
                "hint: for batch in session.batches(loader): ..."
            )
        if self._done:
            raise SessionMisuse(
                "a second session.step() for the same batch: a rank that is replaced in it would skip it\n"
                "hint: one step for each batch, with all of its optimizers"
            )
        self._in_step, self._voted, self._redone = True, False, False
        rank = dist.get_rank() if dist.is_initialized() else 0
        seed_all(derive("step", self._seed, self._position.steps, rank))
        if self._recovery is not None or self._replay is not None:
            body.check(sys._getframe(2))
            if not self._updated:
                self._state.check_gradients()
            self._state.remember()
        self._updated = False
        _ledger.begin_attempt()
        drill.reached(drill.FORWARD)

    def _before_update(self) -> None:
        """An optimizer is about to change weights: for the first in a step, all ranks must have come this far."""
        if not self._in_step:
            raise SessionMisuse("optimizer.step() outside session.step()\nhint: call it inside `with session.step():`")
        self._updated = True
        if not self._voted:
            self._vote()

    def _vote(self) -> None:
        if self._replay is not None and self._replay.once_more(self._position.steps):
            _ledger.abort_attempt()
            raise _Redo
        drill.reached(drill.VOTE)
        if self._recovery is not None and self._recovery.vote() is Decision.REDO:
            self._forget_replay()
            raise _Redo
        self._position.votes += 1
        self._voted = True
        # Whatever happens from here on, the step counts.
        _ledger.commit(self._position.steps + 1)
        drill.reached(drill.OPTIMIZER)

    def _exit(self, error: BaseException | None) -> bool:
        """Whether the error is dealt with."""
        if error is None:
            try:
                if not self._voted:
                    self._vote()
            except _Redo as redo:
                error = redo
        self._in_step = False
        if error is None:
            # Before peers get it, and before a checkpoint does.
            self._position.batch = self._following
            self._position.steps += 1
            self._done = True
            self._settle()
            return False
        if isinstance(error, _Redo):
            self._redone = True
            return True
        if self._recovery is None or not self._recovery.is_loss(error):
            self._failed()
            return False
        if self._voted:
            raise CannotRecover(
                "a rank was lost during a collective after optimizer.step(), when the step could not be taken back\n"
                "hint: move collectives before the first optimizer.step() of the step"
            ) from error
        self._recovery.lost(error)
        self._forget_replay()
        self._redone = True
        return True

    def _forget_replay(self) -> None:
        """A replacement does the step for the first time, so that all do."""
        if self._replay is not None:
            self._replay.forget()

    def _failed(self) -> None:
        """An error of the script's own ends this rank: the launcher counts how often that happens in one step."""
        if self._recovery is not None:
            self._recovery.failed()

    def _open_epoch(self, batches: int) -> None:
        """All ranks begin an epoch of so many batches."""
        self._vote_between_steps(batches)
        self._position.opened = True
        self._settle()

    def _end_epoch(self) -> None:
        """All ranks have done all steps of the epoch."""
        self._vote_between_steps()
        self._position.epoch += 1
        self._position.batch = 0
        self._position.opened = False
        self._settle()

    def _vote_between_steps(self, batches: int = 0) -> None:
        while self._recovery is not None:
            if self._recovery.vote(batches, in_step=False) is Decision.FORWARD:
                break
        self._position.votes += 1

    def _settle(self) -> None:
        if self._recovery is not None:
            self._recovery.settle()


class Batches:
    """The batches of one epoch, as `for batch in session.batches(loader):` has them."""

    def __init__(self, session: Session, turn: int, found: Iterator[Any]) -> None:
        self._session = session
        self._turn = turn
        self._found = found
        self._looped = False

    def __iter__(self) -> Iterator[Any]:
        if self._looped:
            raise SessionMisuse(
                "a second loop over the same session.batches(): nothing is left of them, and a rank that is replaced "
                "could not find its place\n" + _LOOPS
            )
        self._looped = True
        self._check()
        return self._found

    def __next__(self) -> data.Batch:
        self._check()
        return next(self._found)

    def _check(self) -> None:
        if self._turn != self._session._turn:
            raise SessionMisuse(
                "session.batches() was called before the epoch in which its batches are used: a rank that is replaced "
                "would train on other samples\n" + _LOOPS
            )


class Step:
    """One step, as `with session.step():` has it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> Session:
        self._session._enter()
        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._session._exit(error)


def _several(given: object, kind: type[_Kind]) -> list[_Kind]:
    """What was given, alone or as several."""
    found: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    for each in found:
        if not isinstance(each, kind):
            raise SessionMisuse(f"{type(each).__name__} is no {kind.__name__}\nhint: Session(model, optimizer, ...)")
    return found


def _can_recover() -> bool:
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return False
    group: Any = dist.group.WORLD
    if not groups.is_ours(group):
        raise SessionMisuse(
            f"--recover step needs the instep backend, and the default group has {dist.get_backend()}\n"
            "hint: init_process_group('instep'), or instep run --replace-gloo"
        )
    return True


def _versions(batches: Iterable[Any]) -> list[tuple[int, int]]:
    """What changes when a tensor of these is changed in place."""
    return [(id(leaf), leaf._version) for leaf in tree_leaves(list(batches)) if isinstance(leaf, torch.Tensor)]
