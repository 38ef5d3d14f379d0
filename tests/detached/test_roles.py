"""A master with roles: the real `det` for roles and groups, `instep workspace` and `instep group`, who sees what."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Runner

from .conftest import Client, Failed, Master
from .conftest import master_with_roles as master
from .det import Commands, det
from .test_openapi import fuzz

__all__ = ["det", "master"]


@pytest.fixture
def admin(master: Master) -> Client:
    """A client that speaks for the administrator, beside whom there are ada and bob."""
    client = master.client.login("admin")
    for name in ("ada", "bob"):
        client("POST", "/api/v1/users", {"user": {"username": name, "active": True}, "password": name})
    return client


def test_det_gives_roles_and_takes_them(det: Commands, admin: Client) -> None:
    assert admin("GET", "/api/v1/master")["rbacEnabled"] is True
    det.settings |= {"DET_USER": "admin", "DET_USER_TOKEN": admin.token or ""}
    expected = {
        "workspace create lab": "lab",
        "rbac list-roles": "role 'WorkspaceAdmin' with ID 2",
        "rbac list-roles --exclude-global-roles": "role 'Editor' with ID 5",
        "rbac describe-role Viewer": "role is not assigned to any group",
        "user-group create team --add-user ada": "user group with name team and ID 1 created",
        "user-group list": "team",
        "user-group list --groups-user-belongs-to ada": "team",
        "user-group add-user team bob": "user added to group with username bob",
        "user-group describe team": "bob",
        "user-group remove-user team bob": "user removed from the group with username bob",
        "user-group change-name team crew": "name changed from team to crew",
        "rbac assign-role Editor -w lab -g crew": "assigned role 'Editor' with ID 5 to group 'crew'",
        "rbac assign-role Viewer -w lab -u bob": "to workspace lab",
        "rbac assign-role WorkspaceCreator -u ada": "globally",
        "rbac list-users-roles ada": "WorkspaceCreator",
        "rbac list-groups-roles crew": "role 'Editor' with ID 5 assigned",
        "rbac describe-role Editor": "crew",
        "rbac my-permissions": "global permissions assigned",
        "rbac unassign-role Viewer -w lab -u bob": "removed role 'Viewer'",
        "rbac list-users-roles bob": "user has no role assignments",
        "user-group list --json": "crew",
        "rbac list-users-roles ada --json": "userRoleAssignments",
    }
    for command, output in zip(expected, det(*expected), strict=True):
        assert expected[command] in output, (command, output)
    refused = {
        "rbac assign-role ClusterAdmin -w lab -u bob": "cannot be given in a workspace",
        "rbac assign-role Editor -w lab -g crew": "already",
        "rbac unassign-role Viewer -w lab -u bob": "not found",
        "user-group create crew": "already exists",
        "user-group describe nobody": "could not find user group name nobody",
    }
    for command, outcome in zip(refused, det.outcomes(*refused), strict=True):
        assert outcome.status != 0, command
        assert refused[command] in outcome.output, (command, outcome)
    [deleted] = det("user-group delete crew --yes")
    assert "deleted" in deleted


def test_det_says_that_roles_are_off(det: Commands, master: Master, wait_until: Callable[..., None]) -> None:
    master.stop()
    master.start(wait_until)
    off = master.client.login("admin")
    assert off("GET", "/api/v1/master")["rbacEnabled"] is False
    for method, path, body in (
        ("GET", "/api/v1/permissions/summary", None),
        ("POST", "/api/v1/groups/search", {"limit": 1}),
        ("POST", "/api/v1/roles/search", {"limit": 1}),
        ("GET", "/api/v1/roles/workspace/1", None),
        ("POST", "/api/v1/groups", {"name": "x"}),
    ):
        with pytest.raises(Failed) as refused:
            off(method, path, body)
        assert refused.value.status == 501, (path, refused.value)
        assert "hint: start the master with --roles" in refused.value.message
    det.settings |= {"DET_USER": "admin", "DET_USER_TOKEN": off.token or ""}
    [outcome] = det.outcomes("rbac list-roles")
    assert outcome.status != 0
    assert "require" in outcome.output


def test_whoever_has_no_role_sees_nothing_until_it_is_shared(admin: Client, master: Master) -> None:
    ada, bob = (master.client.login(name, name) for name in ("ada", "bob"))
    give = "/api/v1/roles/add-assignments"
    user = {"userId": ada("GET", "/api/v1/me")["user"]["id"], "roleAssignment": {"role": {"roleId": 3}}}
    admin("POST", give, {"userRoleAssignments": [user]})
    workspace = ada("POST", "/api/v1/workspaces", {"name": "secret-lab"})["workspace"]["id"]
    project = ada("POST", f"/api/v1/workspaces/{workspace}/projects", {"name": "p"})["project"]["id"]
    config = "{name: secret-run, searcher: {name: single, metric: x}}"
    request = {"config": config, "unmanaged": True, "projectId": project}
    experiment = ada("POST", "/api/v1/experiments", request)["experiment"]["id"]
    assert bob("GET", "/api/v1/workspaces")["workspaces"] == []
    assert bob("GET", "/api/v1/experiments")["pagination"]["total"] == 0
    with pytest.raises(Failed) as refused:
        bob("GET", f"/api/v1/experiments/{experiment}")
    assert refused.value.status == 404
    viewer = {
        "userId": bob("GET", "/api/v1/me")["user"]["id"],
        "roleAssignment": {"role": {"roleId": 4}, "scopeWorkspaceId": workspace},
    }
    ada("POST", give, {"userRoleAssignments": [viewer]})
    assert bob("GET", f"/api/v1/experiments/{experiment}")["experiment"]["name"] == "secret-run"
    with pytest.raises(Failed) as refused:
        bob("PATCH", f"/api/v1/experiments/{experiment}", {"notes": "x"})
    assert refused.value.status == 403


def test_random_requests_find_no_server_error(master: Master) -> None:
    fuzz(master, 600)


@pytest.mark.usefixtures("admin")
def test_the_command_line_shares_workspaces(
    run: Runner, instep: Path, master: Master, settings: dict[str, str], wait_until: Callable[..., None]
) -> None:
    assert "these users have none" in master.process.stderr + master.process.stdout
    env = {**settings, "INSTEP_MASTER": master.address, "INSTEP_USER": "admin"}

    def ours(*words: str, status: int = 0) -> Any:  # noqa: ANN401
        return run(instep, *words, env=env).expect(status)

    ours("login", "admin")
    ours("workspace", "create", "lab")
    assert "no groups" in ours("group", "list").stderr
    ours("group", "create", "team", "ada")
    ours("group", "add", "team", "bob")
    assert "ada, bob" in ours("group", "show", "team").stdout
    ours("group", "remove", "team", "bob")
    assert "nobody" not in ours("workspace", "members", "lab").stderr
    ours("workspace", "share", "lab", "bob", "--role", "editor")
    ours("workspace", "share", "lab", "@team", "--role", "viewer")
    # The new role replaces the old one.
    ours("workspace", "share", "lab", "bob", "--role", "viewer")
    members = json.loads(ours("workspace", "members", "lab", "--json").stdout)
    found = {(member["name"], member["role"]) for member in members}
    assert found == {("admin", "owner"), ("bob", "viewer"), ("@team", "viewer")}
    ours("workspace", "unshare", "lab", "@team")
    assert "@team" not in ours("workspace", "members", "lab").stdout
    missing = ours("workspace", "unshare", "lab", "@team", status=1).stderr
    assert re.search(r"@team has no role in workspace lab\s+hint: ", missing), missing
    for words, complaint in (
        (("share", "lab", "nobody", "--role", "viewer"), "user 'nobody' not found"),
        (("share", "lab", "@nobody", "--role", "viewer"), "group 'nobody' not found"),
        (("share", "none", "bob", "--role", "viewer"), "workspace 'none' not found"),
        (("share", "lab", "bob", "--role", "creator"), "yet to be created"),
        (("share", "lab", "--role", "viewer"), "whose role is not said"),
    ):
        refused = ours("workspace", *words, status=1).stderr
        assert complaint in refused, refused
        assert "hint: " in refused
    # What everybody has without roles.
    said = ours("workspace", "share", "--everywhere", "--everyone", "--role", "editor").stderr
    assert "3 users: editor everywhere" in said and "everybody who has an account now; run it again" in said
    ours("workspace", "share", "--everywhere", "--everyone", "--role", "creator")
    members = json.loads(ours("workspace", "members", "lab", "--json").stdout)
    everywhere = {(member["name"], member["role"]) for member in members if member["everywhere"]}
    # Nor does the right to create workspaces let anybody into one.
    assert everywhere == {("ada", "editor"), ("bob", "editor"), ("determined", "editor")}
    assert re.search(r"^ada +editor +everywhere", ours("workspace", "members", "lab").stdout, re.MULTILINE)
    ada = master.client.login("ada", "ada")
    assert {one["name"] for one in ada("GET", "/api/v1/workspaces")["workspaces"]} == {"Uncategorized", "lab"}
    ada("POST", "/api/v1/workspaces", {"name": "hers"})
    ours("group", "delete", "team", "--yes")
    # Without roles the commands say so.
    master.stop()
    master.start(wait_until)
    ours("login", "admin")
    for words in (("group", "list"), ("workspace", "members", "lab"), ("workspace", "unshare", "lab", "bob")):
        refused = ours(*words, status=1).stderr
        assert "roles are off" in refused, refused
        assert "hint: start the master with --roles" in refused
