"""A leader is lost while a search runs: no trial runs twice, and none is lost."""

from __future__ import annotations

import contextlib
import http.client
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Runner
from detached.conftest import Client
from managed.conftest import Cluster
from managed.faults import Work

from .conftest import TAKEOVER_S, Masters


class AnyMaster(Client):
    """A client that asks the next master when one gives no answer, as clients with several addresses do."""

    def __init__(self, masters: Masters, token: str) -> None:
        super().__init__(masters.members[0].address, token)
        self._masters = masters

    def raw(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send bytes until somebody does what they say."""
        deadline = time.monotonic() + TAKEOVER_S
        while True:
            for member in self._masters.members:
                self.address = member.address
                with contextlib.suppress(OSError, http.client.HTTPException):
                    found = super().raw(method, path, body, headers)
                    if found[0] not in (502, 503) or time.monotonic() > deadline:
                        return found
            assert time.monotonic() < deadline, self._masters.told()
            time.sleep(0.1)

    def lines(self, path: str) -> list[Any]:
        """The elements of a streamed answer, from the beginning when its master breaks it off."""
        deadline = time.monotonic() + TAKEOVER_S
        while True:
            try:
                return super().lines(path)
            except KeyError:
                assert time.monotonic() < deadline, self._masters.told()


class Addresses:
    """What agents and tests know of the cluster."""

    def __init__(self, masters: Masters) -> None:
        self.address = ",".join(member.address for member in masters.members)


@pytest.fixture
def cluster(
    run: Runner, instep: Path, python: Path, masters: Masters, tmp_path: Path, wait_until: Callable[..., None]
) -> Iterator[Cluster]:
    """Three masters, and agents that know all of them."""
    for _ in range(3):
        masters.start("--checkpoints", str(tmp_path))
    leader = masters.leader().client
    token = leader.login().token
    assert token is not None
    # Whoever has no password logs in at the leader's own machine alone, and agents come from anywhere.
    (tmp_path / "token").write_text(leader.login("admin")("POST", "/api/v1/agents/tokens", {"name": "all"})["token"])
    known: Any = Addresses(masters)
    made = Cluster(run, instep, python, known, tmp_path, wait_until, AnyMaster(masters, token))
    yield made
    made.end()


def start_agent(cluster: Cluster, name: str) -> None:
    cluster.agent(name, 2, "--token-file", str(cluster.folder / "token"))


def test_a_search_does_not_notice_that_the_leader_is_killed(
    cluster: Cluster, masters: Masters, python: Path, tmp_path: Path
) -> None:
    start_agent(cluster, "one")
    work = Work(cluster, tmp_path, python)
    work.begin("training")
    work.wait_for("training")
    known = {member.address for member in masters.members}
    scripts = [each for each in cluster.agents["one"].left_behind() if each.cmdline()[-1:] == ["steady.py"]]
    assert scripts
    assert not {each.environ()["DET_MASTER"] for each in scripts} & known, "any client in it outlives each of them"
    leader = masters.leader()
    leader.signal(signal.SIGKILL)
    leader.process.wait()
    assert masters.leader() is not leader
    work.release("training")
    work.check()


def test_a_task_whose_agent_has_come_through_another_master_outlives_a_stopped_leader(
    cluster: Cluster, masters: Masters, python: Path, tmp_path: Path
) -> None:
    leader = masters.leader()
    others = [member for member in masters.members if member is not leader]
    # The stopped one is the next that the agent knows: it still accepts connections, and answers nothing.
    way = ",".join(member.address for member in (others[0], leader, others[1]))
    cluster.agent("one", 2, "--token-file", str(tmp_path / "token"), master=way)
    work = Work(cluster, tmp_path, python)
    work.begin("training")
    work.wait_for("training")
    leader.signal(signal.SIGSTOP)
    try:
        masters.wait_until(lambda: any(member.leads() for member in others), TAKEOVER_S, masters.told)
        survivor = Client(others[0].address, cluster.api.token)

        def is_back() -> bool:
            found = survivor("GET", "/api/v1/agents")["agents"]
            return any(agent["id"] == "one" and agent["enabled"] for agent in found)

        masters.wait_until(is_back, TAKEOVER_S, lambda: cluster.agents["one"].stderr[-3000:])
        work.release("training")
        cluster.wait_until(
            lambda: survivor("GET", f"/api/v1/experiments/{work.number}")["experiment"]["state"] == "STATE_COMPLETED",
            60,
            lambda: f"the search to complete\n{work.log()}",
        )
    finally:
        leader.signal(signal.SIGCONT)
    work.check()
