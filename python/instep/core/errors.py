"""What a master raises: it cannot be reached, or it will not do it."""

from __future__ import annotations

__all__ = ["MasterRefused", "MasterUnreachable"]


class MasterUnreachable(ConnectionError):
    """Nobody answers at the master's address, or not as a master does."""


class MasterRefused(RuntimeError):
    """The master answered that it will not do it; `status` is HTTP's number."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
