"""What a rank does when another is lost: the protocol, as one rank carries it out.

    lost ──▶ wait for the launcher's next generation ──▶ connect all groups again ──▶ say where everybody is (`ballot`)
              ▲                                                                               │
              │ another loss, at any point                              redo                  │  forward
              ╰─────────────────────────────────────────────────────────┬─────────────────────┴──▶ finish the step,
                                                                        ▼                          then join these
                                                     state to the replacements (`transfer`),
                                                     new reducers for DDP, private copies to peers

A replacement begins at "connect", where its peers wait for it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from instep import _ledger
from instep.backend import link as links
from instep.backend import standby
from instep.backend.groups import link_of
from instep.backend.link import Link
from instep.elastic import ballot, ddp, transfer
from instep.elastic.ballot import Place, Verdict
from instep.elastic.exchange import Exchange
from instep.elastic.generations import Generation, Generations
from instep.elastic.state import State
from instep.elastic.trees import Tree
from instep.errors import (
    Aborted,
    CollectiveError,
    CollectiveTimeout,
    ConnectFailed,
    InvalidCall,
    NotConnected,
    PeerLost,
)

_log = logging.getLogger("instep.elastic")

# What a lost rank looks like to the others.
LOSSES = (PeerLost, Aborted, NotConnected, ConnectFailed, CollectiveTimeout)
# How long the launcher may take to notice and to decide.
_PATIENCE_S = 20.0
# How long the launcher may take to stop the workers.
_END_S = 30.0


class CannotRecover(CollectiveError):
    """A rank was lost, and the step cannot be done again: all workers have to start again."""


@dataclass
class Position:
    """How far the training is."""

    epoch: int = 0
    # Batches of the epoch that are done.
    batch: int = 0
    # Steps done, and votes passed: those of steps and those at the ends of epochs.
    steps: int = 0
    votes: int = 0


def is_wanted() -> bool:
    """Whether the launcher replaces single ranks."""
    return os.environ.get("INSTEP_RECOVER") == "step"


class Recovery:
    """One rank's part in the protocol."""

    def __init__(self, state: State, position: Position) -> None:
        self._state = state
        self._position = position
        self._group: Any = dist.group.WORLD
        self._link: Link = link_of(self._group)
        self._generations = Generations(self._link.rank)
        self._generation = 0
        self._lock = threading.Lock()
        # The newest generation that the thread which watches has seen.
        self._seen = 0
        # This rank's private state is kept by a peer, and that of another here: what their next step begins with.
        self._kept = b""
        # The vote was passed without us noticing: state has to be handed on when our step is done.
        self._owes = False
        self._modules = ddp.modules(state.models)
        self._exchange = Exchange(self._link)

    # From the session.

    def begin(self) -> None:
        """The training begins, or this process takes a lost rank's place in it."""
        self._check()
        incarnation = standby.incarnation()
        if standby.is_waiting():
            self._generations.ready(incarnation)
            self._generations.watch(0, self._lost)
            with _ledger.during(_ledger.RESTART):
                self._join()
        else:
            self._compare_parameters()
            self._kept = self._exchange_private()
            self._generations.ready(incarnation)
            self._generations.watch(0, self._lost)

    def vote(self) -> Verdict:
        """Whether all ranks have come this far: FORWARD if so, REDO if the step has to be done again."""
        try:
            kept = self._exchange_private()
            places = self._gather(Place(self._position.votes, in_vote=True, settings=self._state.settings()))
        except CollectiveError as error:
            verdict = self._recover(error, in_vote=True)
            if verdict is Verdict.REDO:
                return verdict
        else:
            if any(place.vote != self._position.votes for place in places):
                raise CannotRecover(f"the ranks are at different steps: {[place.vote for place in places]}")
            different = [rank for rank, place in enumerate(places) if place.settings != places[0].settings]
            if different:
                raise self._impossible(
                    f"rank {different[0]} trains with other settings than rank 0, such as the learning rate\n"
                    "hint: change them in session.step(), after optimizer.step(), and give the session the scheduler"
                )
            self._kept = kept
        return Verdict.FORWARD

    def lost(self, error: BaseException) -> None:
        """A step has failed with this, before its vote: recover, so that it can be done again."""
        verdict = self._recover(error, in_vote=False)
        assert verdict is Verdict.REDO

    def settle(self) -> None:
        """A step is done: hand on the state, if peers wait for that."""
        if not self._owes:
            return
        self._owes = False
        try:
            self._hand_on(redo=False)
        except CollectiveError as error:
            self._recover(error, in_vote=False, redo=False)

    def is_loss(self, error: BaseException) -> bool:
        """Whether an exception is there because a rank was lost: also one that torch made of ours."""
        if isinstance(error, LOSSES):
            return True
        return isinstance(error, Exception) and any(
            isinstance(each.native.failure(), LOSSES) for each in links.of_this_process()
        )

    # The protocol.

    def _recover(self, error: BaseException | None, *, in_vote: bool, redo: bool = True) -> Verdict:
        """Recover from a loss, and from those that follow meanwhile."""
        with _ledger.during(_ledger.RESTART):
            verdict = self._meet_again(error, in_vote=in_vote, redo=redo)
            if verdict is Verdict.REDO:
                _ledger.abort_attempt()
            return verdict

    def _meet_again(self, error: BaseException | None, *, in_vote: bool, redo: bool) -> Verdict:
        while True:
            generation = self._next(error)
            try:
                self._reconnect(generation)
                own = self._place(in_vote=in_vote)
                places = self._gather(own)
                verdict = ballot.decide(own, places)
                if verdict is Verdict.IMPOSSIBLE:
                    raise self._impossible("no rank has the state of the step that was lost")
                if verdict is Verdict.FORWARD:
                    self._owes = True
                    return verdict
                self._hand_on(redo=redo)
                return Verdict.REDO
            except LOSSES as next_error:
                error = next_error

    def _join(self) -> None:
        """Take a lost rank's place."""
        error: BaseException | None = None
        while True:
            generation = self._next(error)
            try:
                self._reconnect(generation)
                own = self._place(in_vote=False)
                if ballot.decide(own, self._gather(own)) is Verdict.IMPOSSIBLE:
                    raise self._impossible("every rank that had the state was lost")
                self._hand_on(redo=False)
                standby.has_joined()
                return
            except LOSSES as next_error:
                error = next_error

    def _place(self, *, in_vote: bool) -> Place:
        return Place(self._position.votes, in_vote, standby.is_waiting())

    def _next(self, error: BaseException | None) -> Generation:
        """The launcher's answer to a loss."""
        generation = self._generations.after(self._generation, _PATIENCE_S)
        if generation is None:
            raise self._impossible(f"no rank was replaced within {_PATIENCE_S:g} s") from error
        if generation.abandoned:
            time.sleep(_END_S)  # the launcher ends this process, and says why
            raise CannotRecover(f"all workers start again: {generation.reason}") from error
        current = generation.incarnations.get(self._link.rank, 0)
        if current != standby.incarnation():
            raise CannotRecover(
                f"this process was rank {self._link.rank} until it was taken for lost; another one is now"
            ) from error
        _log.info("generation %d: %s", generation.number, generation.reason)
        return generation

    def _reconnect(self, generation: Generation) -> None:
        """Connect every group of this process again."""
        with self._lock:
            self._generation = generation.number
        for each in links.of_this_process():
            each.rejoin(generation.number, lambda: self._seen > generation.number)

    def _lost(self, generation: int) -> None:
        """A rank was lost: whoever waits for it need not wait until that shows. Called on a thread of its own."""
        with self._lock:
            self._seen = generation
        for each in links.of_this_process():
            each.give_up_before(generation)

    def _hand_on(self, *, redo: bool) -> None:
        """Give replacements their peers' state; all ranks are at the same step, or become it."""
        if redo:
            self._state.take_back()
        link = self._link
        places = self._gather(self._place(in_vote=False))
        donors = [rank for rank, place in enumerate(places) if not place.standby]
        newcomers = [rank for rank, place in enumerate(places) if place.standby]
        if not donors or len({places[rank].vote for rank in donors}) != 1:
            raise self._impossible(f"the ranks are at different steps: {[place.vote for place in places]}")
        if newcomers:
            if link.rank in donors:
                tree = {"state": self._state.tree(), "position": asdict(self._position)}
                transfer.send(link, tree, self._state.buffers(), newcomers, donors)
                self._hand_back_private(newcomers)
            else:
                try:
                    received = transfer.receive(link, {"state": self._state.tree()}, donors)
                except transfer.StateDiffers as error:
                    raise self._impossible(str(error)) from error
                self._become(*received, newcomers)
        for module in self._modules:
            ddp.rebuild(module)
        self._kept = self._exchange_private()
        self._gather(self._place(in_vote=False))
        if link.rank == donors[0]:
            self._generations.resumed(self._generation, self._position.steps)

    def _become(self, found: Tree, buffers: Sequence[torch.Tensor], newcomers: list[int]) -> None:
        self._state.install(found["state"])
        self._state.install_buffers(buffers)
        for field, value in found["position"].items():
            setattr(self._position, field, value)
        if not self._state.has_private():
            return
        keeper = self._keeper(self._link.rank)
        if keeper in newcomers:
            raise self._impossible(f"ranks {self._link.rank} and {keeper} were lost together, with what only they had")
        self._state.install_private(transfer.receive_bytes(self._link, keeper))

    def _hand_back_private(self, newcomers: list[int]) -> None:
        """Give a replacement what the lost rank alone had, if we keep it."""
        before = self._kept_for()
        if self._state.has_private() and before in newcomers:
            transfer.send_bytes(self._link, self._kept, before)

    def _impossible(self, why: str) -> CannotRecover:
        """The error to raise where all workers have to start again."""
        self._generations.impossible(why.partition("\n")[0])
        return CannotRecover(why)

    # What ranks keep for each other.

    def _keeper(self, rank: int) -> int:
        """Who keeps a rank's private state: the same rank of the next host, or the next of this one."""
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        step = local if 0 < local < self._link.size and self._link.size % local == 0 else 1
        return (rank + step) % self._link.size

    def _kept_for(self) -> int:
        return next(rank for rank in range(self._link.size) if self._keeper(rank) == self._link.rank)

    def _exchange_private(self) -> bytes:
        if not self._state.has_private():
            return b""
        return transfer.exchange(self._link, self._state.private(), self._keeper(self._link.rank), self._kept_for())

    # Collectives of our own.

    def _gather(self, own: Place) -> list[Place]:
        return [Place.decode(numbers) for numbers in self._exchange.gather(own.encode())]

    # What is refused.

    def _check(self) -> None:
        for model in self._state.models:
            for part in model.modules():
                names = {base.__name__ for base in type(part).__mro__}
                if names & {"FullyShardedDataParallel", "FSDPModule"}:
                    raise InvalidCall(
                        f"{type(part).__name__} is sharded, which --recover step cannot do yet\nhint: use DDP"
                    )
        for parameter in self._state.parameters():
            if not parameter.is_cpu or type(parameter.data) is not torch.Tensor:
                what = f"on {parameter.device}" if not parameter.is_cpu else f"a {type(parameter.data).__name__}"
                raise InvalidCall(f"a parameter is {what}: --recover step is for tensors on the CPU so far")
        if self._state.has_unknown_scheduler():
            raise InvalidCall(
                "an optimizer has a scheduler that the session does not know, so a replacement would not have it\n"
                "hint: Session(model, optimizer, scheduler=scheduler)"
            )
        for optimizer in self._state.optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):
                raise InvalidCall("LBFGS evaluates the model in its step, after which nothing can be taken back")

    def _compare_parameters(self) -> None:
        """All ranks must begin with the same parameters: a replacement gets its peers'."""
        found: list[bytes | None] = [None] * self._link.size
        dist.all_gather_object(found, transfer.digest_of(self._state.parameters()))
        different = [rank for rank, each in enumerate(found) if each != found[0]]
        if different:
            raise InvalidCall(
                f"the parameters of rank {different[0]} are not those of rank 0, so no other rank could give them to a "
                "replacement\nhint: wrap the model in DistributedDataParallel, or broadcast its parameters"
            )
