"""torch's TCPStore client and instep's against `instep store`, and against torch's own server as the oracle.

Every test runs on both servers with the same assertions, so a difference between them is a failure of one of the two.
What only ours does is in the tests that take `instep_port` or start a `Server`.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import DistStoreError, PrefixStore, QueueEmptyError, TCPStore

from instep.store import Client, Server

HELLO = bytes.fromhex("00cef7853c")
SHORT = timedelta(milliseconds=100)
LONG = timedelta(seconds=30)


@pytest.fixture
def instep_port(run: Any, instep: Path, wait_until: Any) -> int:  # noqa: ANN401 - conftest's own classes
    """The port of a fresh `instep store`."""
    server = run.start(instep, "store", "--port", "0")
    wait_until(lambda: "listening on" in server.stdout, 30, lambda: f"the store to listen; it said {server.stderr}")
    return int(server.stdout.rsplit(":", 1)[1])


@pytest.fixture(params=["torch", "instep"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a fresh server, torch's and then ours."""
    if request.param == "instep":
        yield request.getfixturevalue("instep_port")
        return
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
    yield server.port
    del server


@pytest.fixture
def connect(port: int) -> Callable[[], TCPStore]:
    """Open another client of the server."""
    return lambda: client_of(port)


@pytest.fixture
def store(port: int) -> TCPStore:
    """One client of the server."""
    return client_of(port)


def client_of(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=LONG)


def in_threads(*actions: Callable[[], object]) -> list[object]:
    """Run the actions at the same time and give their results in order."""
    results: list[object] = [None] * len(actions)

    def call(index: int) -> None:
        results[index] = actions[index]()

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=LONG.total_seconds())
        assert not thread.is_alive(), "a wait did not end"
    return results


def test_values_are_stored_and_read(store: TCPStore) -> None:
    store.set("k", "v")
    assert store.get("k") == b"v"
    store.set("k", "")
    assert store.get("k") == b""
    store.set("ключ / with spaces\n", "wert")
    assert store.get("ключ / with spaces\n") == b"wert"
    assert store.delete_key("k") is True
    assert store.delete_key("k") is False
    assert store.check(["k"]) is False


def test_counters_are_text(store: TCPStore) -> None:
    assert store.add("n", 5) == 5
    assert store.add("n", -7) == -2
    assert store.get("n") == b"-2"
    assert store.add("n", 0) == -2
    store.set("n", "40")
    assert store.add("n", 2) == 42
    assert store.add("large", 2**63 - 1) == 2**63 - 1


def test_adding_to_text_ends_the_connection_and_no_other(store: TCPStore, connect: Callable[[], TCPStore]) -> None:
    store.set("text", "abc")
    store.get("text")
    with pytest.raises(RuntimeError):
        connect().add("text", 1)
    assert store.get("text") == b"abc"


def test_compare_set(store: TCPStore) -> None:
    assert store.compare_set("k", "expected", "desired") == b"expected"
    assert store.check(["k"]) is False
    assert store.compare_set("k", "", "first") == b"first"
    assert store.compare_set("k", "wrong", "second") == b"first"
    assert store.compare_set("k", "first", "second") == b"second"
    assert store.get("k") == b"second"


def test_check_and_count(store: TCPStore) -> None:
    assert store.num_keys() == 0
    store.set("a", "1")
    store.add("b", 1)
    store.queue_push("q", "item")
    assert store.check(["a", "b", "q"]) is True
    assert store.check(["a", "zz"]) is False
    assert store.num_keys() == 2
    assert sorted(store.list_keys()) == ["a", "b"]


def test_append_and_several_at_once(store: TCPStore) -> None:
    assert store.has_extended_api()
    store.append("log", "one")
    store.append("log", ",two")
    store.multi_set(["x", "y"], ["1", "2"])
    assert store.multi_get(["y", "log", "x"]) == [b"2", b"one,two", b"1"]


def test_a_wait_times_out_and_the_connection_lives_on(store: TCPStore, connect: Callable[[], TCPStore]) -> None:
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(DistStoreError, match="timeout"):
            store.wait(["never", "ever"], SHORT)
        assert time.monotonic() - began >= SHORT.total_seconds()
    connect().set("never", "now")
    assert store.get("never") == b"now"
    store.set_timeout(SHORT)
    with pytest.raises(DistStoreError, match="timeout"):
        store.get("missing")
    assert store.add("n", 1) == 1


def test_a_late_set_does_not_disturb_who_gave_up(store: TCPStore, connect: Callable[[], TCPStore]) -> None:
    with pytest.raises(DistStoreError):
        store.wait(["late"], SHORT)
    connect().set("late", "1")
    # A stray wake-up would be read as the answer to one of these.
    for expected in range(1, 20):
        assert store.add("n", 1) == expected
    assert store.get("late") == b"1"


def test_several_wait_for_one_key(connect: Callable[[], TCPStore]) -> None:
    clients = [connect() for _ in range(20)]
    setter = connect()

    def set_later() -> None:
        time.sleep(0.1)
        setter.set("go", "now")

    results = in_threads(set_later, *(lambda client=client: client.get("go") for client in clients))
    assert results[1:] == [b"now"] * 20


def test_a_wait_ends_with_the_last_key(connect: Callable[[], TCPStore]) -> None:
    waiter, setter = connect(), connect()

    def set_all() -> None:
        for key in ("a", "a", "b", "c"):
            setter.set(key, key)
            time.sleep(0.03)

    _, values = in_threads(set_all, lambda: waiter.multi_get(["c", "a", "b"]))
    assert values == [b"c", b"a", b"b"]


def test_add_append_and_compare_set_wake_waiters(connect: Callable[[], TCPStore]) -> None:
    waiter, setter = connect(), connect()
    writes: list[tuple[str, Callable[[], object]]] = [
        ("added", lambda: setter.add("added", 1)),
        ("appended", lambda: setter.append("appended", "1")),
        ("compared", lambda: setter.compare_set("compared", "", "1")),
        ("several", lambda: setter.multi_set(["several"], ["1"])),
    ]
    for key, write in writes:
        timer = threading.Timer(0.05, write)
        timer.start()
        assert waiter.get(key) == b"1"
        timer.join()


def test_queues(store: TCPStore, connect: Callable[[], TCPStore]) -> None:
    with pytest.raises(QueueEmptyError):
        store.queue_pop("q", False)
    store.queue_push("q", "1")
    store.queue_push("q", "2")
    assert store.queue_len("q") == 2
    assert store.queue_pop("q") == b"1"
    assert store.queue_pop("q", False) == b"2"
    assert store.queue_len("q") == 0
    poppers = [connect() for _ in range(5)]

    def push_all() -> None:
        # By then all wait: torch's client waits and then takes, and one that comes late can take another's item.
        time.sleep(0.5)
        for item in range(5):
            time.sleep(0.05)
            store.queue_push("q", str(item))

    results = in_threads(push_all, *(lambda popper=popper: popper.queue_pop("q") for popper in poppers))
    assert sorted(str(item) for item in results[1:]) == [f"b'{item}'" for item in range(5)]
    store.set_timeout(SHORT)
    with pytest.raises(DistStoreError, match="timeout"):
        store.queue_pop("q")
    assert store.queue_len("q") == 0


def test_barriers(store: TCPStore, connect: Callable[[], TCPStore]) -> None:
    clients = [connect() for _ in range(4)]
    in_threads(*(lambda client=client: client.barrier("all", 4, LONG) for client in clients))
    assert store.get("all") == b"4"
    store.barrier("all", 4, LONG)
    with pytest.raises(DistStoreError, match="timeout"):
        store.barrier("alone", 2, SHORT)
    # The arrival counts although it was given up.
    store.barrier("alone", 2, SHORT)


def test_large_values_and_many_keys(store: TCPStore, connect: Callable[[], TCPStore]) -> None:
    large = "x" * (8 << 20)
    store.set("large", large)
    assert store.get("large") == large.encode()
    assert connect().multi_get(["large"] * 3) == [large.encode()] * 3
    keys = [f"key/{number}" for number in range(20_000)]
    store.multi_set(keys, [str(number) for number in range(20_000)])
    assert store.multi_get(keys)[12_345] == b"12345"
    assert store.check(keys) is True
    assert len(store.list_keys()) == 20_001


def test_what_is_too_large_ends_the_connection_and_no_other(store: TCPStore, connect: Callable[[], TCPStore]) -> None:
    store.set("k" * 8191, "longest")
    assert store.get("k" * 8191) == b"longest"
    with pytest.raises(RuntimeError):
        connect().get("k" * 8192)
    broken = connect()
    with pytest.raises(RuntimeError):
        broken.set("k", "x" * ((8 << 20) + 1))
        broken.num_keys()
    assert store.num_keys() == 1


def test_prefix_stores_nest(store: TCPStore) -> None:
    outer = PrefixStore("outer", store)
    inner = PrefixStore("inner/", outer)
    inner.set("k", "v")
    assert inner.get("k") == b"v"
    assert store.get("outer/inner//k") == b"v"
    assert outer.add("n", 1) == 1
    assert inner.compare_set("c", "", "x") == b"x"
    inner.append("k", "w")
    inner.multi_set(["x", "y"], ["1", "2"])
    assert inner.multi_get(["x", "y", "k"]) == [b"1", b"2", b"vw"]
    inner.queue_push("q", "item")
    assert inner.queue_len("q") == 1
    assert inner.queue_pop("q") == b"item"
    inner.barrier("b", 1, LONG)
    assert inner.check(["x"]) is True
    assert inner.delete_key("x") is True
    with pytest.raises(DistStoreError, match="timeout"):
        inner.wait(["x"], SHORT)
    # torch builds a prefixed barrier out of other operations, with a key of its own.
    assert {key.removeprefix("outer/") for key in store.list_keys()} >= {"n", "inner//k", "inner//c", "inner//y"}


def test_a_clone_is_another_connection(store: TCPStore) -> None:
    other = store.clone()
    store.set("k", "v")
    assert other.get("k") == b"v"


PROCESS = """
import sys
from datetime import timedelta
from instep.store import Client, Server
from torch.distributed import TCPStore

port, rank = int(sys.argv[1]), int(sys.argv[2])
store = TCPStore("localhost", port, world_size=2, is_master=False, timeout=timedelta(seconds=60))
store.set(f"rank/{rank}", f"hello from {rank}")
print(store.get(f"rank/{1 - rank}").decode())
store.barrier("end", 2, timedelta(seconds=60))
"""


def test_two_processes_meet(port: int, store: TCPStore) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(port), str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=90)[0] for process in processes]
    assert outputs == ["hello from 1\n", "hello from 0\n"]
    # Both registered under the key without a slash, which the client hides.
    assert sorted(store.list_keys()) == ["end", "rank/0", "rank/1"]
    assert store.num_keys() == 4


PING, PONG = b"\x0dMARK", b"MARK"


def exchange(port: int, data: bytes) -> bytes | None:
    """Send bytes and then a ping; give what is answered before the ping's answer, None if the server closes."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=LONG.total_seconds()) as connection:
        connection.sendall(data + PING)
        while not received.endswith(PONG):
            try:
                piece = connection.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not piece:
                return None
            received += piece
    return received.removesuffix(PONG)


def string(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def keys(*names: bytes) -> bytes:
    return struct.pack("<Q", len(names)) + b"".join(string(name) for name in names)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param(b"\x0d\x97\x45\0\0", b"\x97\x45\0\0", id="ping"),
        pytest.param(b"\x03" + string(b"/none"), bytes(8), id="get of a missing key"),
        pytest.param(b"\x06" + keys(), b"\0", id="wait for nothing"),
        pytest.param(b"\x05" + keys(), b"\0", id="check of nothing"),
        pytest.param(b"\x05" + keys(b"/none"), b"\1", id="check of a missing key"),
        pytest.param(b"\x06" + keys(b"/none") + b"\x07", bytes(8), id="another request during a wait"),
        pytest.param(b"\x06" + keys(b"/none") + b"\x0c", b"\1", id="cancel"),
        pytest.param(b"\x0c\x0c", b"\1\1", id="cancel without a wait"),
        pytest.param(b"\x12" + string(b"/b") + struct.pack("<q", -1), b"\0", id="barrier of nobody"),
        pytest.param(b"\x0f" + string(b"/q"), bytes(8), id="pop of an empty queue"),
        pytest.param(b"\x10" + string(b"/q"), bytes(8), id="length of an empty queue"),
        pytest.param(b"\x11", bytes(8), id="no keys"),
        pytest.param(b"\x0a" + keys(b"/none", b"/none"), bytes(16), id="multi get of missing keys"),
        pytest.param(
            b"\x01" + string(b"/n") + string(b" 12abc") + b"\x04" + string(b"/n") + struct.pack("<q", 1),
            struct.pack("<q", 13),
            id="add to text that starts with a number",
        ),
        pytest.param(b"\x13", None, id="unknown operation"),
        pytest.param(HELLO, None, id="second hello"),
        pytest.param(b"\x03" + struct.pack("<Q", 8193), None, id="key too long"),
    ],
)
def test_bytes_on_the_wire(port: int, sent: bytes, expected: bytes | None) -> None:
    assert exchange(port, HELLO + sent) == expected
    # Whatever it was, the server goes on.
    assert client_of(port).add("alive", 1) == 1


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x03" + string(b"init/") + struct.pack("<q", 1), bytes(64)]
)
def test_strangers_are_turned_away_at_once(instep_port: int, sent: bytes) -> None:
    assert exchange(instep_port, sent) is None
    assert client_of(instep_port).num_keys() == 0


def test_half_a_request_is_no_request(port: int, store: TCPStore) -> None:
    request = b"\x01" + string(b"/k") + string(b"value")
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # In one piece: torch's server closes a connection whose hello it has to read twice for.
        connection.sendall(HELLO)
        for byte in request[:-1]:
            connection.sendall(bytes([byte]))
        assert store.check(["k"]) is False
        connection.sendall(request[-1:])
        assert store.get("k") == b"value"


def test_the_hello_may_come_in_parts(instep_port: int) -> None:
    with socket.create_connection(("127.0.0.1", instep_port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in HELLO + b"\x0d\x97\x45\0\0":
            connection.sendall(bytes([byte]))
            time.sleep(0.001)
        connection.settimeout(30)
        assert connection.recv(4) == b"\x97\x45\0\0"


def test_our_client_speaks_with_both_servers_and_sees_torchs_keys(port: int, store: TCPStore) -> None:
    with Client("localhost", port, timeout=30) as client:
        client.set("text", "v")
        client.set("bytes", b"\x00\xff")
        assert store.get("bytes") == b"\x00\xff"
        store.set("theirs", "t")
        assert client.get("theirs") == b"t"
        assert client.try_get("none") is None
        assert client.add("n", 2) == 2
        assert store.add("n", 1) == 3
        assert client.compare_set("c", "", "x") == b"x"
        assert client.check(["c", "n"]) is True
        client.multi_set({"m1": "1", "m2": b"2"})
        client.append("m1", "+")
        assert client.multi_get(["m2", "m1"]) == [b"2", b"1+"]
        assert client.delete("c") is True
        assert sorted(client.list_keys()) == sorted(store.list_keys())
        assert client.num_keys() == store.num_keys() == 6
        client.queue_push("q", "item")
        assert client.queue_length("q") == 1
        assert client.queue_pop("q") == b"item"
        assert client.queue_pop("q", block=False) is None
        _, _ = in_threads(lambda: client.barrier("b", 2), lambda: store.barrier("b", 2, LONG))


def test_our_client_raises_built_in_errors_and_lives_on(port: int, store: TCPStore) -> None:
    client = Client("127.0.0.1", port, timeout=30)
    with pytest.raises(TimeoutError, match="never"):
        client.get("never", timeout=0.05)
    with pytest.raises(TimeoutError):
        client.barrier("alone", 2, timeout=0)
    with pytest.raises(ValueError, match="limit of 8192"):
        client.set("k" * 8192, "")
    with pytest.raises(ValueError, match="timeout"):
        client.wait(["k"], timeout=-1)
    timer = threading.Timer(0.1, lambda: store.set("late", "now"))
    timer.start()
    assert client.get("late") == b"now"
    timer.join()
    client.close()
    with pytest.raises(ConnectionError, match="closed"):
        client.num_keys()


INTERRUPTED = """
import os, signal, threading
from instep.store import Client, Server

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
server = Server()
client = Client("127.0.0.1", server.port)
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    client.get("never")
except KeyboardInterrupt:
    print("interrupted", client.num_keys())
"""


def test_ctrl_c_ends_a_wait() -> None:
    finished = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert finished.stdout == "interrupted 0\n", finished.stderr


def test_a_server_in_python_serves_torch_and_says_who_it_refused(wait_until: Any) -> None:  # noqa: ANN401
    with Server() as server:
        client_of(server.port).set("k", "v")
        assert exchange(server.port, b"GET / HTTP/1.1\r\n\r\n") is None
        notices: list[str] = []
        wait_until(lambda: notices.extend(server.notices()) or notices, 10, "the notice")
        assert "not a store client" in notices[0]
        with pytest.raises(OSError, match=str(server.port)):
            Server(server.port)
        client = Client("127.0.0.1", server.port)
    with pytest.raises(ConnectionError):
        client.num_keys()
    with pytest.raises(ConnectionError, match="Connection refused"):
        Client("127.0.0.1", server.port, timeout=0.1)


def test_the_types_of_the_extension_are_those_of_its_stub(tmp_path: Path) -> None:
    # The stub stands for itself; what the package around it imports, torch above all, takes half a minute to read.
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy.stubtest", "--mypy-config-file", str(settings), "instep._native"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stdout + finished.stderr
