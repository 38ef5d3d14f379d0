"""Webhooks: what a receiver is told, how it knows who told it, and whom the master does not speak to."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from .conftest import Client, Master
from .trial import finish, make_trial, refused

KEY = "a key that both know"


class Receiver:
    """Takes what it is sent; refuses as often as it is told to."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.problems: list[str] = []
        self.refusals = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                message = self.headers["X-Determined-AI-Signature-Timestamp"].encode() + b"," + body
                expected = hmac.new(KEY.encode(), message, hashlib.sha256).hexdigest()
                if not hmac.compare_digest(expected, self.headers["X-Determined-AI-Signature"]):
                    receiver.problems.append("wrong signature")
                status = 200
                if receiver.refusals:
                    receiver.refusals -= 1
                    status = 503
                else:
                    receiver.bodies.append(json.loads(body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_words: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def webhook(url: str, *triggers: dict[str, Any], **more: object) -> dict[str, Any]:
    return {
        "name": "hook",
        "url": url,
        "webhookType": "WEBHOOK_TYPE_DEFAULT",
        "mode": "WEBHOOK_MODE_WORKSPACE",
        "triggers": list(triggers),
        **more,
    }


COMPLETED = {"triggerType": "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE", "condition": {"state": "COMPLETED"}}
LINE = {"triggerType": "TRIGGER_TYPE_TASK_LOG", "condition": {"regex": "CUDA out of .*"}}
CUSTOM = {"triggerType": "TRIGGER_TYPE_CUSTOM"}


def test_receivers_are_told_once_with_a_signature_and_again_when_they_fail(
    master: Master, receiver: Receiver, wait_until: Callable[..., None]
) -> None:
    master.stop()
    master.start(wait_until, "--webhooks-private-addresses", "--webhooks-signing-key", KEY)
    admin, api = master.client.login("admin"), master.client.login()
    made = admin("POST", "/api/v1/webhooks", webhook(receiver.url, COMPLETED, LINE))["webhook"]
    slack = webhook(receiver.url, CUSTOM, name="slack", mode="WEBHOOK_MODE_SPECIFIC", webhookType="WEBHOOK_TYPE_SLACK")
    admin("POST", "/api/v1/webhooks", slack)
    assert admin("POST", f"/api/v1/webhooks/{made['id']}/test")["completed"]
    assert receiver.bodies.pop()["event_data"] == {"data": "test"}

    receiver.refusals = 1
    trial = make_trial(api)
    for word in ("fine\n", "CUDA out of memory\n", "CUDA out of memory again\n"):
        line = {"task_id": trial.task, "log": word, "agent_id": "one", "timestamp": "2026-01-02T03:04:05Z"}
        api("POST", "/task-logs", [line])
    finish(api, trial)
    config = "name: chatty\nsearcher: {name: single, metric: loss}\nintegrations: {webhooks: {webhook_name: [slack]}}\n"
    chatty = api("POST", "/api/v1/experiments", {"config": config, "unmanaged": True})["experiment"]["id"]
    event = {
        "experimentId": chatty,
        "data": {"title": "half way", "description": "loss 0.1", "level": "LOG_LEVEL_INFO"},
    }
    api("POST", "/api/v1/webhooks/custom", event)
    wait_until(lambda: len(receiver.bodies) == 3, 20, "three events to be told")
    by_type = {body.get("event_type"): body for body in receiver.bodies}
    assert by_type["EXPERIMENT_STATE_CHANGE"]["event_data"]["experiment"]["id"] == trial.experiment
    assert by_type["TASK_LOG"]["event_data"]["task_log"]["triggering_log"] == "CUDA out of memory\n"
    [said] = by_type[None]["blocks"]
    assert [field["text"] for field in said["fields"]] == [
        "*Level*: INFO",
        "*Title*: half way",
        "*Description*: loss 0.1",
    ]
    [about] = by_type[None]["attachments"]
    assert about["blocks"][0]["text"]["text"] == f"chatty (#{chatty})"
    assert receiver.problems == []


def test_webhooks_are_seen_by_who_may_change_them_and_lead_nowhere_private(
    master: Master, receiver: Receiver, api: Client
) -> None:
    admin = master.client.login("admin")
    made = admin("POST", "/api/v1/webhooks", webhook(receiver.url, COMPLETED))["webhook"]
    status, said = refused(admin, "POST", f"/api/v1/webhooks/{made['id']}/test")
    assert status == 400
    assert "private network" in said
    assert receiver.bodies == []
    # Others see that it is there, and where it leads, but not the key that its address may hold.
    [seen] = api("GET", "/api/v1/webhooks")["webhooks"]
    assert (seen["id"], seen["url"]) == (made["id"], "http://127.0.0.1/")
    assert refused(api, "POST", "/api/v1/webhooks", webhook(receiver.url, COMPLETED))[0] == 403
    assert refused(api, "DELETE", f"/api/v1/webhooks/{made['id']}")[0] == 404
    own = api("POST", "/api/v1/workspaces", {"name": "lab"})["workspace"]["id"]
    api("POST", "/api/v1/webhooks", webhook("https://example.org/x", LINE, workspaceId=own))
    assert [each.get("workspaceId") for each in api("GET", "/api/v1/webhooks")["webhooks"]] == [None, own]
    # Names are for configurations that say them; several webhooks may have none.
    for _ in range(2):
        api("POST", "/api/v1/webhooks", webhook("https://example.org/x", LINE, workspaceId=own, name=""))
    for wrong in (
        webhook("file:///etc/passwd", COMPLETED),
        webhook("https://example.org"),
        webhook("https://example.org", {"triggerType": "TRIGGER_TYPE_TASK_LOG", "condition": {"regex": "("}}),
        webhook("https://example.org", {"triggerType": "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE", "condition": {}}),
        webhook("https://example.org", CUSTOM),
        webhook("https://example.org", COMPLETED, mode="WEBHOOK_MODE_UNSPECIFIED"),
    ):
        assert refused(admin, "POST", "/api/v1/webhooks", wrong)[0] == 400


def test_what_every_change_of_a_state_reads_is_short(master: Master) -> None:
    admin, url = master.client.login("admin"), "https://example.org/x"
    for body in (
        webhook(url, {**CUSTOM, "condition": [0] * 1000}, mode="WEBHOOK_MODE_SPECIFIC"),
        webhook(url, {**LINE, "condition": {"regex": "a" * 1100}}),
        webhook(f"{url}/{'a' * 2100}", LINE),
    ):
        status, said = refused(admin, "POST", "/api/v1/webhooks", body)
        assert (status, "the limit is" in said) == (400, True), said
    assert admin("GET", "/api/v1/webhooks")["webhooks"] == []
