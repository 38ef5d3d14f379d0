"""Connections of strangers, of every kind at once: nobody gets in, nothing crashes, and memory stays what it was.

120 of them in CI (about 2 s), 10,000 in `make soak SUITE=detached`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import struct
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from .conftest import Master

# Connections at a time, besides those that wait in silence.
TOGETHER = 100
# How long the master lets an unfinished request stand is longer than a test in CI.
SHORT = 2.0
LONG = 90.0
MOST_GROWTH = 50 << 20

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
# A record with a client's hello of TLS 1.2, cut off.
TLS = bytes.fromhex("16030100a5010000a10303") + bytes(64)


def request(line: str, headers: str = "", body: str = "", host: str = "127.0.0.1") -> bytes:
    """Give a request as bytes."""
    return f"{line} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n{body}".encode()


def frame(text: str) -> bytes:
    """Give a text as a websocket's client sends it, short or of up to 64 KiB."""
    data = text.encode()
    length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data))
    return b"\x81" + length + bytes(4) + data


def kinds(agent_token: str) -> dict[str, Callable[[random.Random], bytes]]:
    """What strangers send, by name."""
    wrong = "Authorization: Bearer 0123456789abcdef0123456789abcdef\r\n"
    agent = f"Authorization: Bearer {agent_token}\r\n"
    hello = {"protocol": 999, "version": "0", "agent": "stranger", "pool": ""}
    hello |= {"addresses": [], "devices": [], "shares": []}
    login = json.dumps({"username": "admin", "password": "guess"})
    link = request("GET /api/v1/agents/link", UPGRADE + agent)
    return {
        "silence": lambda _: b"",
        "half a head": lambda _: b"GET /api/v1/experiments HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: ",
        "half a body": lambda _: request("POST /api/v1/auth/login", "Content-Length: 4000\r\n", '{"username": "adm'),
        "garbage": lambda chance: chance.randbytes(chance.randint(1, 5000)),
        "TLS": lambda _: TLS,
        "no token": lambda _: request("GET /api/v1/experiments"),
        "wrong token": lambda _: request("GET /api/v1/users", wrong),
        "an agent's token": lambda _: request("GET /api/v1/users", agent),
        "wrong password": lambda _: request("POST /api/v1/auth/login", f"Content-Length: {len(login)}\r\n", login),
        "another page": lambda _: request("POST /api/v1/auth/logout", "Origin: http://evil.example\r\n"),
        "another host": lambda _: request("GET /api/v1/master", host="evil.example"),
        "two lengths": lambda _: request(
            "POST /api/v1/auth/login", "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "{}"
        ),
        "a long head": lambda chance: request("GET /", f"X-Long: {'x' * chance.randint(200_000, 700_000)}\r\n"),
        "a path that leaves": lambda _: request("GET /det/..%2f..%2f..%2fetc/passwd"),
        "agent, wrong token": lambda _: request("GET /api/v1/agents/link", UPGRADE + wrong),
        "agent, wrong version": lambda _: link + frame(json.dumps({"type": "hello", **hello})),
        "agent, garbage": lambda chance: link + chance.randbytes(2000),
        "agent, half a hello": lambda _: link + frame("x" * 100)[:50],
    }


# What only looks like success: a websocket begins before the agent says who it is.
UPGRADED = {"agent, wrong version", "agent, garbage", "agent, half a hello"}


async def visit(port: int, sent: bytes, patience: float) -> bytes:
    """Send something; give what came until the master closed the connection, or as much as came in time."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return b""
    answer = b""
    try:
        writer.write(sent)
        async with asyncio.timeout(patience):
            await writer.drain()
            while data := await reader.read(65536):
                answer += data
                # An answered request of which the connection is kept open.
                if b"\r\n\r\n" in answer and not answer.startswith(b"HTTP/1.1 101"):
                    break
    except (TimeoutError, OSError):
        pass
    finally:
        writer.transport.abort()
    return answer


async def visit_all(master: Master, agent_token: str, count: int, patience: float) -> Counter[tuple[str, str]]:
    """Let so many strangers come; count the first lines of what they were answered."""
    chance, waiting = random.Random(18), asyncio.Semaphore(TOGETHER)
    table = kinds(agent_token)
    found: Counter[tuple[str, str]] = Counter()

    async def one(name: str) -> None:
        sent = table[name](chance)
        if name.startswith(("silence", "half")):
            answer = await visit(master.port, sent, patience)
        else:
            async with waiting:
                answer = await visit(master.port, sent, min(patience, 20.0))
        status = re.match(rb"HTTP/1\.1 (\d+)", answer)
        found[name, status[1].decode() if status else "closed"] += 1
        if name in UPGRADED:
            assert b"welcome" not in answer, answer

    await asyncio.gather(*(one(name) for name, _ in zip(itertools.cycle(table), range(count), strict=False)))
    return found


def visits(master: Master, agent_token: str, count: int, patience: float) -> Counter[tuple[str, str]]:
    """Do the same from a thread: in this one a browser's events may be waited for."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, visit_all(master, agent_token, count, patience)).result()


def strangers_come(master: Master, count: int, patience: float) -> None:
    """Let strangers come while a user works."""
    admin = master.client.login("admin")
    token = admin("POST", "/api/v1/agents/tokens", {"name": "machines"})["token"]
    process = psutil.Process(master.process.pid)
    visits(master, token, 36, SHORT)
    before = process.memory_info().rss
    found = visits(master, token, count, patience)
    for (name, status), times in sorted(found.items()):
        in_order = status in ("101", "closed") if name in UPGRADED else not status.startswith(("1", "2", "5"))
        assert in_order or status == "503", f"{name}: {status}, {times} times\n{found}"
    assert admin("GET", "/api/v1/agents")["agents"] == [], "nobody became an agent"
    assert process.is_running()
    assert "panicked" not in master.process.stderr
    # What has ended is given back within moments.
    deadline = time.monotonic() + 30
    while (growth := process.memory_info().rss - before) > MOST_GROWTH and time.monotonic() < deadline:
        time.sleep(0.5)
    assert growth <= MOST_GROWTH, f"{growth >> 20} MiB more than before"
    print(f"{sum(found.values())} connections of {len(kinds(token))} kinds, {growth >> 10} KiB more\n{found}")


def test_strangers_neither_get_in_nor_break_anything(master: Master) -> None:
    strangers_come(master, 120, SHORT)


@pytest.mark.soak
def test_ten_thousand_strangers_neither_get_in_nor_break_anything(master: Master) -> None:
    strangers_come(master, 10_000, LONG)
