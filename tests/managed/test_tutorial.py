"""The stages of Determined's Core API tutorial, with its unmodified client in the tasks and as `det`."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from conftest import Running
from detached.det import Commands

from .conftest import CONTEXTS, SEARCH, Cluster, rows

TUTORIAL = CONTEXTS / "tutorial"


def test_start_and_follow(cluster: Cluster, follow: Callable[..., Running]) -> None:
    cluster.agent("one", 1)
    config = cluster.written(cluster.config("python3 start.py"))
    done = follow("e", "create", config, TUTORIAL, "-f").wait(90).expect(0)
    assert "Created experiment 1" in done.stdout
    for x in range(1, 6):
        assert re.search(rf"\[20\S+Z\] [0-9a-f]{{8}} \|\| INFO: \[\d+\] root: x is now {x}\n", done.stdout), done.stdout
    assert "resources exited successfully with a zero exit code" in done.stdout
    cluster.wait_for(1, "STATE_COMPLETED")
    [trial] = cluster.trials(1)
    assert (trial["state"], trial["restarts"]) == ("STATE_COMPLETED", 0)


def test_metrics(cluster: Cluster, det: Commands) -> None:
    cluster.agent("one", 1)
    config = cluster.written(cluster.config("python3 metrics.py"))
    det(["e", "create", str(config), str(TUTORIAL)])
    experiment = cluster.wait_for(1, "STATE_COMPLETED")
    assert (experiment["numTrials"], experiment["progress"]) == (1, 1.0)
    assert {step: row["x"] for step, row in rows(cluster.api, 1, "training").items()} == {
        step: step for step in range(10, 101, 10)
    }
    assert {step: row["x"] for step, row in rows(cluster.api, 1, "validation").items()} == {100: 100}
    [trial] = cluster.trials(1)
    assert trial["totalBatchesProcessed"] == 100
    assert trial["bestValidation"]["metrics"]["avgMetrics"] == {"x": 100}


def test_checkpoints_with_pause_and_activate(cluster: Cluster, det: Commands) -> None:
    cluster.agent("one", 1)
    config = cluster.config("python3 checkpoints.py 0.05", hyperparameters={"increment_by": 3})
    det(["e", "create", str(cluster.written(config)), str(TUTORIAL)])
    cluster.wait_until(lambda: cluster.trials(1), 30, "a trial")
    cluster.wait_for_steps(1, 20)
    det("e pause 1")
    assert cluster.experiment(1)["state"] == "STATE_PAUSED"
    cluster.wait_until(lambda: "asked to stop behind" in cluster.text(1), 30, "the trial to stop")
    det("e activate 1")
    cluster.wait_for(1, "STATE_COMPLETED")
    [trial] = cluster.trials(1)
    assert (trial["restarts"], trial["totalBatchesProcessed"]) == (0, 100)
    assert {step: row["x"] for step, row in rows(cluster.api, 1, "training").items()} == {
        step: 3 * step for step in range(10, 101, 10)
    }
    log = cluster.text(1)
    stopped = re.search(r"asked to stop behind step (\d+)", log)
    assert stopped
    assert f"resumed behind step {stopped[1]}" in log
    # One at every tenth step; the policy keeps the best and the latest of a trial, which are the same here.
    checkpoints = cluster.api("GET", "/api/v1/trials/1/checkpoints")["checkpoints"]
    assert {checkpoint["metadata"]["steps_completed"] for checkpoint in checkpoints} == set(range(10, 101, 10))

    def kept() -> list[int]:
        found = cluster.api("GET", "/api/v1/trials/1/checkpoints")["checkpoints"]
        return [each["metadata"]["steps_completed"] for each in found if each["state"] == "STATE_COMPLETED"]

    # The others are given up when the experiment is over, beside everything else.
    cluster.wait_until(lambda: kept() == [100], 30, lambda: f"the last one alone to be kept, there are {kept()}")


def test_adaptive_search(cluster: Cluster, det: Commands) -> None:
    cluster.agent("one", 4)
    config = cluster.config("python3 checkpoints.py 0", **SEARCH, reproducibility={"experiment_seed": 1})
    det(["e", "create", str(cluster.written(config)), str(TUTORIAL)])
    experiment = cluster.wait_for(1, "STATE_COMPLETED", 150)
    trials = cluster.trials(1)
    assert len(trials) == 10
    assert {trial["state"] for trial in trials} == {"STATE_COMPLETED"}
    # What numpy's generator draws first from seed 1.
    assert [trial["hparams"]["increment_by"] for trial in trials[:3]] == [6, 4, 5]
    for trial in trials:
        step = trial["totalBatchesProcessed"]
        assert step % 10 == 0
        assert 30 <= step <= 100, "the first rung is at 25 batches"
        values = {key: row["x"] for key, row in rows(cluster.api, trial["id"], "validation").items()}
        assert values == {key: key * trial["hparams"]["increment_by"] for key in range(10, step + 1, 10)}
    full = [trial for trial in trials if trial["totalBatchesProcessed"] == 100]
    assert len(full) >= 3, "those of the bracket with one rung train to its end"
    best = max(trials, key=lambda trial: trial["totalBatchesProcessed"] * trial["hparams"]["increment_by"])
    shown = next(trial for trial in trials if trial["id"] == experiment["bestTrialId"])
    assert shown["hparams"] == best["hparams"]


@pytest.mark.parametrize("agents", [1, 2])
def test_distributed_by_its_own_launcher(cluster: Cluster, det: Commands, agents: int) -> None:
    for number in range(agents):
        cluster.agent(f"agent{number}", 8 // agents)
    config = cluster.config(
        "python3 distributed.py", hyperparameters={"increment_by": 1}, resources={"slots_per_trial": 8}
    )
    det(["e", "create", str(cluster.written(config)), str(TUTORIAL)])
    cluster.wait_for(1, "STATE_COMPLETED", 150)
    # Every step adds 1 + 2 + … + 8.
    assert {step: row["x"] for step, row in rows(cluster.api, 1, "training").items()} == {10: 360, 20: 720}
    assert {step: row["x"] for step, row in rows(cluster.api, 1, "validation").items()} == {20: 720}
    for rank in range(8):
        lines = cluster.logs(1, f"rankIds={rank}")
        assert [line["log"] for line in lines if f"rank {rank} of 8 is done" in line["log"]], rank
        assert {line["rankId"] for line in lines} == {rank}
        assert {line["agentId"] for line in lines} == {f"agent{rank * agents // 8}"}
    [printed] = det("t logs 1 --rank-id 3")
    assert "rank 3 of 8 is done" in printed
    assert "rank 4 of 8 is done" not in printed


def test_older_form_with_operations(cluster: Cluster, det: Commands) -> None:
    cluster.agent("one", 1)
    searcher = {"name": "single", "metric": "x", "max_length": {"batches": 40}}
    config = cluster.config("python3 operations.py 2", searcher=searcher)
    det(["e", "create", str(cluster.written(config)), str(CONTEXTS / "older")])
    cluster.wait_for(1, "STATE_COMPLETED")
    assert {step: row["x"] for step, row in rows(cluster.api, 1, "training").items()} == {
        10: 20,
        20: 40,
        30: 60,
        40: 80,
    }
    assert {step: row["x"] for step, row in rows(cluster.api, 1, "validation").items()} == {40: 80}
