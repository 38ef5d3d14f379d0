"""Workspaces with the real `det`: their settings, the archive, and deleting them with what is in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Client, Failed, Master
from .det import Commands, det
from .trial import finish, make_trial

__all__ = ["det"]

MANAGED = {"name": "managed", "entrypoint": "true", "searcher": {"name": "single", "metric": "x"}}


def project_of(api: Client, workspace: str) -> tuple[int, int]:
    """Give the numbers of a workspace and of its first project."""
    [found] = api("GET", f"/api/v1/workspaces?name={workspace}")["workspaces"]
    projects = api("GET", f"/api/v1/workspaces/{found['id']}/projects")["projects"]
    return found["id"], projects[0]["id"]


def storage_of(api: Client, project: int, config: dict[str, object] | None = None) -> dict[str, object]:
    """Give the storage that an experiment in a project gets."""
    request = {"config": json.dumps({**MANAGED, **(config or {})}), "activate": False, "projectId": project}
    made = api("POST", "/api/v1/experiments", request)["experiment"]
    api("POST", f"/api/v1/experiments/{made['id']}/kill")
    found: dict[str, object] = made["config"]["checkpoint_storage"]
    return found


def test_what_is_archived_stays_as_it_is(det: Commands, api: Client) -> None:
    det("workspace create team", "project create team first", "project create team second")
    workspace, project = project_of(api, "team")
    made = make_trial(api)
    finish(api, made)
    api("POST", f"/api/v1/experiments/{made.experiment}/move", {"destinationProjectId": project})
    det("workspace archive team")
    refused = det.outcomes(
        "project create team third",
        "workspace edit team --name other",
        "project archive team first",
        "project unarchive team first",
        f"experiment move {made.experiment} Uncategorized Uncategorized",
    )
    assert all(each.status == 1 and "archive" in each.output for each in refused), refused
    # `det` would not even ask.
    with pytest.raises(Failed, match="archived") as not_there:
        api("POST", "/api/v1/commands", {"config": {"entrypoint": ["true"]}, "workspaceId": workspace})
    assert not_there.value.status == 404
    with pytest.raises(Failed, match="archived"):
        storage_of(api, project)
    assert api("GET", f"/api/v1/projects/{project}")["project"]["archived"] is True
    # Lists leave out what lies in an archived place, unless it is named.
    listed = [f"/api/v1/experiments?archived=false{more}" for more in ("", f"&projectId={project}")]
    assert [len(api("GET", path)["experiments"]) for path in listed] == [0, 1]
    det("workspace unarchive team", "project archive team second")
    assert len(api("GET", listed[0])["experiments"]) == 1
    second = api("GET", f"/api/v1/workspaces/{workspace}/projects?archived=true")["projects"][0]["id"]
    with pytest.raises(Failed, match="archived"):
        api("POST", f"/api/v1/experiments/{made.experiment}/move", {"destinationProjectId": second})
    with pytest.raises(Failed, match="archived"):
        api("PATCH", f"/api/v1/projects/{second}", {"name": "other"})


def test_a_workspace_is_deleted_with_what_is_in_it(det: Commands, api: Client, tmp_path: Path) -> None:
    det("workspace create team", "project create team first")
    (tmp_path / "template.yaml").write_text("max_restarts: 3\n")
    workspace, project = project_of(api, "team")
    api("POST", "/api/v1/templates/theirs", {"config": {"max_restarts": 3}, "workspaceId": workspace})
    running = make_trial(api)
    api("POST", f"/api/v1/experiments/{running.experiment}/move", {"destinationProjectId": project})
    [refused] = det.outcomes("workspace delete team --yes")
    assert refused.status == 1 and f"have not ended: {running.experiment}" in refused.output
    finish(api, running)
    det("workspace delete team --yes")
    for path in (f"experiments/{running.experiment}", f"projects/{project}", "templates/theirs"):
        assert api.raw("GET", f"/api/v1/{path}")[0] == 404, path
    det("workspace create team", "project create team again")
    made = make_trial(api)
    finish(api, made)
    api("POST", f"/api/v1/experiments/{made.experiment}/move", {"destinationProjectId": project_of(api, "team")[1]})
    det("project delete team again --yes")
    assert api.raw("GET", f"/api/v1/experiments/{made.experiment}")[0] == 404


def test_a_workspace_says_where_checkpoints_go(det: Commands, api: Client, tmp_path: Path) -> None:
    (tmp_path / "storage.json").write_text('{"type": "shared_fs", "host_path": "/tmp/theirs"}')
    det(
        ["workspace", "create", "team", "--checkpoint-storage-config-file", str(tmp_path / "storage.json")],
        "project create team first",
    )
    workspace, project = project_of(api, "team")
    [described] = det("workspace describe team --json")
    assert json.loads(described)["checkpointStorageConfig"]["host_path"] == "/tmp/theirs"
    assert storage_of(api, project)["host_path"] == "/tmp/theirs"
    # What an experiment says counts more.
    own = storage_of(api, project, {"checkpoint_storage": {"host_path": "/tmp/own", "save_trial_best": 3}})
    assert (own["host_path"], own["save_trial_best"]) == ("/tmp/own", 3)
    secret = {"type": "s3", "bucket": "theirs", "access_key": "a", "secret_key": "hidden"}
    det(["workspace", "edit", "team", "--checkpoint-storage-config", json.dumps(secret)])
    shown = api("GET", f"/api/v1/workspaces/{workspace}")["workspace"]["checkpointStorageConfig"]
    assert (shown["bucket"], shown["secret_key"]) == ("theirs", "********")
    # What is shown can be sent again.
    api("PATCH", f"/api/v1/workspaces/{workspace}", {"checkpointStorageConfig": {**shown, "prefix": "p"}})
    assert storage_of(api, project)["prefix"] == "p"
    [refused] = det.outcomes(["workspace", "edit", "team", "--checkpoint-storage-config", '{"type": "s3"}'])
    assert refused.status == 1 and "checkpoint_storage.bucket: is needed" in refused.output
    det(["workspace", "edit", "team", "--checkpoint-storage-config", "{}"])
    assert api("GET", f"/api/v1/workspaces/{workspace}")["workspace"]["checkpointStorageConfig"] is None
    assert storage_of(api, project)["type"] == "shared_fs"


def test_administrators_say_as_whom_a_workspace_runs(det: Commands, api: Client, master: Master) -> None:
    with pytest.raises(Failed, match="only administrators"):
        api("POST", "/api/v1/workspaces", {"name": "team", "agentUserGroup": {"agentGid": 77, "agentGroup": "crew"}})
    token = master.client.login("admin").token
    assert token is not None
    det.settings |= {"DET_USER": "admin", "DET_USER_TOKEN": token}
    det("workspace create team --agent-gid 77 --agent-group crew")
    [described] = det("workspace describe team --json")
    assert json.loads(described)["agentUserGroup"]["agentGroup"] == "crew"
    [refused] = det.outcomes("workspace edit team --agent-uid 7")
    assert refused.status == 1 and "belong together" in refused.output
    det("workspace edit team --agent-uid 7 --agent-user ann --agent-gid 77 --agent-group crew")
    [found] = api("GET", "/api/v1/workspaces?name=team")["workspaces"]
    wanted = {"agentUid": 7, "agentUser": "ann", "agentGid": 77, "agentGroup": "crew"}
    assert found["agentUserGroup"] == wanted
