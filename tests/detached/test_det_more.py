"""The real `det`: tokens, messages to everybody, how long logs are kept."""

from __future__ import annotations

import json

from .conftest import Client
from .det import Commands, det
from .trial import finish, make_trial, refused

__all__ = ["det"]


def test_det_manages_access_tokens(det: Commands, api: Client) -> None:
    # The first login warns of a weak password.
    _, made = det("user whoami", "token create --expiration-days 2 --description night --json")
    token = json.loads(made)
    listed, described, edited = det(
        "token list", f"token describe {token['tokenId']} --json", f"token edit {token['tokenId']} --description day"
    )
    assert "night" in listed
    assert token["token"] not in listed + described
    assert json.loads(described)[0]["revoked"] is False
    assert '"day"' in edited
    program = Client(api.address, token["token"])
    assert program("GET", "/api/v1/me")["user"]["username"] == "determined"
    det(f"token login {token['token']}", "user whoami")
    # The token that was just logged in with revokes itself.
    [revoked] = det(f"token revoke {token['tokenId']}")
    assert "Successfully revoked" in revoked
    assert program.raw("GET", "/api/v1/me")[0] == 401
    missing = det.outcomes(f"token revoke {token['tokenId']}")[0]
    assert missing.status != 0


def test_det_says_something_to_everybody_and_cleans_logs(det: Commands, api: Client) -> None:
    made = make_trial(api)
    api("POST", "/task-logs", [{"task_id": made.task, "log": "words\n", "timestamp": "2026-01-02T03:04:05Z"}])
    finish(api, made)
    det.settings["DET_USER"] = "admin"
    det.settings["DET_PASS"] = ""
    outputs = det(
        ["master", "cluster-message", "set", "--message", "closed on Friday", "--duration", "2w"],
        "master cluster-message get --json",
        "master info --json",
        "master cluster-message clear",
        "master cluster-message get --json",
        "trial set log-retention 1 --days 3",
        "task cleanup-logs",
        "experiment set log-retention 1 --forever",
        "trial logs 1",
        "trial set log-retention 1 --days 0",
        "task cleanup-logs",
        "trial logs 1",
    )
    assert [("closed on Friday" in output) for output in outputs[1:5]] == [True, True, False, False]
    # Others see it while it is to be seen, in `det master info`.
    assert refused(api, "GET", "/api/v1/master/cluster_message")[0] == 403
    assert "words" in outputs[8]
    assert "words" not in outputs[11]
