"""Verbs of `instep` for what administrators and owners of workspaces set: tokens, policies, pools, messages."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Client, Master
from .test_cli import Shell, shell
from .trial import finish, make_trial

__all__ = ["shell"]


def administrate(shell: Shell, master: Master) -> None:
    """Log the administrator in."""
    folder = shell.home / ".config" / "instep"
    folder.mkdir(parents=True, exist_ok=True)
    session = {"masters": {shell.master: {"user": "admin", "token": master.client.login("admin").token}}}
    (folder / "sessions.json").write_text(json.dumps(session))


def test_access_tokens_let_programs_in_until_they_are_revoked(shell: Shell, master: Master) -> None:
    assert "create one with `instep token create`" in shell("token list").stderr
    made = shell("token create -e 2 -d 'for the nightly job'")
    assert "token 1 expires in 2 days" in made.stderr
    token = made.stdout.strip()
    assert Client(shell.master, token).raw("GET", "/api/v1/me")[0] == 200
    listed = shell("token list").stdout
    assert "for the nightly job" in listed and "determined" in listed and token not in listed
    shell("token edit 1 --description nightly")
    [described] = shell.json("token describe 1")  # type: ignore[misc]
    assert (described["description"], described["revoked"]) == ("nightly", False)  # type: ignore[index]
    assert "instep token list" in shell("token describe 1 7", 1).stderr
    assert "would let nobody in" in shell("token create -e 0", 1).stderr
    assert "cannot be undone" in shell("token revoke 1", 1).stderr
    shell("token revoke 1 --yes")
    assert Client(shell.master, token).raw("GET", "/api/v1/me")[0] == 401
    assert "no access tokens" in shell("token list").stderr
    assert "nightly" in shell("token list --show-inactive").stdout
    assert "only administrators" in shell("token create admin", 1).stderr
    administrate(shell, master)
    assert "never expires" in shell("token create determined -e -1").stderr
    assert "instep user list" in shell("token create nobody", 1).stderr


def test_a_token_logs_in_and_is_no_argument(shell: Shell) -> None:
    token = json.loads(shell("token create --json").stdout)["token"]
    refused = shell(f"token login {token}", 1)
    assert "not an argument" in refused.stderr and "hint: printf" in refused.stderr
    (shell.home / ".config" / "instep" / "sessions.json").unlink()
    # Nothing on stdin is no token.
    assert "lets nobody in" in shell("token login", 1).stderr


def test_policies_are_set_described_and_deleted(shell: Shell, master: Master) -> None:
    policies = shell.home / "policies.yaml"
    policies.write_text("constraints: {resources: {max_slots: 4}}\n")
    assert "no policies for experiments everywhere" in shell("config-policies describe experiment").stderr
    shell("w create lab")
    shell(f"config-policies set tasks {policies} --workspace lab")
    assert shell.json("config-policies describe tasks -w lab") == {"constraints": {"resources": {"max_slots": 4}}}
    assert shell.json("config-policies describe tasks") == {}
    shell(f"config-policies set experiment {policies}", 1)
    policies.write_text("constraints: {colour: red}\n")
    assert "colour" in shell(f"config-policies set tasks {policies} -w lab", 1).stderr
    assert "cannot be undone" in shell("config-policies delete tasks -w lab", 1).stderr
    shell("config-policies delete tasks -w lab --yes")
    assert shell.json("config-policies describe tasks -w lab") == {}
    administrate(shell, master)
    policies.write_text("constraints: {priority_limit: 10}\n")
    shell(f"cp set experiment {policies}")
    assert shell.json("cp describe experiment") == {"constraints": {"priority_limit": 10}}


def test_reports_of_nothing_and_wrong_times(shell: Shell) -> None:
    assert "nothing ran in this time" in shell("resources raw 2026-01-01").stderr
    assert shell.json("resources raw 2026-01-01T00:00:00Z 2026-01-02") == []
    assert shell("resources raw 2026-01-01 --csv").stdout.startswith("experiment_id,kind,username")
    assert shell("resources allocations 2026-01-01").stdout.startswith("allocation_id,task_type")
    assert "nothing ran" in shell("resources aggregated 2026-01-01 2026-01-31 --monthly").stderr
    assert "begin" in shell("resources raw 2026-01-02 2026-01-01", 1).stderr
    assert "a day such as" in shell("resources raw yesterday", 2).stderr
    assert "is CSV" in shell("resources allocations 2026-01-01 --json", 1).stderr


def test_messages_pools_and_unix_users(shell: Shell, master: Master) -> None:
    assert "Roles:" in shell("master info").stdout
    administrate(shell, master)
    assert "no message" in shell("master cluster-message get").stderr
    shell("master cluster-message set -m 'down at noon' -d 2h")
    assert "down at noon" in shell("master info").stdout
    assert "down at noon" in shell("master cluster-message get").stdout
    shell("master cluster-message clear")
    assert "down at noon" not in shell("master info").stdout
    shell("w create lab")
    assert "cannot be bound" in shell("rp bindings add default lab", 1).stderr
    assert "it is for all" in shell("rp bindings list-workspaces default").stderr
    assert shell("w list-pools lab").stdout == "POOL\ndefault\n"
    shell("user link-with-agent-user determined --agent-user u --agent-uid 7 --agent-group g --agent-gid 8")
    users = {user["username"]: user for user in shell.json("user list")}  # type: ignore[attr-defined]
    assert users["determined"]["agentUserGroup"]["agentUid"] == 7
    assert "deleted 0 lines" in shell("task cleanup-logs").stderr


def test_an_experiments_code_files_and_logs(shell: Shell, api: Client, tmp_path: Path) -> None:
    made = make_trial(api, "first", tmp_path / "storage")
    finish(api, made)
    shell("e set log-retention 1 --days 3")
    shell("t set log-retention 1 --forever")
    assert api("GET", "/api/v1/trials/1/remaining_log_retention_days")["remainingDays"] == -1
    assert "needs --days <N> or --forever\nhint: " in shell("e set log-retention 1", 2).stderr
    shell("e delete-tb-files 1 --yes")
    assert "e" in shell("e delete-tb-files 7 --yes", 1).stderr
    shell("e download-model-def 1")
    assert (shell.home / "experiment-1.tgz").exists()
    assert "cannot write" in shell("e download-model-def 1", 1).stderr
