"""What a master raises: it cannot be reached, or it will not do it; and what a script raises for the searcher."""

from __future__ import annotations

__all__ = ["InvalidHP", "MasterRefused", "MasterUnreachable"]


class MasterUnreachable(ConnectionError):
    """Nobody answers at the master's address, or not as a master does."""


class MasterRefused(RuntimeError):
    """The master answered that it will not do it; `status` is HTTP's number."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class InvalidHP(Exception):
    """For scripts to raise in `init`'s block: these hyperparameters make no sense, the searcher should try others."""
