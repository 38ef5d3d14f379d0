"""The real `det`: what it prints and how it ends, for logs, users, workspaces, projects, and what is not there."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from .conftest import Client, Master
from .det import Commands, det
from .trial import finish, make_trial, report

__all__ = ["det"]


def test_det_filters_logs(det: Commands, api: Client) -> None:
    made = make_trial(api)
    lines = [
        {"rank": 0, "level": "LOG_LEVEL_INFO", "source": "task", "stdtype": "stdout", "log": "alpha\n"},
        {"rank": 1, "level": "LOG_LEVEL_ERROR", "source": "task", "stdtype": "stderr", "log": "beta 42\n"},
        {"level": "LOG_LEVEL_WARNING", "source": "master", "log": "gamma\x00nul\n"},
    ]
    times = ("2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z", "2026-01-02T03:04:07Z")
    records = [{**line, "task_id": made.task, "timestamp": time} for line, time in zip(lines, times, strict=True)]
    api("POST", "/task-logs", records)
    finish(api, made)
    expected = {
        "trial logs 1": "alpha beta gamma",
        "trial logs 1 -f": "alpha beta gamma",
        "experiment logs 1": "alpha beta gamma",
        "trial logs 1 --rank-id 1": "beta",
        "trial logs 1 --level WARNING": "beta gamma",
        "trial logs 1 --source master": "gamma",
        "trial logs 1 --stdtype stdout": "alpha",
        "trial logs 1 --head 1": "alpha",
        "trial logs 1 --tail 1": "gamma",
        "trial logs 1 --timestamp-after 2026-01-02T03:04:05Z": "beta gamma",
        "trial logs 1 --timestamp-before 2026-01-02T03:04:06Z": "alpha",
        f"task logs {made.task}": "alpha beta gamma",
    }
    for command, output in zip(expected, det(*expected), strict=True):
        found = [word for word in ("alpha", "beta", "gamma") if f"{word}" in output]
        assert found == expected[command].split(), (command, output)


def test_det_groups_experiments(det: Commands, api: Client) -> None:
    made = make_trial(api)
    report(api, made, 1, "validation", loss=0.5)
    finish(api, made)
    expected = {
        "workspace create lab": "lab",
        "w list": "lab",
        "workspace edit lab --name laboratory": "laboratory",
        "w describe laboratory": "laboratory",
        "project create laboratory thesis --description last": "thesis",
        "p list laboratory": "thesis",
        "p describe laboratory thesis": "thesis",
        "p edit laboratory thesis --new_name book": "book",
        "w list-projects laboratory": "book",
        "e move 1 laboratory book": "",
        "p list-experiments laboratory book": "made",
        "e label add 1 good": "",
        "e label remove 1 good": "",
        "e set description 1 words": "",
        "e describe 1": "words",
        "e list -a --csv": "made",
        "e move 1 Uncategorized Uncategorized": "",
        "p archive laboratory book": "",
        "p unarchive laboratory book": "",
        "p delete laboratory book --yes": "",
        "w archive laboratory": "",
        "w unarchive laboratory": "",
        "w delete laboratory --yes": "",
        "master info --json": "clusterId",
    }
    outputs = det(*expected)
    for command, output in zip(expected, outputs, strict=True):
        assert expected[command] in output, (command, output)
    names = [workspace["name"] for workspace in api("GET", "/api/v1/workspaces")["workspaces"]]
    assert names == ["Uncategorized"]


def test_det_manages_users(det: Commands, master: Master) -> None:
    token = master.client.login("admin").token
    assert token is not None
    det.settings |= {"DET_USER": "admin", "DET_USER_TOKEN": token}
    *_, users = det(
        "user create ann --password Abcdefg1",
        "user edit ann --display-name Ann",
        "user deactivate ann",
        "user activate ann",
        "user rename ann anna",
        "user list",
    )
    assert "anna" in users
    # Nobody passes for a built-in user or for somebody else, and a Unix user is named whole.
    outcomes = det.outcomes(
        "user edit anna --display-name Admin",
        "user edit anna --display-name determined",
        "user create Determined --password Abcdefg1",
        "user link-with-agent-user anna --agent-uid 7 --agent-user anna --agent-gid 8 --agent-group a:b",
        "user link-with-agent-user anna --agent-uid 7 --agent-user anna --agent-gid 8 --agent-group staff",
    )
    assert [each.status for each in outcomes] == [1, 1, 1, 1, 0], outcomes
    assert all("reserved" in each.output for each in outcomes[:3]), outcomes
    admin = master.client.login("admin")
    for group in ({"agentUid": 7}, {"agentUid": 7, "agentGid": 8, "agentUser": "", "agentGroup": "g"}):
        body = json.dumps({"agentUserGroup": group}).encode()
        assert admin.raw("PATCH", "/api/v1/users/3", body)[0] == 400
    assert master.client.login("anna", "Abcdefg1")("GET", "/api/v1/me")["user"]["displayName"] == "Ann"


def test_det_says_what_is_not_there(det: Commands, api: Client) -> None:
    make_trial(api)
    commands = {
        "experiment describe 77": "experiment '77' not found",
        "trial describe 77": "trial '77' not found",
        "trial logs 77": "not found",
        "experiment archive 1": "not at its end",
        "experiment delete 1 --yes": "not at its end",
        "workspace describe nothing": "not",
        "workspace create Uncategorized": "already exists",
        "workspace delete Uncategorized --yes": "only its owner and administrators",
        "project describe Uncategorized nothing": "not",
        "user create ann --password Abcdefg1": "administrator",
    }
    for command, outcome in zip(commands, det.outcomes(*commands), strict=True):
        assert outcome.status == 1, (command, outcome)
        assert commands[command] in outcome.output, (command, outcome)


def test_det_shows_the_master_s_log(det: Commands, api: Client, master: Master, tmp_path: Path) -> None:
    made = make_trial(api)
    [printed] = det(["trial", "support-bundle", str(made.trial), "--output-dir", str(tmp_path)])
    [bundle] = tmp_path.glob("det-bundle-trial-*.tar.gz")
    assert str(bundle) in printed
    with tarfile.open(bundle) as files:
        assert {Path(name).name for name in files.getnames()} >= {"trial_logs.txt", "master_logs.txt"}
    admin = master.client.login("admin")
    assert admin.token is not None
    det.settings |= {"DET_USER": "admin", "DET_USER_TOKEN": admin.token}
    everything, last = det("master logs", "master logs --tail 1")
    assert "serving" in everything
    assert len(last.splitlines()) == 1
    entries = [element["logEntry"] for element in admin.lines("/api/v1/master/logs")]
    assert [entry["id"] for entry in entries] == list(range(len(entries)))
    assert {entry["level"] for entry in entries} <= {"LOG_LEVEL_INFO", "LOG_LEVEL_WARNING"}
    assert admin.lines("/api/v1/master/logs?limit=1") == [{"logEntry": entries[0]}]
    assert admin.lines("/api/v1/master/logs?offset=-1&limit=5") == [{"logEntry": entries[-1]}]
    assert admin.lines("/api/v1/master/logs?follow=true&limit=1") == [{"logEntry": entries[0]}]
    assert admin.lines(f"/api/v1/master/logs?offset={len(entries)}") == []
