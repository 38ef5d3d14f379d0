"""Trials over two machines that share nothing but a network: the stock launcher with gloo, and ours with our backend.

The machines are network namespaces. The master is on the first one's address, where everybody needs a password and
agents a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from conftest import Runner
from detached.conftest import Client, Master
from detached.det import Commands
from e2e.namespaces import Network, network

from .conftest import CONTEXTS, Cluster, rows

__all__ = ["network"]

CONTEXT = CONTEXTS / "network"
PASSWORD = "Correct-Horse-1"


def exact() -> dict[int, dict[str, float]]:
    """What one process with all rows gets, step by step: nothing is rounded, so every order of adding gives it."""
    rows = [(row % 3 - 1, row % 2, row % 4) for row in range(8)]
    weights = [Fraction(0), Fraction(0)]
    found = {}
    for step in range(1, 9):
        errors = [weights[0] * row[0] + weights[1] * row[1] - row[2] for row in rows]
        for index in range(2):
            slope = sum((error * row[index] for error, row in zip(errors, rows, strict=True)), Fraction(0)) / 8
            weights[index] -= slope / 4
        assert all(Fraction(float(weight)) == weight for weight in weights)
        found[step] = {"first": float(weights[0]), "second": float(weights[1])}
    return found


class Machines:
    """A cluster whose master and agents are on two machines."""

    def __init__(
        self, network: Network, run: Runner, instep: Path, interpreter: Path, folder: Path, slots: int = 2
    ) -> None:
        self._network = network
        self._run = run
        self._instep = instep
        self._interpreter = interpreter
        self._folder = folder
        self._slots = slots

    def start(self, address: str, wait_until: Callable[..., None], uid: int = 0) -> Cluster:
        """Start the master on an address of the first machine, and an agent on each, as a user of the machine."""
        master = Master(self._run.start, self._instep, self._folder / "master.db")
        master.start(wait_until)
        give_passwords(master.client)
        master.stop()
        master.start(wait_until, "--host", address)
        assert address in master.address
        administrator = master.client.login("admin", PASSWORD)
        token = administrator("POST", "/api/v1/agents/tokens", {"name": "machines"})["token"]
        api = master.client.login(password=PASSWORD)
        cluster = Cluster(self._run, self._instep, self._interpreter, master, self._folder, wait_until, api)
        for number, node in enumerate(self._network.nodes):
            with node.entered():
                cluster.agent(f"agent{number}", self._slots, "--token", token, uid=uid)
        return cluster


def give_passwords(client: Client) -> None:
    """Give every user a password, which is what makes a master serve others."""
    administrator = client.login("admin")
    users = administrator("GET", "/api/v1/users")["users"]
    # A new password ends the user's sessions, so that one's own comes last.
    for user in sorted(users, key=lambda user: user["admin"]):
        administrator("PATCH", f"/api/v1/users/{user['id']}", {"password": PASSWORD})


@pytest.fixture
def enter(network: Network) -> Iterator[Network]:
    """Two machines, and the test is on the first."""
    with network.nodes[0].entered():
        yield network


def check(cluster: Cluster, number: int) -> None:
    """An experiment of four ranks on the two machines has come to the result of one process."""
    cluster.wait_for(number, "STATE_COMPLETED", 150)
    [trial] = cluster.trials(number)
    assert trial["restarts"] == 0
    expected = exact()
    shown = {step: dict(row) for step, row in rows(cluster.api, trial["id"], "training").items()}
    assert shown == expected
    assert {step: dict(row) for step, row in rows(cluster.api, trial["id"], "validation").items()} == {8: expected[8]}
    lines = cluster.logs(trial["id"])
    for rank in range(4):
        said = f"rank {rank} of 4 is done on node{rank // 2}"
        [line] = [line for line in lines if said in line["log"]]
        assert (line["rankId"], line["agentId"]) == (rank, f"agent{rank // 2}")


def test_stock_launcher_with_ddp(
    enter: Network, run: Runner, instep: Path, forked_determined: Path, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    cluster = Machines(enter, run, instep, forked_determined, tmp_path).start(enter.nodes[0].ipv4, wait_until)
    config = cluster.config(
        "python3 -m determined.launch.torch_distributed python3 stock.py",
        searcher={"name": "single", "metric": "first"},
        resources={"slots_per_trial": 4},
    )
    settings = {
        "DET_MASTER": cluster.master.address,
        "DET_USER": "determined",
        "DET_PASS": PASSWORD,
        "DET_DEBUG_CONFIG_PATH": str(tmp_path / "client"),
        "HOME": str(tmp_path),
    }
    Commands(run, forked_determined, settings)(["e", "create", str(cluster.written(config)), str(CONTEXT)])
    check(cluster, 1)


@pytest.mark.parametrize("family", [pytest.param("ipv4", marks=pytest.mark.soak), "ipv6"])
def test_our_launcher_with_our_backend(
    enter: Network,
    run: Runner,
    instep: Path,
    forked: Path,
    tmp_path: Path,
    wait_until: Callable[..., None],
    family: str,
) -> None:
    if family == "ipv6":
        enter.forget_ipv4()
    address = enter.nodes[0].ipv4 if family == "ipv4" else enter.nodes[0].ipv6
    cluster = Machines(enter, run, instep, forked, tmp_path).start(address, wait_until)
    settings = {"INSTEP_MASTER": cluster.master.address, "HOME": str(tmp_path)}
    settings |= {"INSTEP_USER": "determined", "INSTEP_PASSWORD": PASSWORD}
    entrypoints = ["instep run ddp.py --backend instep", "ddp.py --backend instep"]
    for number, entrypoint in enumerate(entrypoints if family == "ipv4" else entrypoints[1:], 1):
        config = cluster.config(
            entrypoint, searcher={"name": "single", "metric": "first"}, resources={"slots_per_trial": 4}
        )
        run(instep, "experiment", "create", cluster.written(config), CONTEXT, env=settings).expect(0)
        check(cluster, number)
        # The master gave the job a token, so that each machine's launcher serves the store to its own ranks alone.
        [trial] = cluster.trials(number)
        shown = "\n".join(line["log"] for line in cluster.logs(trial["id"]))
        assert all(f"the store of rank {rank} is at localhost" in shown for rank in range(4)), shown
