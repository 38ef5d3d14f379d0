"""While a cluster is upgraded its masters are newer than its agents, for a while."""

from __future__ import annotations

import json
import re
import socket
import struct
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from conftest import Runner
from detached.conftest import Master, determined, master
from detached.test_strangers import UPGRADE, frame, request

__all__ = ["determined", "master"]


def greeted(address: str, token: str, version: str) -> Any:  # noqa: ANN401
    """Say hello as an agent of some version; give the master's first word."""
    parts = urlsplit(address)
    hello = {"type": "hello", "protocol": 1, "version": version, "agent": f"of-{version}", "pool": ""}
    hello |= {"addresses": ["127.0.0.1"], "devices": [], "shares": []}
    head = request("GET /api/v1/agents/link", f"{UPGRADE}Authorization: Bearer {token}\r\n")
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        connection.sendall(head + frame(json.dumps(hello)))
        received = b""
        while True:
            _, separator, frames = received.partition(b"\r\n\r\n")
            if separator and len(frames) > 3:
                short = frames[1] & 0x7F
                start, length = (2, short) if short < 126 else (4, struct.unpack(">H", frames[2:4])[0])
                if len(frames) >= start + length:
                    return json.loads(frames[start : start + length])
            data = connection.recv(65536)
            assert data, received
            received += data


@pytest.fixture
def version(run: Runner, instep: Path) -> tuple[int, int]:
    """The minor version of what is tested."""
    found = re.search(r"(\d+)\.(\d+)\.\d+", run(instep, "--version").expect(0).stdout)
    assert found
    return int(found[1]), int(found[2])


def test_agents_one_minor_version_older_work_and_newer_ones_are_told_why_not(
    master: Master, version: tuple[int, int]
) -> None:
    token = master.client.login("admin")("POST", "/api/v1/agents/tokens", {"name": "all"})["token"]
    major, minor = version
    for agent in (f"{major}.{minor}.99", f"{major}.{minor - 1}.0"):
        assert greeted(master.address, token, agent)["type"] == "welcome", agent
    newer = greeted(master.address, token, f"{major}.{minor + 1}.0")
    assert newer["type"] == "refused"
    assert f"the agent is version {major}.{minor + 1}.0, the master version {major}.{minor}." in newer["why"]
    assert "must not be newer than its master\nhint: replace the masters first" in newer["why"]
