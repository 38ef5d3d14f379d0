"""The rules of the wire that Determined's client relies on, asked with plain requests: one test for each quirk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from conftest import Runner, WaitUntil

from .conftest import Client, Failed, Master

CONFIG = "{name: plain, searcher: {name: single, metric: loss}}"


def new_trial(api: Client, **config: object) -> int:
    """Make an experiment and a started trial."""
    text = json.dumps({"name": "plain", "searcher": {"name": "single", "metric": "loss"}, **config})
    experiment = api("POST", "/api/v1/experiments", {"config": text, "unmanaged": True})["experiment"]["id"]
    trial: int = api("POST", "/api/v1/trials", {"experimentId": experiment, "hparams": None, "unmanaged": True})[
        "trial"
    ]["id"]
    api("POST", f"/api/v1/trials/{trial}/start", {"trialId": trial, "resume": True})
    return trial


def report(api: Client, trial: int, step: int, metrics: object, group: str = "training", run: int = 1) -> None:
    """Report metrics as the client does."""
    inner = {"trialId": trial, "trialRunId": run, "stepsCompleted": step, "reportTime": None}
    inner["metrics"] = {"avgMetrics": metrics, "batchMetrics": None}
    assert api("POST", f"/api/v1/trials/{trial}/metrics", {"group": group, "metrics": inner}) == {}


def refused(api: Client, status: int, method: str, path: str, body: object = None) -> str:
    """The message of a request that must fail."""
    with pytest.raises(Failed) as failed:
        api(method, path, body)
    assert failed.value.status == status, failed.value
    return failed.value.message


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "application/json"])
def test_bodies_are_json_whatever_their_header_says(api: Client, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    body = json.dumps({"config": CONFIG, "unmanaged": True}).encode()
    status, _, _ = api.raw("POST", "/api/v1/experiments", body, headers)
    assert status == 200


def test_an_empty_body_is_an_empty_object(api: Client) -> None:
    trial = new_trial(api)
    assert api("PATCH", f"/api/v1/trials/{trial}")["trial"]["id"] == trial
    assert api("POST", "/api/v1/auth/logout") == {}


def test_answers_hold_every_required_key(api: Client) -> None:
    trial = new_trial(api)
    experiment = api("GET", "/api/v1/experiments/1")["experiment"]
    required = (
        "id name config originalConfig archived jobId numTrials projectId projectOwnerId searcherType startTime state"
    )
    assert set(required.split()) <= set(experiment)
    assert experiment["checkpointSize"] == "0"
    found = api("PATCH", f"/api/v1/trials/{trial}", {"trialId": trial})["trial"]
    assert {"id", "experimentId", "state", "startTime", "hparams", "restarts", "totalBatchesProcessed"} <= set(found)
    assert found["id"] == 1
    assert found["taskId"].startswith("1.")
    assert len(found["taskId"]) > 2


def test_snake_case_and_null_are_understood(api: Client) -> None:
    request = {"experiment_id": 1, "hparams": None, "unmanaged": True, "unknown": [1]}
    new_trial(api)
    trial = api("POST", "/api/v1/trials", request)["trial"]["id"]
    api("POST", f"/api/v1/trials/{trial}/start", {"resume": None})
    inner = {"trial_run_id": "1", "steps_completed": "3", "metrics": {"avg_metrics": {"a": 1}}}
    api("POST", f"/api/v1/trials/{trial}/metrics", {"group": "training", "metrics": inner})
    api("POST", f"/api/v1/trials/{trial}/progress", {"progress": 0.1, "is_raw": True})
    assert api("GET", "/api/v1/experiments/1")["experiment"]["progress"] == 0.1
    assert api("GET", f"/api/v1/trials/{trial}/workloads?order_by=ORDER_BY_ASC")["pagination"]["total"] == 1


def test_errors_have_the_documented_shapes(api: Client, master: Master) -> None:
    status, headers, body = api.raw("GET", "/api/v1/experiments/9")
    expected = {"code": 5, "reason": "NotFound", "error": "experiment '9' not found"}
    assert (status, json.loads(body)) == (404, {"error": expected, "requestId": headers["x-request-id"]})
    assert refused(api, 404, "GET", "/api/v1/trials/9") == "trial '9' not found"
    status, _, body = master.client.raw("GET", "/nothing/here")
    assert (status, list(json.loads(body))) == (404, ["message", "requestId"])
    assert refused(api, 400, "GET", "/api/v1/trials/abc")
    assert "cannot read the request's body" in refused(api, 400, "POST", "/api/v1/trials", [1])
    assert refused(api, 405, "DELETE", "/api/v1/me")
    assert refused(master.client, 401, "GET", "/api/v1/me") == "invalid credentials"


def test_a_wrong_run_id_is_refused_and_a_rerun_rolls_back(api: Client) -> None:
    trial = new_trial(api)
    for step in range(5):
        report(api, trial, step, {"a": step})
    with pytest.raises(Failed, match=r"invalid run id, 2 \(reported\) != 1 \(expected\)"):
        report(api, trial, 5, {"a": 5}, run=2)
    started = api("POST", f"/api/v1/trials/{trial}/start", {"resume": True})
    assert started == {"trialRunId": 2, "stepsCompleted": 0, "latestCheckpoint": None}
    assert refused(api, 400, "POST", f"/api/v1/trials/{trial}/start", {"resume": False}) == (
        "trial has already been started"
    )
    report(api, trial, 2, {"a": 20}, run=2)
    [element] = api.lines(f"/api/v1/trials/metrics/trial_metrics?trialIds={trial}&group=training")
    found = {row["totalBatches"]: (row["trialRunId"], row["metrics"]["avg_metrics"]["a"]) for row in element["metrics"]}
    assert found == {0: (1, 0), 1: (1, 1), 2: (2, 20)}


def test_reports_at_one_step_are_joined(api: Client) -> None:
    trial = new_trial(api)
    report(api, trial, 1, {"a": 1})
    report(api, trial, 1, {"b": "Infinity", "a": 1})
    with pytest.raises(Failed, match="overwriting existing metric keys is not supported, conflicting key: a"):
        report(api, trial, 1, {"a": 2})
    [workload] = api("GET", f"/api/v1/trials/{trial}/workloads")["workloads"]
    assert workload["training"]["metrics"]["avgMetrics"] == {"a": 1, "b": "Infinity"}
    for group in ("", "a.b"):
        with pytest.raises(Failed):
            report(api, trial, 1, {"a": 2}, group=group)
    with pytest.raises(Failed, match="epoch"):
        report(api, trial, 2, {"epoch": "first"})


def test_no_validation_is_not_found(api: Client) -> None:
    trial = new_trial(api)
    path = "/api/v1/experiments/1/searcher/best_searcher_validation_metric"
    refused(api, 404, "GET", path)
    report(api, trial, 1, {"loss": 3, "other": 1}, "validation")
    report(api, trial, 2, {"loss": 5}, "validation")
    assert api("GET", path) == {"metric": 3.0}


def test_columns_of_a_project_have_metrics_that_nobody_searches_by(api: Client) -> None:
    report(api, new_trial(api), 1, {"speed": 3}, "validation")
    names = {column["column"] for column in api("GET", "/api/v1/projects/1/columns")["columns"]}
    assert {f"validation.speed.{each}" for each in ("last", "max", "mean", "min")} <= names


def test_one_configuration_of_storage_is_one_id(api: Client) -> None:
    trial = new_trial(api)

    def storage(config: object) -> int | None:
        answer = api("POST", "/api/v1/runs/start", {"runId": trial, "checkpointStorage": config})
        found: int | None = answer["storageId"]
        return found

    one = storage({"type": "directory", "container_path": "/a"})
    assert storage({"container_path": "/a", "type": "directory"}) == one
    assert storage({"type": "directory", "container_path": "/b"}) != one
    assert storage(None) is None


def test_external_ids_name_the_same_things_again(api: Client) -> None:
    path = "/api/v1/experiments/by-external-id/a%2Fb%20c/d"
    request = {"config": CONFIG, "unmanaged": True}
    first = api("PUT", path, request)["experiment"]
    assert first["externalExperimentId"] == "a/b c/d"
    assert api("PUT", path, request)["experiment"]["id"] == first["id"]
    body = {"createTrialRequest": {"experimentId": first["id"], "unmanaged": True}, "externalTrialId": "t/1"}
    trial = api("PUT", "/api/v1/trials", body)["trial"]
    again = api("PUT", "/api/v1/trials", body)["trial"]
    assert (trial["id"], trial["taskId"]) == (again["id"], again["taskId"]) == (1, f"{first['id']}.t/1")
    assert api("GET", "/api/v1/trials/by-external-id/a/b%20c/d/t/1")["trial"]["id"] == 1
    assert refused(api, 400, "PUT", path, {"config": CONFIG}) == "only unmanaged experiments are supported"


def test_checkpoints(api: Client) -> None:
    trial = new_trial(api)
    task = api("GET", f"/api/v1/trials/{trial}")["trial"]["taskId"]
    uuid = "0b0f0e5e-1111-4222-8333-123456789abc"
    request: dict[str, Any] = {
        "uuid": uuid,
        "taskId": task,
        "allocationId": None,
        "state": "STATE_COMPLETED",
        "storageId": None,
        "reportTime": "2026-01-02T03:04:05.678901+00:00",
        "metadata": {"steps_completed": 7},
        "resources": {"a": "9007199254740993", "sub/": 0},
        "training": {},
    }
    assert api("POST", "/api/v1/checkpoints", request) == {}
    found = api("GET", f"/api/v1/checkpoints/{uuid}")["checkpoint"]
    assert found["resources"] == {"a": "9007199254740993", "sub/": "0"}
    assert (found["reportTime"], found["state"]) == ("2026-01-02T03:04:05.678901Z", "STATE_COMPLETED")
    assert api("POST", f"/api/v1/trials/{trial}/start", {"resume": True}) == {
        "trialRunId": 2,
        "stepsCompleted": 7,
        "latestCheckpoint": uuid,
    }
    refused(api, 400, "POST", "/api/v1/checkpoints", {**request, "state": "STATE_ACTIVE"})
    refused(api, 404, "POST", "/api/v1/checkpoints", {**request, "taskId": "9.9"})
    refused(api, 400, "POST", "/api/v1/checkpoints", {**request, "uuid": "../etc"})
    refused(api, 400, "POST", "/api/v1/checkpoints", {**request, "metadata": {}})
    patch = {"checkpoints": [{"uuid": uuid, "resources": {"resources": {"sub/": "0"}}}]}
    api("PATCH", "/api/v1/checkpoints", patch)
    assert api("GET", f"/api/v1/checkpoints/{uuid}")["checkpoint"]["state"] == "STATE_PARTIALLY_DELETED"
    api("PATCH", "/api/v1/checkpoints", {"checkpoints": [{"uuid": uuid, "resources": {"resources": None}}]})
    assert api("GET", f"/api/v1/checkpoints/{uuid}")["checkpoint"]["state"] == "STATE_DELETED"


def log(api: Client, *records: dict[str, object]) -> None:
    """Send log lines as detached scripts do: a bare list."""
    api("POST", "/task-logs", list(records))


def test_logs_are_filtered_and_keep_their_order_and_bytes(api: Client) -> None:
    trial = new_trial(api)
    task = api("GET", f"/api/v1/trials/{trial}")["trial"]["taskId"]
    line = {"task_id": task, "timestamp": "2026-01-02T03:04:05+00:00"}
    log(
        api,
        {**line, "rank": "0", "log": "first\n", "level": "LOG_LEVEL_INFO"},
        {**line, "rank": "1", "log": "nul \0 byte\n"},
        {**line, "log": "third Line\n", "stdtype": "stderr"},
    )

    def logs(query: str = "") -> list[str]:
        return [element["log"] for element in api.lines(f"/api/v1/trials/{trial}/logs?{query}")]

    assert logs() == ["first\n", "nul \0 byte\n", "third Line\n"]
    assert logs("rankIds=1") == ["nul \0 byte\n"]
    assert logs("rankIds=-1&rankIds=0") == ["first\n", "third Line\n"]
    assert logs("limit=2") == ["first\n", "nul \0 byte\n"]
    assert logs("limit=1&orderBy=ORDER_BY_DESC") == ["third Line\n"]
    assert logs("searchText=THIRD") == ["third Line\n"]
    assert logs("searchText=%5Efi.st&enableRegex=true") == ["first\n"]
    assert logs("levels=LOG_LEVEL_INFO") == ["first\n"]
    assert logs("stdtypes=stderr") == ["third Line\n"]
    assert logs("timestampAfter=2026-01-02T03:04:05Z") == []
    message = refused(api, 400, "GET", f"/api/v1/trials/{trial}/logs?searchText=(&enableRegex=true")
    assert "is not a regular expression" in message
    assert "hint: without --regex" in message
    [first, *_] = api.lines(f"/api/v1/tasks/{task}/logs")
    assert first["message"] == "[2026-01-02T03:04:05.000000Z]          [rank=0] || INFO: first\n"
    [fields] = api.lines(f"/api/v1/trials/{trial}/logs/fields")
    assert (fields["rankIds"], fields["stdtypes"]) == ([0, 1], ["stderr"])
    assert refused(api, 404, "POST", "/task-logs", [{"task_id": "9.9", "log": "x"}]) == "task '9.9' not found"


def test_following_a_log_shows_lines_as_they_come_and_ends_with_the_trial(api: Client) -> None:
    trial = new_trial(api)
    task = api("GET", f"/api/v1/trials/{trial}")["trial"]["taskId"]
    log(api, {"task_id": task, "log": "before\n"})
    seen: list[bytes] = []
    arrived = threading.Semaphore(0)

    def follow() -> None:
        parts = api.address.removeprefix("http://").split(":")
        with socket.create_connection((parts[0], int(parts[1])), timeout=30) as connection:
            head = f"GET /api/v1/trials/{trial}/logs?follow=true HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            connection.sendall(f"{head}Authorization: Bearer {api.token}\r\n\r\n".encode())
            while part := connection.recv(65536):
                seen.append(part)
                arrived.release()
                if part.endswith(b"0\r\n\r\n"):
                    return

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()

    def wait_for(text: bytes) -> None:
        while text not in b"".join(seen):
            assert arrived.acquire(timeout=20), b"".join(seen)

    wait_for(b"before")
    log(api, {"task_id": task, "log": "during\n"})
    wait_for(b"during")
    api("PATCH", f"/api/v1/trials/{trial}", {"state": "STATE_COMPLETED"})
    reader.join(timeout=20)
    assert not reader.is_alive()
    assert b"\r\n\n" not in b"".join(seen), "no blank lines"


def test_lists_come_in_pages(api: Client) -> None:
    for number in range(5):
        new_trial(api, name=f"number {number}", labels=["odd" if number % 2 else "even"])

    def names(query: str) -> tuple[list[str], int]:
        answer = api("GET", f"/api/v1/experiments?{query}")
        return [found["name"][-1] for found in answer["experiments"]], answer["pagination"]["total"]

    assert names("limit=2&offset=1") == (["1", "2"], 5)
    assert names("limit=-2") == ([], 5)
    assert names("offset=-1") == (["4"], 5)
    assert names("labels=odd&orderBy=ORDER_BY_DESC&sortBy=SORT_BY_NAME") == (["3", "1"], 2)
    assert names("users=determined&archived=false&name=NUMBER%203") == (["3"], 1)
    assert names("users=nobody") == ([], 0)
    assert names("states=STATE_RUNNING&states=STATE_ERROR")[1] == 5
    refused(api, 400, "GET", "/api/v1/experiments?states=STATE_CONFUSED")


def test_users_passwords_and_sessions(master: Master) -> None:
    admin = master.client.login("admin")
    hashed = hashlib.sha512(b"GubPEmmotfiK9TMD6ZdwAbcdefg1").hexdigest()
    request = {"user": {"username": "ann", "admin": False, "active": True}, "password": "Abcdefg1", "isHashed": False}
    assert admin("POST", "/api/v1/users", request)["user"]["id"] == 3
    assert refused(admin, 409, "POST", "/api/v1/users", request) == "user 'ann' already exists"
    for body in ({"password": "Abcdefg1"}, {"password": hashed, "isHashed": True}):
        assert master.client("POST", "/api/v1/auth/login", {"username": "ann", **body})["user"]["username"] == "ann"
    ann = master.client.login("ann", "Abcdefg1")
    for username, password in (("ann", "wrong"), ("nobody", "x"), ("determined", "x")):
        refused(master.client, 401, "POST", "/api/v1/auth/login", {"username": username, "password": password})
    refused(ann, 403, "POST", "/api/v1/users", {"user": {"username": "x"}})
    refused(ann, 403, "PATCH", "/api/v1/users/1", {"displayName": "x"})
    refused(ann, 403, "PATCH", "/api/v1/users/3", {"admin": True})
    assert ann("PATCH", "/api/v1/users/3", {"displayName": "Ann"})["user"]["displayName"] == "Ann"
    # A new password ends the user's sessions.
    ann("PATCH", "/api/v1/users/3", {"password": "Other123", "isHashed": False})
    refused(ann, 401, "GET", "/api/v1/me")
    ann = master.client.login("ann", "Other123")
    admin("PATCH", "/api/v1/users/3", {"active": False})
    refused(ann, 401, "GET", "/api/v1/me")
    login = {"username": "ann", "password": "Other123"}
    assert "hint: an administrator can" in refused(master.client, 403, "POST", "/api/v1/auth/login", login)
    status, _, body = admin.raw(
        "GET", "/api/v1/me", headers={"Authorization": "", "Cookie": f"x=1; auth={admin.token}"}
    )
    assert (status, json.loads(body)["user"]["username"]) == (200, "admin")
    admin("POST", "/api/v1/auth/logout")
    refused(admin, 401, "GET", "/api/v1/me")


def test_workspaces_and_projects(api: Client) -> None:
    made = api("POST", "/api/v1/workspaces", {"name": "lab"})
    assert (made["workspace"]["id"], made["namespaceBindings"]) == (2, {})
    project = api("POST", "/api/v1/workspaces/2/projects", {"name": "thesis"})["project"]
    text = json.dumps({"searcher": {"name": "single", "metric": "x"}, "workspace": "lab", "project": "thesis"})
    experiment = api("POST", "/api/v1/experiments", {"config": text, "unmanaged": True})["experiment"]
    assert (experiment["projectId"], experiment["workspaceName"]) == (project["id"], "lab")
    unknown = json.dumps({"searcher": {"name": "single", "metric": "x"}, "workspace": "lab", "project": "no"})
    assert "not found" in refused(api, 404, "POST", "/api/v1/experiments", {"config": unknown, "unmanaged": True})
    assert api("GET", "/api/v1/workspaces?name=LA")["workspaces"][0]["numExperiments"] == 1
    refused(api, 400, "DELETE", f"/api/v1/projects/{project['id']}")
    refused(api, 403, "PATCH", "/api/v1/workspaces/1", {"name": "x"})


def test_foreign_hosts_and_origins_are_refused(api: Client) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        status, _, body = api.raw("GET", "/api/v1/me", headers=headers)
        assert (status, json.loads(body)["error"]["code"]) == (403, 7)


def test_a_body_beyond_the_limit_is_refused(api: Client) -> None:
    trial = new_trial(api)
    with contextlib.suppress(ConnectionError):
        status, _, body = api.raw("POST", f"/api/v1/trials/{trial}/metrics", b" " * (9 << 20))
        assert (status, "larger than" in body.decode()) == (413, True)
    assert api("GET", "/api/v1/me")
    # Zeros in base64, as many as a context may have.
    code = {"path": "weights", "type": 48, "content": "AAAA" * ((94 << 20) // 3), "mode": 0o100644}
    large = json.dumps({"config": CONFIG, "unmanaged": True, "modelDefinition": [code]}).encode()
    status, _, _ = api.raw("POST", "/api/v1/experiments", large)
    assert status == 200, "an experiment may come with its code"


def test_other_addresses_need_passwords(
    run: Runner, instep: Path, tmp_path: Path, master: Master, wait_until: WaitUntil
) -> None:
    refusal = run(instep, "master", "--host", "0.0.0.0", "--port", "0", "--db", tmp_path / "other.db").expect(1)
    assert "without a password are admin, determined" in refusal.stderr
    assert "hint:" in refusal.stderr
    in_use = run(instep, "master", "--port", "0", "--db", master.place, env=master.environment).expect(1)
    assert "in use by another master" in in_use.stderr
    taken = run(instep, "master", "--port", str(master.port), "--db", tmp_path / "third.db").expect(1)
    assert "stop what uses this port" in taken.stderr
    admin = master.client.login("admin")
    for user in (1, 2):
        admin = master.client.login("admin", "" if user == 1 else "Secret12")
        admin("PATCH", f"/api/v1/users/{user}", {"password": "Secret12"})
    master.stop()
    words = ("master", "--host", "0.0.0.0", "--port", "0", "--db", master.place)
    served = run.start(instep, *words, env=master.environment)
    wait_until(lambda: "listening on http://0.0.0.0" in served.stdout, 20, "the master to listen")
