"""Types of the native extension. Its public face is `instep.store`."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, final

from typing_extensions import Self

__all__ = ["StoreClient", "StoreServer", "__version__"]

__version__: Final[str]

@final
class StoreServer:
    """A store server on a thread of its own."""

    def __new__(cls, port: int = 0, *, loopback: bool = True) -> Self: ...
    @property
    def port(self) -> int:
        """The port it serves on."""

    def notices(self) -> list[str]:
        """What happened that a person may want to know, as lines, since the last call."""

    def shutdown(self) -> None:
        """Close every connection and stop the thread. Does nothing the second time."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class StoreClient:
    """A connection to a store."""

    def __new__(cls, host: str, port: int, *, timeout: float = 300.0) -> Self: ...
    @property
    def timeout(self) -> float:
        """Seconds that a call may wait."""

    @timeout.setter
    def timeout(self, seconds: float) -> None: ...
    def set(self, key: str, value: str | bytes) -> None:
        """Store a value."""

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """Wait until the key exists and give its value."""

    def try_get(self, key: str) -> bytes | None:
        """The value of the key if it exists now, else None."""

    def add(self, key: str, delta: int) -> int:
        """Add to a counter and give the sum."""

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Store `desired` if the value is `expected`, or if there is none and `expected` is empty; give the value."""

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys exist now."""

    def wait(self, keys: Sequence[str], *, timeout: float | None = None) -> None:
        """Wait until all keys exist."""

    def delete(self, key: str) -> bool:
        """Delete a key; True if it existed."""

    def multi_get(self, keys: Sequence[str], *, timeout: float | None = None) -> list[bytes]:
        """Wait until all keys exist and give their values."""

    def multi_set(self, values: Mapping[str, str | bytes]) -> None:
        """Store several values with one request."""

    def append(self, key: str, value: str | bytes) -> None:
        """Append to a value, or store it."""

    def num_keys(self) -> int:
        """How many keys there are; queues do not count."""

    def list_keys(self) -> list[str]:
        """All keys, in no particular order."""

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Add an item to the end of a queue."""

    def queue_pop(self, key: str, *, block: bool = True, timeout: float | None = None) -> bytes | None:
        """Take the oldest item of a queue; None if there is none, or with `block` if another client was quicker."""

    def queue_length(self, key: str) -> int:
        """How many items a queue has."""

    def barrier(self, key: str, world_size: int, *, timeout: float | None = None) -> None:
        """Wait until `world_size` clients have come to this barrier."""

    def close(self) -> None:
        """Close the connection. Does nothing the second time."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
