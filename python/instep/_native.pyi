"""Types of the native extension. Its public faces are `instep.store`, `instep.core` and, through
torch, `instep.backend`."""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, final

from typing_extensions import Self

__all__ = [
    "DTYPES",
    "REDUCTIONS",
    "CheckpointFolder",
    "CollectiveGroup",
    "DeviceGroup",
    "DeviceTicket",
    "FlightRecorder",
    "MasterClient",
    "Operation",
    "Preemption",
    "Reporter",
    "StoreClient",
    "StoreServer",
    "Ticket",
    "__version__",
    "digest",
    "ledger_abort_attempt",
    "ledger_begin_attempt",
    "ledger_begin_training",
    "ledger_begin_wait",
    "ledger_commit",
    "ledger_end_wait",
    "ledger_forget",
    "ledger_switch",
    "ledger_take_over",
    "stop_callbacks",
]

__version__: Final[str]

# Names of element types and of reductions; operations are given the index.
DTYPES: Final[Sequence[str]]
REDUCTIONS: Final[Sequence[str]]

def stop_callbacks() -> None:
    """End the threads for callbacks, before the interpreter ends."""

# Address and length in bytes. Whoever gives it keeps it valid until the operation has ended.
_Memory = tuple[int, int]

def digest(memory: Sequence[_Memory]) -> bytes:
    """The BLAKE3 hash of pieces of memory, one after the other."""

# What this rank's time is spent on: see `instep._ledger`.

def ledger_switch(index: int) -> int:
    """From now on this rank does that; gives what it did."""

def ledger_begin_wait() -> bool:
    """The caller begins to wait for other ranks; whether `ledger_end_wait` is to be called."""

def ledger_end_wait() -> None:
    """The caller has waited for other ranks."""

def ledger_begin_training(steps: int) -> None:
    """The training's loop begins, after so many steps."""

def ledger_begin_attempt() -> None:
    """A step begins."""

def ledger_commit(steps: int) -> None:
    """The step counts, which makes so many."""

def ledger_abort_attempt() -> None:
    """The step has to be done again."""

def ledger_take_over() -> None:
    """Begin anew: a hot spare becomes a rank."""

def ledger_forget() -> None:
    """Have no ledger, in a child that was forked."""

@final
class Operation:
    """One collective operation, not yet begun."""

    @staticmethod
    def all_reduce(address: int, length: int, dtype: int, reduce: int, factor: float = 1.0) -> Operation:
        """In place: the memory becomes the reduction of all ranks' memory."""

    @staticmethod
    def reduce(memory: _Memory, dtype: int, reduce: int, root: int, factor: float = 1.0) -> Operation:
        """In place on the root: its memory becomes the reduction of all ranks' memory."""

    @staticmethod
    def broadcast(memory: _Memory, dtype: int, root: int) -> Operation:
        """The memory becomes that of the root."""

    @staticmethod
    def all_gather(source: _Memory, outputs: Sequence[_Memory], dtype: int) -> Operation:
        """The outputs become the inputs of all ranks."""

    @staticmethod
    def gather(source: _Memory, outputs: Sequence[_Memory], dtype: int, root: int) -> Operation:
        """The root's outputs become the inputs of all ranks; elsewhere there are none."""

    @staticmethod
    def scatter(inputs: Sequence[_Memory], output: _Memory, dtype: int, root: int) -> Operation:
        """The output becomes this rank's part of the root's inputs; elsewhere there are none."""

    @staticmethod
    def reduce_scatter(
        inputs: Sequence[_Memory], output: _Memory, dtype: int, reduce: int, factor: float = 1.0
    ) -> Operation:
        """The output becomes the reduction of all ranks' inputs for this rank."""

    @staticmethod
    def all_to_all(inputs: Sequence[_Memory], outputs: Sequence[_Memory], dtype: int) -> Operation:
        """The outputs become all ranks' inputs for this rank; lengths may differ from pair to pair."""

    @staticmethod
    def barrier() -> Operation:
        """Done when every rank has come."""

@final
class Ticket:
    """An operation under way."""

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end, at most so many seconds; raises what went wrong."""

    def is_finished(self) -> bool:
        """Whether it has ended, well or not."""

    def failure(self) -> BaseException | None:
        """The exception it ended with, or None."""

    def output(self) -> str:
        """What has become of the output: "untouched", "complete" or "undefined"; the last while it is under way."""

    def source(self) -> int | None:
        """Who sent what a finished receive received."""

    def when_finished(self, callback: Callable[[], object]) -> None:
        """Call this once when it has ended, on a thread for callbacks, which may wait."""

@final
class DeviceTicket:
    """An operation that the GPU has been given, or will be."""

    @property
    def ticket(self) -> Ticket:
        """How it went, once the GPU has been given everything."""

    def order(self, stream: int) -> None:
        """Have a stream wait for the end of the operation."""

@final
class DeviceGroup:
    """The ranks of a group, on their GPUs."""

    @staticmethod
    def connect(
        group: CollectiveGroup, home: CollectiveGroup, ordinal: int, share: bool, pin: bool, timeout: float
    ) -> tuple[DeviceGroup | None, str | None]:
        """To be called by all ranks of a group that serves for this alone; a text says why it cannot be."""

    @staticmethod
    def can_reduce(dtype: int, reduce: int) -> bool:
        """Whether a type can be reduced so on the GPU."""

    @property
    def is_shared(self) -> bool:
        """Whether the ranks share a GPU, and exchange on it what is not small."""

    @property
    def stream(self) -> int:
        """The stream on which everything happens."""

    def submit(self, operations: Sequence[Operation], stream: int, timeout: float, keep: object) -> DeviceTicket:
        """Begin operations on device memory, behind what `stream` has been given."""

    def run(self, operations: Sequence[Operation], stream: int, timeout: float) -> bool:
        """Do operations on device memory, behind what `stream` has been given: whether they are done.

        If not, `stream` waits for their end.
        """

    def abort(self) -> None:
        """Fail everything under way, here and on the peers."""

    def close(self) -> None:
        """Wait for what is under way, and give the memory back."""

@final
class FlightRecorder:
    """What this process did last, in a file."""

    def __new__(
        cls,
        *,
        folder: str | None,
        rank: int | None,
        world_size: int,
        job: str,
        incarnation: int,
        host: str,
        stacks: Callable[[], str],
    ) -> Self: ...
    def path(self) -> str:
        """Where the file lies."""

    def end(self) -> None:
        """Say that the process ends by itself, and stop answering."""

@final
class CollectiveGroup:
    """The ranks that work together, as one of them holds them."""

    def __new__(
        cls,
        *,
        timeout: float,
        label: str = "",
        single_copy: bool = True,
        channels: int | None = None,
        network_channels: int | None = None,
        local_world: int | None = None,
        tcp: bool = False,
        interface: str | None = None,
        secret: str | None = None,
        encrypt: bool = False,
        canonical: bool = False,
        recorder: FlightRecorder | None = None,
        name: str = "",
        ranks: Sequence[int] = ...,
    ) -> Self: ...
    def address(self) -> bytes:
        """Where this rank listens, for the other ranks."""

    def stand_by(self, rank: int, world: int) -> None:
        """Answer operations as if all peers gave what this rank gives, until `connect` is called."""

    def supersede(self, generation: int) -> None:
        """Have `connect` fail that waits for ranks of a generation before this one: one of them is lost."""

    def needs_network(self, addresses: Sequence[bytes]) -> bool:
        """Whether these ranks, this one among them, can only be connected over the network."""

    def open_to_network(self) -> None:
        """Listen on the network too; the address changes."""

    def connect(self, rank: int, addresses: Sequence[bytes], generation: int, timeout: float) -> int | None:
        """Connect to the other ranks, whose addresses are given in their order; a connected group gets other peers."""

    def run(self, operation: Operation, timeout: float) -> None:
        """Do an operation and return when it is done; on this thread, unless others are queued."""

    def submit(self, operation: Operation, timeout: float, keep: object) -> Ticket:
        """Queue an operation. `keep` is held until it has ended."""

    def submit_together(self, operations: Sequence[Operation], timeout: float, keep: object) -> Ticket:
        """Queue several: one after the other, nothing in between, the time for all together."""

    def send(self, memory: _Memory, to: int, tag: int, timeout: float, keep: object) -> Ticket:
        """Send to one rank, whatever collectives are under way."""

    def receive(self, memory: _Memory, source: int | None, tag: int, timeout: float, keep: object) -> Ticket:
        """Receive from one rank, or from whoever sends first."""

    def abort(self) -> None:
        """Fail everything under way, here and on the peers. Returns at once; does nothing when there is no group."""

    def failure(self) -> BaseException | None:
        """Why the group is aborted, or None."""

    def generation(self) -> int:
        """The generation it was last connected at."""

    def uses_single_copy(self) -> bool:
        """Whether long messages are read straight out of the peers' memory."""

    def shutdown(self) -> None:
        """Leave the group. What is under way fails; does nothing the second time."""

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

@final
class MasterClient:
    """A session with a master. Errors are those of `instep.core.errors`."""

    def __new__(cls, address: str, *, certificates: str | None = None, patience: float = 10.0) -> Self:
        """Read the address; nothing is sent yet. Calls are tried again for `patience` seconds."""

    @property
    def address(self) -> str:
        """The master's address in full."""

    @property
    def token(self) -> str | None:
        """The token of the session, if there is one."""

    def use_token(self, token: str) -> None:
        """Speak for the user of a token."""

    def login(self, username: str, password: str) -> None:
        """Log in; the session renews itself when it runs out."""

    def call(self, method: str, path: str, body: str | None = None, *, repeat: bool | None = None) -> str:
        """Send JSON and give the answer's JSON. `repeat` says that the call may arrive twice without harm."""

@final
class Reporter:
    """Sends metrics and lines of output in the background, each exactly once."""

    def __new__(cls, client: MasterClient, *, trial: int, run: int, name: str, rank: int, heartbeat: bool) -> Self:
        """Start the thread."""

    def report(
        self,
        group: str,
        steps_completed: int | None,
        metrics: dict[str, Any],
        batches: list[dict[str, Any]] | None = None,
    ) -> bool:
        """Queue metrics; True if there are news."""

    def progress(self, progress: float) -> bool:
        """Note how far the trial is, 0 to 1; only the last word is sent. True if there are news."""

    def log(self, line: str, stream: str) -> bool:
        """Queue a line of output; True if there are news."""

    def news(self) -> list[str]:
        """What people should know, once."""

    def flush(self, timeout: float) -> tuple[int, str] | None:
        """Wait until everything queued so far is stored; None, or how many are left and why."""

    def close(self, timeout: float) -> tuple[int, str] | None:
        """Send what is left and end; None, or how many are left and why."""

@final
class Preemption:
    """Waits in the background for the word that an allocation should make room."""

    def __new__(cls, client: MasterClient, allocation: str) -> Self:
        """Start to wait."""

    def preempt(self, timeout: float) -> bool:
        """Whether to make room; only the first call may have to wait, `timeout` seconds at most."""

    def news(self) -> list[str]:
        """What people should know, once."""

@final
class CheckpointFolder:
    """A folder with checkpoints. Files are listed as name, size and hash; names of folders end with a slash."""

    def __new__(cls, root: str) -> Self:
        """Take the path; the folder is made when something is saved."""

    def begin(self, uuid: str, rank: int) -> str:
        """Make the place into which a rank writes, and give it."""

    def seal(self, uuid: str, rank: int) -> list[tuple[str, int, str]]:
        """Hash and sync what a rank has written, and list it."""

    def join(self, uuid: str, rank: int, names: Sequence[str]) -> None:
        """Move the files that a rank brings in to where all ranks' files come together."""

    def commit(self, uuid: str, metadata: str, files: Sequence[tuple[str, int, str]]) -> list[tuple[str, int]]:
        """Make a checkpoint of what was joined; gives names and sizes of its files."""

    def abandon(self, uuid: str) -> None:
        """Remove what was written of a checkpoint that will not be finished."""

    def open(self, uuid: str, wanted: Sequence[str] | None = None) -> tuple[str, bool]:
        """Compare a checkpoint's files with its list, all or those wanted; gives its path and whether it has one."""

    def files(self, uuid: str) -> list[tuple[str, int]]:
        """Names and sizes of a checkpoint's files."""

    def delete(self, uuid: str) -> None:
        """Delete a checkpoint."""

    @staticmethod
    def merge(
        ranks: Sequence[Sequence[tuple[str, int, str]]],
    ) -> tuple[list[tuple[str, int, str]], list[list[str]]]:
        """Join the lists of all ranks: every file once, and for every rank the names that it brings in."""
