"""Determined's tutorial on a pool of Slurm: the same tests as on agents, in jobs.

What a trial has said is complete when its jobs are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Runner, Running
from detached.conftest import Master
from managed import test_tutorial as on_agents
from managed.conftest import Cluster, rows

from .cluster import SlurmCluster
from .site import SlurmMaster

pytestmark = pytest.mark.soak

test_start_and_follow = on_agents.test_start_and_follow
test_metrics = on_agents.test_metrics
test_checkpoints_with_pause_and_activate = on_agents.test_checkpoints_with_pause_and_activate
test_adaptive_search = on_agents.test_adaptive_search
test_older_form_with_operations = on_agents.test_older_form_with_operations


class WithJobs(Cluster):
    """A cluster whose agents come with jobs."""

    def agent(self, name: str, slots: int, *options: str, **more: object) -> Running:  # noqa: ARG002
        """Nodes of Slurm have as many slots as they have."""
        process: Running = self.master.process
        return process


@pytest.fixture
def master(
    slurm: SlurmCluster,
    run: Runner,
    instep: Path,
    determined: Path,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> Iterator[Master]:
    """A master whose default pool is Slurm's."""
    made = SlurmMaster(slurm, determined, run.start, instep, tmp_path / "master.db")
    made.pools = [{"pool_name": "default", "engine": made.engine}]
    made.start(wait_until, "--agent-reconnect-wait=10")
    yield made
    made.stop()


@pytest.fixture
def cluster(
    run: Runner,
    instep: Path,
    determined: Path,
    master: Master,
    slurm: SlurmCluster,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> Iterator[Cluster]:
    """Jobs in place of agents; when a test is over, its logs do not depend on them."""
    made = WithJobs(run, instep, determined, master, tmp_path, wait_until)
    yield made
    trials = [trial["id"] for trial in made.trials(1)]
    before = [made.text(trial) for trial in trials]
    wait_until(lambda: not slurm.command("squeue", "--noheader"), 60, lambda: slurm.command("squeue"))
    assert [made.text(trial) for trial in trials] == before
    assert all("resources exited successfully with a zero exit code" in text for text in before)


def test_distributed_by_its_own_launcher(cluster: Cluster, det: Callable[[list[str]], list[str]]) -> None:
    config = cluster.config(
        "python3 distributed.py", hyperparameters={"increment_by": 1}, resources={"slots_per_trial": 4}
    )
    det(["e", "create", str(cluster.written(config)), str(on_agents.TUTORIAL)])
    cluster.wait_for(1, "STATE_COMPLETED", 300)
    # Every step adds 1 + 2 + 3 + 4.
    assert {step: row["x"] for step, row in rows(cluster.api, 1, "training").items()} == {10: 100, 20: 200}
    for rank in range(4):
        lines = cluster.logs(1, f"rankIds={rank}")
        assert [line["log"] for line in lines if f"rank {rank} of 4 is done" in line["log"]], rank
        assert {line["agentId"].rpartition("-")[0] for line in lines} == {f"n{rank + 1}"}
