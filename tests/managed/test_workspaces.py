"""Workspaces that are deleted while tasks run in them, with the real `det`; and what reports say of them afterwards."""

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


def test_deleting_a_workspace_ends_what_runs_there(cluster: Cluster, det: Commands) -> None:
    cluster.agent("one", 1)
    det("workspace create lab", "workspace create other")
    start = "cmd run --detach --config resources.slots=0"
    inside, waiting, outside = (
        det(f"{start} -w lab sleep 600")[0].strip(),
        # Its slots are never there: it is killed in the queue.
        det("cmd run --detach --config resources.slots=1 -w lab sleep 600")[0].strip(),
        det(f"{start} -w other sleep 600")[0].strip(),
    )

    def state(task: str) -> str:
        found: str = cluster.api("GET", f"/api/v1/commands/{task}")["command"]["state"]
        return found

    cluster.wait_until(lambda: state(inside) == state(outside) == "STATE_RUNNING", 60, "the commands to run")
    # An experiment that has not been told to end keeps its workspace.
    det("project create lab thesis")
    body = {"config": json.dumps(cluster.config("sleep 600", resources={"slots_per_trial": 0})), "projectId": 2}
    number = cluster.api("POST", "/api/v1/experiments", body)["experiment"]["id"]
    [refused] = det.outcomes("workspace delete lab --yes")
    assert refused.status == 1 and f"have not ended: {number}" in refused.output
    assert state(inside) == "STATE_RUNNING"
    # One that is ending is waited for.
    det(f"experiment kill {number}", "workspace delete lab --yes")

    assert "lab" not in det("workspace list")[0].split()
    for task in (inside, waiting):
        assert state(task) == "STATE_TERMINATED", "how it ended can still be asked for"
        shown = cluster.api("GET", f"/api/v1/commands/{task}")
        assert (shown["config"], shown["command"]["description"]) == ({}, ""), "what it was is forgotten"
        assert list(cluster.api.lines(f"/api/v1/tasks/{task}/logs")) == []
    listed = {task["id"] for task in cluster.api("GET", "/api/v1/commands")["commands"]}
    assert listed == {outside} and state(outside) == "STATE_RUNNING"
    with pytest.raises(Failed, match="not found"):
        cluster.api("GET", "/api/v1/commands?workspaceId=2")

    [table] = det(f"resources allocations {SPAN}")
    used = [(row["workspace_name"], row["task_type"]) for row in csv.DictReader(io.StringIO(table))]
    assert ("lab", "COMMAND") in used, "reports say what was used, also of what is gone"
    det(f"cmd kill {outside}")
