"""A cluster with roles: an editor's experiment runs as ever, and nobody else sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Runner
from detached.conftest import Failed
from detached.conftest import master_with_roles as master

from .conftest import Cluster
from .test_ours import created, tutorial

__all__ = ["master"]


def test_an_editors_experiment_runs_pauses_and_resumes(
    run: Runner, instep: Path, python: Path, cluster: Cluster, tmp_path: Path
) -> None:
    admin = cluster.master.client.login("admin")
    admin("POST", "/api/v1/users", {"user": {"username": "bob", "active": True}, "password": "bob"})
    workspace = admin("POST", "/api/v1/workspaces", {"name": "lab"})["workspace"]["id"]
    admin("POST", f"/api/v1/workspaces/{workspace}/projects", {"name": "p"})
    user = cluster.api("GET", "/api/v1/me")["user"]["id"]
    editor = {"userId": user, "roleAssignment": {"role": {"roleId": 5}, "scopeWorkspaceId": workspace}}
    admin("POST", "/api/v1/roles/add-assignments", {"userRoleAssignments": [editor]})
    config = cluster.config("python3 checkpoints.py 0.02", hyperparameters={"increment_by": 2})
    # Where the editor has no role, nothing is made.
    refused = created(run, instep, cluster, config, tutorial(tmp_path), status=1)
    assert "you may not create experiments in the workspace Uncategorized" in refused.stderr
    created(run, instep, cluster, {**config, "workspace": "lab", "project": "p"}, tmp_path / "ours")
    # Nothing runs before there is an agent.
    bob = cluster.master.client.login("bob", "bob")
    job = bob("GET", "/api/v1/job-queues?resourcePool=default")["jobs"][0]
    assert (job["name"], job["username"], job["entityId"], job["requestedSlots"]) == ("", "", "", 1)
    cluster.agent("one", 1, python=python)
    cluster.wait_until(lambda: cluster.trials(1), 30, "a trial")
    # It reads its checkpoint back when it is resumed.
    cluster.wait_for_steps(1, 20)
    cluster.api("POST", "/api/v1/experiments/1/pause")
    cluster.wait_until(lambda: "asked to stop behind" in cluster.text(1), 30, "the trial to stop")
    cluster.api("POST", "/api/v1/experiments/1/activate")
    cluster.wait_for(1, "STATE_COMPLETED")
    assert bob("GET", "/api/v1/tasks")["allocationIdToSummary"] == {}
    with pytest.raises(Failed) as hidden:
        bob("GET", "/api/v1/trials/1")
    assert hidden.value.status == 404
