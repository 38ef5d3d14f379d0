"""What became of a trial's time: added up over restarts and machines, and no task can make it up.

Costs about 10 s: two ranks that import torch, one after the other.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from conftest import Runner

from .conftest import CONTEXTS, Cluster
from .test_ours import created, ours

# What a launcher would leave that has run for 0.2 s, with something changed.
TRUE = {
    "wall_seconds": 0.2,
    "seconds": {
        **{"start": 0.05, "compute": 0.1, "communication": 0.05, "data": 0, "checkpoint": 0},
        **{"restart": 0, "lost": 0, "idle": 0, "unobserved": 0},
    },
    "ranks": [{}],
    "steps": None,
}
LONGER = {**TRUE, "wall_seconds": 1e6, "seconds": {**TRUE["seconds"], "compute": 1e6 - 0.1}}
FAKED = "import json, os, pathlib; pathlib.Path(os.environ['INSTEP_SUMMARY_JSON']).write_text(os.environ['SAID'])"


def goodput(cluster: Cluster, trial: int) -> dict[str, Any]:
    """What the master says of a trial: the classes add up to the time for which its allocations had slots."""
    found: dict[str, Any] = cluster.api("GET", f"/api/v1/trials/{trial}/goodput")["goodput"]
    task = cluster.api("GET", f"/api/v1/trials/{trial}")["trial"]["taskId"]
    allocations = cluster.api("GET", f"/api/v1/tasks/{task}")["task"]["allocations"]
    moment = datetime.fromisoformat
    wall = sum((moment(each["endTime"]) - moment(each["startTime"])).total_seconds() for each in allocations)
    assert found["allocations"] == len(allocations)
    assert found["wallSeconds"] == pytest.approx(wall, abs=1e-3)
    assert sum(found["seconds"].values()) == pytest.approx(found["ranks"] * wall, rel=1e-3)
    assert all(seconds >= 0 for seconds in found["seconds"].values()), found
    return found


def counted(cluster: Cluster) -> dict[str, float]:
    """What Prometheus is told of the classes."""
    status, _, body = cluster.api.raw("GET", "/metrics")
    assert status == 200
    lines = [line for line in body.decode().splitlines() if line.startswith("instep_goodput_seconds_total{")]
    return {line.split('"')[1]: float(line.split()[1]) for line in lines}


def test_a_killed_and_restarted_trial_has_lost_the_steps_since_its_checkpoint(
    run: Runner, instep: Path, python: Path, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.agent("one", 1, python=python)
    environment = {"environment_variables": [f"BEGAN={tmp_path / 'began'}", "OMP_NUM_THREADS=1"]}
    config = cluster.config("train.py", environment=environment, max_restarts=1)
    created(run, instep, cluster, config, CONTEXTS / "goodput")
    assert cluster.api("GET", "/api/v1/trials/1/goodput") == {"goodput": None}, "nothing has ended"
    cluster.wait_for(1, "STATE_COMPLETED")
    found = goodput(cluster, 1)
    assert (found["allocations"], found["ranks"], found["seconds"]["unobserved"]) == (2, 1, 0), found
    assert (found["steps"], found["redoneSteps"], found["takenBackSteps"]) == (16, 0, 4), found
    # Ten steps of 50 ms, twice; four of the first ones were done again.
    seconds = found["seconds"]
    assert seconds["lost"] >= 0.2 and seconds["compute"] >= 0.3 + 0.5, found
    assert seconds["start"] > 0 and seconds["restart"] > 0, found
    training = seconds["compute"] + seconds["communication"] + seconds["data"]
    assert found["ettr"] == pytest.approx(training / sum(seconds.values())), found
    assert sum(counted(cluster).values()) == pytest.approx(sum(seconds.values()), rel=1e-3)
    said = ours(run, instep, cluster, "trial", "describe", "1").stdout
    assert f"{found['ettr'] * 100:.1f}% training (ETTR), 1 rank over 2 allocations" in said
    assert "4 steps taken back by restarts" in said and f"lost {seconds['lost']:.1f}s" in said
    [described] = json.loads(ours(run, instep, cluster, "trial", "describe", "1", "--json").stdout)
    assert (described["id"], described["goodput"]) == (1, found)


def test_a_report_that_cannot_be_true_is_none(run: Runner, instep: Path, cluster: Cluster) -> None:
    for name in ("one", "two"):
        cluster.agent(name, 1)
    reports = [{"goodput": TRUE}, {"goodput": LONGER}, {"goodput": {**TRUE, "seconds": {}}}, "nonsense"]
    for trial, said in enumerate(reports, 1):
        environment = {"environment_variables": [f"SAID={json.dumps(said)}"]}
        more = {"environment": environment, "resources": {"slots_per_trial": 2}}
        config = cluster.config(["python3", "-c", f"{FAKED}; import time; time.sleep(0.3)"], **more)
        before = counted(cluster)
        created(run, instep, cluster, config, CONTEXTS / "goodput")
        cluster.wait_for(trial, "STATE_COMPLETED")
        found = goodput(cluster, trial)
        after = counted(cluster)
        believed = trial == 1
        assert (found["ranks"], found["seconds"]["compute"]) == (2, 0.2 * believed), found
        assert (found["ettr"] is not None, found["seconds"]["unobserved"] == 0) == (believed, believed), found
        assert after["compute"] - before["compute"] == pytest.approx(0.2 * believed)
        said = ours(run, instep, cluster, "trial", "describe", str(trial)).stdout
        assert ("ETTR" in said) == believed, said
