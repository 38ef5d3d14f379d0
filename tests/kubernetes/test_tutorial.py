"""Determined's tutorial on a pool of Kubernetes: the same tests as on agents, in pods.

What a trial has said is complete when its pods are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Runner, Running
from detached.conftest import Master
from managed import test_tutorial as on_agents
from managed.conftest import Cluster

from .cluster import KubernetesCluster
from .site import OPTIONS, KubernetesMaster, empty

pytestmark = pytest.mark.soak

test_start_and_follow = on_agents.test_start_and_follow
test_metrics = on_agents.test_metrics
test_checkpoints_with_pause_and_activate = on_agents.test_checkpoints_with_pause_and_activate
test_adaptive_search = on_agents.test_adaptive_search
test_older_form_with_operations = on_agents.test_older_form_with_operations


class WithPods(Cluster):
    """A cluster whose agents come with pods."""

    def agent(self, *_: object, **__: object) -> Running:
        """Nodes of Kubernetes have as many slots as they have."""
        return self.master.process


@pytest.fixture
def master(
    kubernetes: KubernetesCluster,
    run: Runner,
    instep: Path,
    determined: Path,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> Iterator[Master]:
    """A master whose default pool is Kubernetes'."""
    made = KubernetesMaster(kubernetes, determined, run.start, instep, tmp_path / "master.db", pool="default")
    made.start(wait_until, *OPTIONS)
    yield made
    if made.process.poll() is None:
        made.stop()
    empty(kubernetes, wait_until)


@pytest.fixture
def cluster(
    run: Runner,
    instep: Path,
    determined: Path,
    master: Master,
    kubernetes: KubernetesCluster,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> Iterator[Cluster]:
    """Pods in place of agents; when a test is over, its logs do not depend on them."""
    made = WithPods(run, instep, determined, master, tmp_path, wait_until)
    yield made
    trials = [trial["id"] for trial in made.trials(1)]
    before = [made.text(trial) for trial in trials]
    empty(kubernetes, wait_until)
    assert [made.text(trial) for trial in trials] == before
    assert all("resources exited successfully with a zero exit code" in text for text in before)


def test_distributed_by_its_own_launcher(cluster: Cluster, det: Callable[[list[str]], list[str]]) -> None:
    config = cluster.config(
        "python3 distributed.py", hyperparameters={"increment_by": 1}, resources={"slots_per_trial": 4}
    )
    det(["e", "create", str(cluster.written(config)), str(on_agents.TUTORIAL)])
    cluster.wait_for(1, "STATE_COMPLETED", 300)
    # Every step adds 1 + 2 + 3 + 4.
    assert {step: row["x"] for step, row in on_agents.rows(cluster.api, 1, "training").items()} == {10: 100, 20: 200}
    for rank in range(4):
        lines = cluster.logs(1, f"rankIds={rank}")
        assert [line["log"] for line in lines if f"rank {rank} of 4 is done" in line["log"]], rank
        [agent] = {line["agentId"] for line in lines}
        assert agent.startswith("node-"), agent
