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
from instep.elastic import ballot, ddp, hot_spare, transfer
from instep.elastic.ballot import NOBODY, Decision, RankState
from instep.elastic.exchange import Exchange
from instep.elastic.generations import Generation, Generations
from instep.elastic.partners import own_node, partner_of, partners
from instep.elastic.state import State
from instep.elastic.trees import Tree
from instep.errors import (
    Aborted,
    CollectiveError,
    CollectiveTimeout,
    ConnectFailed,
    NotConnected,
    PeerLost,
    SessionMisuse,
)

_log = logging.getLogger("instep.elastic")

# What a lost rank looks like to the others.
LOSSES = (PeerLost, Aborted, NotConnected, ConnectFailed, CollectiveTimeout)
# How long the launcher may take to notice and to decide; and if nothing shows that a rank has ended, but that it was
# waited for as long as the script allows.
_PATIENCE_S = 20.0
_PATIENCE_AFTER_TIMEOUT_S = 5.0
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
    # The ranks have begun the epoch, with the same number of batches.
    opened: bool = False


@dataclass(frozen=True)
class Kept:
    """What another rank alone has, and before which vote it had that."""

    rank: int = NOBODY
    vote: int = 0
    state: bytes = b""


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
        self._kept = Kept()
        # By rank, who keeps its private state in this generation.
        self._partners: list[int] = []
        # The vote was passed without us noticing: state has to be handed on when our step is done.
        self._transfer_pending = False
        self._modules = ddp.modules(state.models)
        self._exchange = Exchange(self._link, len(RankState(0).encode()))

    # From the session.

    def begin(self) -> None:
        """The training begins, or this process takes a lost rank's place in it."""
        self._check()
        if standby.is_waiting():
            hot_spare.wait_until_needed()
            self._generations.ready(standby.incarnation())
            self._generations.watch(0, self._lost)
            with _ledger.during(_ledger.RESTART):
                self._join()
        else:
            self._compare_parameters()
            self._partners = partners([state.node for state in self._gather(self._rank_state(in_vote=False))])
            self._kept = self._exchange_private(self._position.votes)
            self._generations.ready(standby.incarnation())
            self._generations.watch(0, self._lost)

    def vote(self, batches: int = 0, *, in_step: bool = True) -> Decision:
        """Whether all ranks have come this far: FORWARD if so, REDO if the step has to be done again, or just the vote.

        At both ends of an epoch there is a vote without a step: what the last step did is committed and stays. At its
        beginning ranks say how many batches it has.
        """
        kept = self._kept
        try:
            kept = self._exchange_private(self._position.votes + 1)
            states = self._gather(self._rank_state(in_vote=True, settings=self._state.settings(), batches=batches))
        except CollectiveError as error:
            if not self.is_loss(error):
                raise
            decision = self._recover(error, in_vote=True, redo=in_step)
            if decision is Decision.REDO:
                return decision
            # Some rank has passed the vote, so all had given each other their private state before it.
        else:
            if any(state.vote != self._position.votes for state in states):
                raise CannotRecover(f"the ranks are at different steps: {[state.vote for state in states]}")
            _compare(states)
        self._kept = kept
        return Decision.FORWARD

    def lost(self, error: BaseException) -> None:
        """A step has failed with this, before its vote: recover, so that it can be done again."""
        decision = self._recover(error, in_vote=False)
        assert decision is Decision.REDO

    def settle(self) -> None:
        """A step is done: hand on the state, if peers wait for that."""
        if not self._transfer_pending:
            return
        self._transfer_pending = False
        try:
            self._transfer_state(redo=False)
        except LOSSES as error:
            self._recover(error, in_vote=False, redo=False)

    def is_loss(self, error: BaseException) -> bool:
        """Whether an exception is there because a rank was lost: also one that torch made of ours."""
        if isinstance(error, LOSSES):
            return True
        return isinstance(error, Exception) and any(
            isinstance(each.native.failure(), LOSSES) for each in links.of_this_process()
        )

    def failed(self) -> None:
        """This rank ends by an error of its own, in this step."""
        self._generations.failed(standby.incarnation(), self._position.steps)

    # The protocol.

    def _recover(self, error: BaseException | None, *, in_vote: bool, redo: bool = True) -> Decision:
        """Recover from a loss, and from those that follow meanwhile."""
        with _ledger.during(_ledger.RESTART):
            decision = self._rejoin(error, in_vote=in_vote, redo=redo)
            if decision is Decision.REDO:
                _ledger.abort_attempt()
            return decision

    def _rejoin(self, error: BaseException | None, *, in_vote: bool, redo: bool) -> Decision:
        while True:
            generation = self._next(error)
            try:
                self._reconnect(generation)
                own = self._rank_state(in_vote=in_vote)
                states = self._gather(own)
                decision = ballot.decide(own, states)
                if decision is Decision.IMPOSSIBLE:
                    raise self._impossible("no rank has the state of the step that was lost")
                if decision is Decision.FORWARD:
                    self._transfer_pending = True
                    return decision
                self._transfer_state(redo=redo)
                return Decision.REDO
            except LOSSES as next_error:
                error = next_error

    def _join(self) -> None:
        """Take a lost rank's place."""
        error: BaseException | None = None
        while True:
            generation = self._next(error)
            try:
                self._reconnect(generation)
                own = self._rank_state(in_vote=False)
                if ballot.decide(own, self._gather(own)) is Decision.IMPOSSIBLE:
                    raise self._impossible("every rank that had the state was lost")
                self._transfer_state(redo=False)
                standby.has_joined()
                return
            except LOSSES as next_error:
                error = next_error

    def _rank_state(self, *, in_vote: bool, settings: int = 0, batches: int = 0) -> RankState:
        kept = self._kept
        return RankState(
            *(self._position.votes, in_vote, standby.is_waiting(), settings, batches),
            *(own_node(), kept.rank, kept.vote),
        )

    def _next(self, error: BaseException | None) -> Generation:
        """The launcher's answer to a loss."""
        if error is not None:
            self._generations.awaits(self._generation + 1)
        timed_out = isinstance(error, (ConnectFailed, CollectiveTimeout))
        generation = self._generations.after(self._generation, _PATIENCE_AFTER_TIMEOUT_S if timed_out else _PATIENCE_S)
        if generation is None:
            # A time-out says who was missing.
            why = str(error).partition("\n")[0] if timed_out else f"no rank was replaced within {_PATIENCE_S:g} s"
            raise self._impossible(why) from error
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
        self._generations.connecting(generation.number)
        for each in links.of_this_process():
            each.rejoin(generation.number, lambda: self._seen > generation.number)

    def _lost(self, generation: int) -> None:
        """A rank was lost: whoever waits for it need not wait until that shows. Called on a thread of its own."""
        with self._lock:
            self._seen = generation
        for each in links.of_this_process():
            each.give_up_before(generation)

    def _transfer_state(self, *, redo: bool) -> None:
        """Give replacements their peers' state; all ranks are at the same step, or become it."""
        if redo:
            self._state.take_back()
        link = self._link
        states = self._gather(self._rank_state(in_vote=False))
        donors = [rank for rank, state in enumerate(states) if not state.standby]
        newcomers = [rank for rank, state in enumerate(states) if state.standby]
        if not donors or len({states[rank].vote for rank in donors}) != 1:
            raise self._impossible(f"the ranks are at different steps: {[state.vote for state in states]}")
        if newcomers:
            if link.rank in donors:
                tree = {"state": self._state.tree(), "position": asdict(self._position)}
                transfer.send(link, tree, self._state.buffers(), newcomers, donors)
                self._hand_back_private(newcomers, states)
            else:
                try:
                    received = transfer.receive(link, {"state": self._state.tree()}, donors)
                except transfer.StateDiffers as error:
                    raise self._impossible(str(error)) from error
                self._install_state(*received, states)
        for module in self._modules:
            ddp.rebuild(module)
        self._partners = partners([state.node for state in states])
        self._kept = self._exchange_private(self._position.votes)
        self._gather(self._rank_state(in_vote=False))
        if link.rank == donors[0]:
            self._generations.resumed(self._generation, self._position.steps)

    def _install_state(self, found: Tree, buffers: Sequence[torch.Tensor], states: Sequence[RankState]) -> None:
        self._state.install(found["state"])
        self._state.install_buffers(buffers)
        for field, value in found["position"].items():
            setattr(self._position, field, value)
        if not self._state.has_private():
            return
        rank = self._link.rank
        partner = partner_of(rank, self._position.votes, states)
        if partner is None:
            raise self._impossible(f"rank {rank} and the rank that kept what only it had were lost together")
        self._state.install_private(transfer.receive_bytes(self._link, partner))

    def _hand_back_private(self, newcomers: list[int], states: Sequence[RankState]) -> None:
        """Give a replacement what the lost rank alone had, if we keep it."""
        for rank in newcomers:
            if self._state.has_private() and partner_of(rank, self._position.votes, states) == self._link.rank:
                transfer.send_bytes(self._link, self._kept.state, rank)

    def _impossible(self, why: str) -> CannotRecover:
        """The error to raise where all workers have to start again."""
        self._generations.impossible(why.partition("\n")[0])
        return CannotRecover(why)

    # What ranks keep for each other.

    def _exchange_private(self, vote: int) -> Kept:
        """Give what this rank has before a vote to the rank that keeps it, and take what another has."""
        if not self._state.has_private():
            return Kept()
        rank = self._link.rank
        source = self._partners.index(rank)
        return Kept(source, vote, transfer.exchange(self._link, self._state.private(), self._partners[rank], source))

    # Collectives of our own.

    def _gather(self, own: RankState) -> list[RankState]:
        return [RankState.decode(numbers) for numbers in self._exchange.gather(own.encode())]

    # What is refused.

    def _check(self) -> None:
        for model in self._state.models:
            for part in model.modules():
                names = {base.__name__ for base in type(part).__mro__}
                if names & {"FullyShardedDataParallel", "FSDPModule"}:
                    raise SessionMisuse(
                        f"{type(part).__name__} is sharded, which --recover step cannot do yet\nhint: use DDP"
                    )
        for parameter in self._state.parameters():
            if not parameter.is_cpu or type(parameter.data) is not torch.Tensor:
                what = f"on {parameter.device}" if not parameter.is_cpu else f"a {type(parameter.data).__name__}"
                raise SessionMisuse(f"a parameter is {what}: --recover step is for tensors on the CPU so far")
        if self._state.has_unknown_scheduler():
            raise SessionMisuse(
                "an optimizer has a scheduler that the session does not know, so a replacement would not have it\n"
                "hint: Session(model, optimizer, scheduler=scheduler)"
            )
        for optimizer in self._state.optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):
                raise SessionMisuse("LBFGS evaluates the model in its step, after which nothing can be taken back")

    def _compare_parameters(self) -> None:
        """All ranks must begin with the same parameters: a replacement gets its peers'."""
        found: list[bytes | None] = [None] * self._link.size
        dist.all_gather_object(found, transfer.digest_of(self._state.parameters()))
        different = [rank for rank, each in enumerate(found) if each != found[0]]
        if different:
            raise SessionMisuse(
                f"the parameters of rank {different[0]} are not those of rank 0, so no other rank could give them to a "
                "replacement\nhint: wrap the model in DistributedDataParallel, or broadcast its parameters"
            )


def _compare(states: Sequence[RankState]) -> None:
    """What ranks that vote have to have in common."""
    for rank, state in enumerate(states):
        if state.batches != states[0].batches:
            raise SessionMisuse(
                f"the loaders have different lengths: rank 0 has {states[0].batches} batches in this epoch, "
                f"rank {rank} has {state.batches}; one of them would wait for the other in vain\n"
                "hint: a DistributedSampler gives all ranks the same number of samples"
            )
        if state.settings != states[0].settings:
            raise SessionMisuse(
                f"rank {rank} trains with other settings than rank 0, such as the learning rate\n"
                "hint: change them in session.step(), after optimizer.step(), and give the session the scheduler"
            )
