"""What the ranks of a new generation decide, when each has said where it is.

Every step ends with a *vote*: a collective that no rank leaves before all have entered it with complete gradients, and
only after which weights are changed. So when a rank is lost:

- If any survivor has passed vote v, every rank had complete gradients for it: a rank that is still in it continues as
  if it had passed, and the replacement gets the state after it.
- If no survivor has passed it, no weights have changed: all do the step again.

Ranks are therefore never more than one vote apart. Here this is a function of what the ranks have said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

# No rank.
NOBODY = -1


@dataclass(frozen=True)
class RankState:
    """How far a rank has come: the next vote it has to pass, and whether it has entered it."""

    vote: int
    in_vote: bool = False
    # A replacement, which is nowhere yet.
    standby: bool = False
    # Of the optimizers: the same on all ranks that vote.
    settings: int = 0
    # Of the epoch that begins with this vote.
    batches: int = 0
    # The node that it runs on.
    node: int = 0
    # Whose private state it keeps, and before which vote that rank had it.
    keeps: int = NOBODY
    kept_at: int = 0

    def encode(self) -> list[int]:
        """As numbers, for a collective."""
        return [
            *(self.vote, int(self.in_vote), int(self.standby), self.settings, self.batches),
            *(self.node, self.keeps, self.kept_at),
        ]

    @classmethod
    def decode(cls, numbers: Sequence[int]) -> RankState:
        """From what a peer has sent."""
        vote, in_vote, is_standby, *rest = numbers
        return cls(vote, bool(in_vote), bool(is_standby), *rest)


class Decision(Enum):
    """What a rank has to do."""

    REDO = "do the step again"
    FORWARD = "go on: the vote has been passed"
    IMPOSSIBLE = "no rank has the state"


def decide(own: RankState, states: Sequence[RankState]) -> Decision:
    """What the rank at `own` has to do, where all ranks of the generation are at these states."""
    survivors = [state for state in states if not state.standby]
    if not survivors:
        return Decision.IMPOSSIBLE
    newest = max(state.vote for state in survivors)
    if any(state.vote < newest - 1 or (state.vote < newest and not state.in_vote) for state in survivors):
        return Decision.IMPOSSIBLE  # they were not in the same job
    return Decision.FORWARD if not own.standby and own.vote < newest else Decision.REDO
