"""Runs that are paused, resumed and killed, what the real `det` says of their use, and pools for some workspaces."""

from __future__ import annotations

import csv
import io
import json

import pytest

from detached.conftest import Failed
from detached.det import Commands

from .conftest import Cluster, det

__all__ = ["det"]

SPAN = "2026-01-01T00:00:00Z 2126-01-01T00:00:00Z"


def runs(cluster: Cluster, wish: str, trial: int) -> list[str]:
    """Wish something of one run, and give the errors."""
    body = {"projectId": 1, "runIds": [trial]}
    results = cluster.api("POST", f"/api/v1/runs/{wish}", body)["results"]
    assert [each["id"] for each in results] == [trial]
    return [each["error"] for each in results]


def test_runs_are_paused_resumed_and_killed_and_their_use_is_reported(cluster: Cluster, det: Commands) -> None:
    cluster.agent("one", 1)
    config = cluster.config("sleep 600", labels=["night"])
    number = cluster.api("POST", "/api/v1/experiments", {"config": json.dumps(config)})["experiment"]["id"]
    cluster.wait_until(lambda: cluster.experiment(number)["state"] == "STATE_RUNNING", 60, "the experiment to run")
    [trial] = cluster.trials(number)
    allocation = cluster.api("GET", f"/api/v1/allocations/{trial['taskId']}.1")["allocation"]
    assert (allocation["taskId"], allocation["slots"]) == (trial["taskId"], 1)
    [run] = cluster.api("POST", "/api/v1/runs", {"projectId": 1})["runs"]
    assert (run["id"], run["state"]) == (trial["id"], "STATE_ACTIVE")
    assert runs(cluster, "delete", trial["id"]) == ["Run is not in a terminal state."]
    assert runs(cluster, "pause", trial["id"]) == [""]
    cluster.wait_for(number, "STATE_PAUSED")
    assert runs(cluster, "resume", trial["id"]) == [""]
    cluster.wait_until(
        lambda: cluster.experiment(number)["state"] == "STATE_RUNNING", 60, "the experiment to run again"
    )
    assert runs(cluster, "kill", trial["id"]) == [""]
    cluster.wait_until(lambda: cluster.trials(number)[0]["state"] == "STATE_CANCELED", 60, "the trial to be killed")

    _, raw, plain, days, table = det(
        # The first login warns of a weak password.
        "user whoami",
        f"resources raw {SPAN}",
        f"resources raw --json {SPAN}",
        "resources aggregated --json 2026-01-01 2027-12-31 --monthly",
        f"resources allocations {SPAN}",
    )
    entries = json.loads(plain)["resourceEntries"]
    # One for each time that it had slots: it may have been resumed before it had left them.
    times = len(entries)
    assert times in (1, 2)
    assert {(each["experimentId"], each["kind"], each["slots"]) for each in entries} == {(number, "training", 1)}
    rows = list(csv.DictReader(io.StringIO(raw)))
    assert [(row["username"], row["labels"]) for row in rows] == [("determined", "night")] * times
    [month] = json.loads(days)["resourceEntries"]
    assert abs(month["seconds"] - sum(each["seconds"] for each in entries)) < 1
    assert set(month["byExperimentLabel"]) == {"night"}
    allocations = list(csv.DictReader(io.StringIO(table)))
    assert [row["allocation_id"] for row in allocations] == [f"{trial['taskId']}.{run + 1}" for run in range(times)]
    assert {row["workspace_name"] for row in allocations} == {"Uncategorized"}
    wrong, backwards = det.outcomes("resources raw yesterday today", f"resources raw {' '.join(SPAN.split()[::-1])}")
    assert wrong.status != 0
    assert "start time cannot be after end time" in backwards.output


def test_a_pool_is_for_the_workspaces_that_it_is_bound_to(cluster: Cluster, det: Commands) -> None:
    cluster.agent("one", 1, "--pool", "fast")
    det.settings.update(DET_USER="admin", DET_PASS="")
    outputs = det(
        "workspace create lab",
        "workspace create other",
        "resource-pool bindings add fast lab",
        "resource-pool bindings list-workspaces fast",
        "workspace list-pools lab",
        "workspace list-pools other",
    )
    assert "lab" in outputs[3]
    assert "fast" in outputs[4]
    assert "fast" not in outputs[5]
    words = ["cmd", "run", "--config", "resources.resource_pool=fast"]
    inside, outside = det.outcomes(
        [*words, "--workspace-name", "lab", "echo", "inside"], [*words, "--workspace-name", "other", "echo", "outside"]
    )
    assert "inside" in inside.output
    assert outside.status != 0
    assert "not available to workspace" in outside.output
    config = cluster.config("true", resources={"resource_pool": "fast"}, workspace="other", project="none")
    made = cluster.api("GET", "/api/v1/workspaces?name=other")["workspaces"][0]["id"]
    admin = cluster.master.client.login("admin")
    admin("POST", f"/api/v1/workspaces/{made}/projects", {"name": "none"})
    with pytest.raises(Failed) as refused:
        admin("POST", "/api/v1/experiments", {"config": json.dumps(config)})
    assert "not available to workspace" in refused.value.message
    det("resource-pool bindings replace fast other", "resource-pool bindings remove fast other")
    [listed] = det("resource-pool bindings list-workspaces fast")
    assert "other" not in listed
    [anywhere] = det([*words, "--workspace-name", "lab", "echo", "anywhere"])
    assert "anywhere" in anywhere
