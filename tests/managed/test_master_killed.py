"""The master is killed while it runs experiments: it finds its work again, and nothing is lost or done twice."""

from __future__ import annotations

import random
import time

import pytest

from detached.det import Commands

from .conftest import CONTEXTS, Cluster, rows

TUTORIAL = CONTEXTS / "tutorial"


def kill_and_start_again(cluster: Cluster) -> None:
    cluster.master.kill()
    cluster.master.start(cluster.wait_until)


def check_undisturbed(cluster: Cluster, experiment: int, increment_by: int) -> None:
    """Say whether a trial ended as if nothing had happened: one run, every metric once."""
    [trial] = cluster.trials(experiment)
    assert (trial["state"], trial["restarts"], trial["totalBatchesProcessed"]) == ("STATE_COMPLETED", 0, 100)
    expected = {step: increment_by * step for step in range(10, 101, 10)}
    for group in ("training", "validation"):
        found = rows(cluster.api, trial["id"], group)
        assert {step: row["x"] for step, row in found.items()} == expected
    allocations = {line["allocationId"] for line in cluster.logs(trial["id"])} - {None}
    assert allocations == {f"{trial['taskId']}.1"}


def test_a_running_trial_does_not_notice(cluster: Cluster, det: Commands) -> None:
    cluster.agent("one", 1)
    config = cluster.config("python3 checkpoints.py 0.08", hyperparameters={"increment_by": 2})
    det(["e", "create", str(cluster.written(config)), str(TUTORIAL)])
    cluster.wait_until(lambda: cluster.trials(1), 30, "a trial")
    for steps in (10, 40):
        cluster.wait_for_steps(1, steps)
        kill_and_start_again(cluster)
    cluster.wait_for(1, "STATE_COMPLETED")
    check_undisturbed(cluster, 1, 2)


def test_what_waits_goes_on_waiting(cluster: Cluster, det: Commands) -> None:
    config = cluster.config("python3 checkpoints.py 0", hyperparameters={"increment_by": 1})
    det(["e", "create", str(cluster.written(config)), str(TUTORIAL)])
    cluster.wait_until(lambda: cluster.trials(1), 30, "a trial")
    kill_and_start_again(cluster)
    assert cluster.experiment(1)["state"] == "STATE_QUEUED"
    cluster.agent("one", 1)
    cluster.wait_for(1, "STATE_COMPLETED")
    check_undisturbed(cluster, 1, 1)


@pytest.mark.soak
def test_killed_at_any_moment(cluster: Cluster, det: Commands) -> None:
    moments = random.Random(5)
    cluster.agent("one", 4)
    config = cluster.config(
        "python3 checkpoints.py 0.02",
        hyperparameters={"increment_by": {"type": "int", "minval": 1, "maxval": 8}},
        searcher={"name": "random", "metric": "x", "max_trials": 8, "smaller_is_better": False},
    )
    det(["e", "create", str(cluster.written(config)), str(TUTORIAL)])
    for _ in range(10):
        time.sleep(moments.uniform(0.1, 3))
        kill_and_start_again(cluster)
    cluster.wait_for(1, "STATE_COMPLETED", 300)
    trials = cluster.trials(1)
    assert len(trials) == 8
    for trial in trials:
        assert (trial["state"], trial["totalBatchesProcessed"]) == ("STATE_COMPLETED", 100)
        increment_by = trial["hparams"]["increment_by"]
        found = rows(cluster.api, trial["id"], "validation")
        assert {step: row["x"] for step, row in found.items()} == {
            step: increment_by * step for step in range(10, 101, 10)
        }
