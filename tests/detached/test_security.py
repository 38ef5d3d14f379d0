"""Who gets in: users without passwords, other users of the machine, other machines, and encryption."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from conftest import Runner

from .conftest import Client, Failed, Master
from .det import Commands, det
from .trial import make_trial, refused, report

__all__ = ["det"]

# Nobody may not read this interpreter's modules: nothing is imported after the change.
LOGIN = """
import http.client, os, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=20)
"".encode("idna"), "".encode("latin-1")
os.setgid(65534); os.setuid(65534)
connection.request("POST", "/api/v1/auth/login", sys.argv[2])
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


def set_password(master: Master, username: str, password: str) -> None:
    """Give a user a password, as an administrator."""
    admin = master.client.login("admin", "" if username == "admin" else "Abcdefg1")
    ids = {user["username"]: user["id"] for user in admin("GET", "/api/v1/users")["users"]}
    admin("PATCH", f"/api/v1/users/{ids[username]}", {"password": password, "isHashed": False})


def test_guesses_that_are_sent_together_wait_for_each_other(master: Master) -> None:
    set_password(master, "admin", "Abcdefg1")

    def guess(number: int) -> int:
        try:
            master.client.login("admin", f"wrong{number}")
        except Failed as refused:
            return refused.status
        return 200

    with ThreadPoolExecutor(60) as pool:
        answers = list(pool.map(guess, range(60)))
    assert set(answers) == {401, 429}, answers
    # Four are free, and each processor may be at one when the fifth turns out to be wrong.
    assert answers.count(401) < 5 + 2 * (os.cpu_count() or 1) + 10, answers


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_users_without_password_must_be_the_one_who_runs_the_master(master: Master) -> None:
    def as_nobody(password: str) -> tuple[str, str]:
        request = json.dumps({"username": "determined", "password": password, "isHashed": False})
        words = [sys.executable, "-c", LOGIN, str(master.port), request]
        status, answer = subprocess.run(words, text=True, capture_output=True, check=True).stdout.split(" ", 1)
        return status, answer

    assert master.client.login().token
    status, answer = as_nobody("")
    assert status == "403"
    assert "has no password" in answer
    assert "hint:" in answer
    assert as_nobody("guess")[0] == "401"
    set_password(master, "admin", "Abcdefg1")
    set_password(master, "determined", "Bcdefgh2")
    assert as_nobody("Bcdefgh2")[0] == "200"
    with pytest.raises(Failed) as refused:
        master.client.login()
    assert refused.value.status == 401


def test_other_machines_are_served_only_when_everybody_has_a_password(
    master: Master, run: Runner, instep: Path, wait_until: Callable[..., None]
) -> None:
    master.stop()
    words = (instep, "master", "--host", "0.0.0.0", "--port", "0", "--db", master.place)
    result = run(*words, env=master.environment).expect(1)
    assert "refusing to listen on 0.0.0.0:0" in result.stderr
    assert "without a password are admin, determined" in result.stderr
    assert "hint: " in result.stderr
    master.start(wait_until)
    set_password(master, "admin", "Abcdefg1")
    set_password(master, "determined", "Bcdefgh2")
    master.stop()
    serving = run.start(*words, env=master.environment)
    wait_until(lambda: "listening" in serving.stdout, 30, "the master to listen")
    wait_until(lambda: "unencrypted" in serving.stderr, 30, "a warning")


def test_sessions_end_when_they_are_said_to(master: Master, wait_until: Callable[..., None]) -> None:
    master.stop()
    master.start(wait_until, "--session-hours", "2")
    api = master.client.login()
    ((created, expires),) = master.rows("SELECT created_at, expires_at FROM sessions")
    assert expires - created == 2 * 3600 * 1_000_000
    assert api("GET", "/api/v1/me")["user"]["username"] == "determined"


def https(address: str, certificate: Path, path: str) -> Any:  # noqa: ANN401
    """Ask an encrypted master, trusting one certificate."""
    host, port = address.removeprefix("https://").split(":")
    context = ssl.create_default_context(cafile=str(certificate))
    with contextlib.closing(http.client.HTTPSConnection(host, int(port), context=context, timeout=20)) as connection:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


def test_connections_are_encrypted_for_the_stock_client_too(
    run: Runner, instep: Path, tmp_path: Path, determined: Path, wait_until: Callable[..., None]
) -> None:
    database = tmp_path / "master.db"
    serving = run.start(instep, "master", "--port", "0", "--db", database, "--tls-self-signed")
    wait_until(lambda: "listening" in serving.stdout or serving.poll() is not None, 30, "the master to listen")
    found = re.search(r"https://127\.0\.0\.1:\d+", serving.stdout)
    assert found, serving.stderr
    certificate = tmp_path / "master.cert.pem"
    assert https(found[0], certificate, "/info")["version"] == "0.38.1"
    # The pages of tasks have the same certificate, on a port of their own.
    wait_until(lambda: "pages of tasks: " in serving.stdout, 30, "the master to say where the pages of tasks are")
    tasks = serving.stdout.split("pages of tasks: ")[1].strip()
    assert "no key for the pages" in https(tasks, certificate, "/proxy/some-task/")["message"]
    # Who does not encrypt gets an alert of TLS, which is no HTTP.
    with pytest.raises((OSError, http.client.HTTPException)):
        Client(found[0].replace("https", "http"))("GET", "/info")
    environment = {
        "DET_MASTER": found[0],
        "DET_MASTER_CERT_FILE": str(certificate),
        "DET_DEBUG_CONFIG_PATH": str(tmp_path / "client"),
        "HOME": str(tmp_path),
        # The client's HTTP library would have these win over the certificate it is given.
        "REQUESTS_CA_BUNDLE": None,
        "CURL_CA_BUNDLE": None,
    }
    command = (determined, "-m", "determined.cli", "user", "whoami")
    assert "determined" in run(*command, env=environment).expect(0).stdout
    # Without the certificate it is a stranger's.
    assert run(*command, env={**environment, "DET_MASTER_CERT_FILE": None}).status != 0

    # Ours says what is missing, and so it does to those who do not encrypt.
    ours = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "INSTEP_MASTER": found[0]}
    asked = run(instep, "whoami", env=ours).expect(1).stderr
    assert "invalid peer certificate" in asked and "hint: set INSTEP_MASTER_CERT_FILE to a file with" in asked
    plain = run(instep, "whoami", env={**ours, "INSTEP_MASTER": found[0].replace("https", "http")}).expect(1).stderr
    assert "hint: if the master encrypts connections, its address begins with https://" in plain
    run(instep, "whoami", env={**ours, "INSTEP_MASTER_CERT_FILE": str(certificate)}).expect(0)

    wrong = run(instep, "master", "--port", "0", "--db", database, "--tls-cert", certificate)
    assert "give both --tls-cert and --tls-key" in wrong.expect(1).stderr
    (tmp_path / "empty.pem").write_text("")
    files = ("--tls-cert", tmp_path / "empty.pem", "--tls-key", tmp_path / "master.key.pem")
    wrong = run(instep, "master", "--port", "0", "--db", tmp_path / "other.db", *files).expect(1)
    assert "empty.pem for encryption" in wrong.stderr
    assert "hint: " in wrong.stderr
    assert "connections are encrypted" not in wrong.stderr


def test_users_change_only_what_is_their_own(master: Master) -> None:
    admin, owner = master.client.login("admin"), master.client.login()
    admin("POST", "/api/v1/users", {"user": {"username": "eve", "active": True}, "password": "x", "isHashed": False})
    eve = master.client.login("eve", "x")
    config = {"config": "{name: a, searcher: {name: single, metric: x}}", "unmanaged": True}
    number = owner("POST", "/api/v1/experiments", config)["experiment"]["id"]
    trial = owner("POST", "/api/v1/trials", {"experimentId": number, "unmanaged": True})["trial"]
    name = "11111111-2222-4333-8444-555555555555"
    checkpoint = {"uuid": name, "taskId": trial["taskId"], "resources": {"a": "1"}, "metadata": {"steps_completed": 1}}
    owner("POST", "/api/v1/checkpoints", checkpoint)
    nothing_kept = {"saveExperimentBest": 0, "saveTrialBest": 0, "saveTrialLatest": 0}
    own = eve("POST", "/api/v1/experiments", config)["experiment"]["id"]
    own_task = eve("POST", "/api/v1/trials", {"experimentId": own, "unmanaged": True})["trial"]["taskId"]
    attempts: list[tuple[str, str, object]] = [
        ("PATCH", f"/api/v1/experiments/{number}", {"checkpointStorage": nothing_kept}),
        ("PATCH", f"/api/v1/experiments/{number}", {"name": "eve's"}),
        ("PATCH", "/api/v1/checkpoints", {"checkpoints": [{"uuid": name, "resources": {"resources": {}}}]}),
        # Under a UUID that is somebody else's it would take that checkpoint's place.
        ("POST", "/api/v1/checkpoints", {**checkpoint, "taskId": own_task}),
        ("POST", f"/api/v1/trials/{trial['id']}/metrics", {"group": "training", "metrics": {}}),
        ("POST", "/task-logs", [{"task_id": trial["taskId"], "log": "forged"}]),
        ("POST", f"/api/v1/experiments/{number}/move", {"destinationProjectId": 1}),
        ("POST", f"/api/v1/experiments/{number}/kill", {}),
    ]
    for method, path, body in attempts:
        with pytest.raises(Failed) as refused:
            eve(method, path, body)
        assert refused.value.status == 403, (method, path)
        assert "only its owner and administrators" in str(refused.value)
    together = eve("POST", "/api/v1/projects/1/experiments/archive", {"experimentIds": [number, own]})["results"]
    assert ["only its owner" in result["error"] for result in together] == [True, False]
    found = owner("GET", f"/api/v1/checkpoints/{name}")["checkpoint"]
    assert (found["state"], found["taskId"]) == ("STATE_COMPLETED", trial["taskId"])
    admin("PATCH", f"/api/v1/experiments/{number}", {"name": "the administrator's"})


def test_lines_of_output_need_a_token(master: Master) -> None:
    with pytest.raises(Failed) as refused:
        master.client("POST", "/task-logs", [{"task_id": "1.x", "log": "forged"}])
    assert refused.value.status == 401


def answer_to(master: Master, request: str) -> str:
    """What the master says to bytes that no client of HTTP would send."""
    with socket.create_connection(("127.0.0.1", master.port), timeout=20) as connection:
        connection.sendall(request.encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def test_requests_that_a_proxy_could_read_otherwise_are_refused(master: Master) -> None:
    address = f"127.0.0.1:{master.port}"
    assert answer_to(master, f"GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").startswith(
        "HTTP/1.1 200 "
    )
    twice = f"GET /health HTTP/1.1\r\nHost: {address}\r\nHost: other.example\r\nConnection: close\r\n\r\n"
    answer = answer_to(master, twice)
    assert answer.startswith("HTTP/1.1 400 "), answer
    assert "2 Host headers" in answer
    login = json.dumps({"username": "determined", "password": "", "isHashed": False})
    length, chunked = f"Content-Length: {len(login)}\r\n", "Transfer-Encoding: chunked\r\n"
    chunks = f"{len(login):x}\r\n{login}\r\n0\r\n\r\n"
    start = f"POST /api/v1/auth/login HTTP/1.1\r\nHost: {address}\r\n"
    assert answer_to(master, f"{start}{chunked}Connection: close\r\n\r\n{chunks}").startswith("HTTP/1.1 200 ")
    for headers in (length + chunked, chunked + length):
        # The second request is on the same connection, after one that is as it should be.
        answer = answer_to(master, f"{start}{length}\r\n{login}{start}{headers}\r\n{chunks}")
        assert "HTTP/1.1 400 " in answer, answer
        assert "both Content-Length and Transfer-Encoding" in answer


def test_one_request_makes_no_answer_of_any_size(api: Client) -> None:
    made = make_trial(api)
    report(api, made, 1, loss=0.5)
    path = f"/api/v1/trials/time-series?group=training&trialIds={made.trial}"
    trials = api("GET", path + f"&trialIds={made.trial}" * 1000)["trials"]
    assert [len(trial["metrics"]) for trial in trials] == [1], "each trial is there once"
    many = "".join(f"&trialIds={number}" for number in range(100, 201))
    for more, said in ((many, "names 102 trials: at most 100"), ("&maxDatapoints=100001", "at most 100000")):
        status, why = refused(api, "GET", path + more)
        assert (status, said in why) == (400, True), why


def test_names_have_no_control_characters(master: Master) -> None:
    admin, owner = master.client.login("admin"), master.client.login()
    searcher = "searcher: {name: single, metric: x}"
    number = owner("POST", "/api/v1/experiments", {"config": f"{{name: a, {searcher}}}", "unmanaged": True})
    experiment = f"/api/v1/experiments/{number['experiment']['id']}"
    owner("POST", "/api/v1/models", {"name": "model"})
    external = "/api/v1/experiments/by-external-id"
    trial = {"experimentId": number["experiment"]["id"], "unmanaged": True}
    for code, letter in (("U+0000", "\0"), ("U+001B", "\x1b"), ("U+000A", "\n")):
        name = f"a{letter}b"
        quoted = quote(name, safe="")
        config = json.dumps({"name": name, "searcher": {"name": "single", "metric": "x"}})
        labels = json.dumps({"labels": [name], "searcher": {"name": "single", "metric": "x"}})
        attempts: list[tuple[Client, str, str, object]] = [
            (owner, "POST", "/api/v1/experiments", {"config": config, "unmanaged": True}),
            (owner, "POST", "/api/v1/experiments", {"config": labels, "unmanaged": True}),
            (owner, "PATCH", experiment, {"name": name}),
            (owner, "PATCH", experiment, {"labels": ["fine", name]}),
            (owner, "PUT", f"{experiment}/labels/{quoted}", None),
            (owner, "PUT", f"{external}/{quoted}", {"config": f"{{{searcher}}}", "unmanaged": True}),
            (owner, "PUT", "/api/v1/trials", {"externalTrialId": name, "createTrialRequest": trial}),
            (owner, "POST", "/api/v1/models", {"name": name}),
            (owner, "PATCH", "/api/v1/models/model", {"labels": [name]}),
            (owner, "POST", "/api/v1/workspaces", {"name": name}),
            (owner, "POST", "/api/v1/workspaces/1/projects", {"name": name}),
            (owner, "POST", f"/api/v1/templates/{quoted}", {"config": {}}),
            (admin, "POST", "/api/v1/users", {"user": {"username": name, "active": True}}),
            (admin, "POST", "/api/v1/agents/tokens", {"name": name}),
        ]
        for client, method, path, body in attempts:
            with pytest.raises(Failed) as refused:
                client(method, path, body)
            assert refused.value.status == 400, (method, path)
            assert f"has the control character {code}, which names must not have" in refused.value.message, (
                method,
                path,
            )
    # Texts that are no names may have lines.
    owner("PATCH", experiment, {"notes": "two\nlines", "description": "two\nlines", "name": "größer"})


def test_secrets_of_configurations_are_masked_for_everybody(
    master: Master, run: Runner, instep: Path, det: Commands, tmp_path: Path
) -> None:
    config = tmp_path / "secret.yaml"
    config.write_text(
        "name: hushed # hunter2 is the key\n"
        "entrypoint: 'true'\n"
        "searcher: {name: single, metric: loss}\n"
        "checkpoint_storage: {type: s3, bucket: shown, access_key: hunter2, secret_key: hunter2}\n"
        "environment: {environment_variables: [HF_TOKEN=hunter2, SHOWN=yes]}\n"
        "data: {secrets: {any: hunter2}}\n"
    )

    def ours(*words: object) -> str:
        done = run(instep, *words, env=det.settings | {"INSTEP_MASTER": master.address}).expect(0)
        return f"{done.stdout}{done.stderr}"

    outputs = [
        ours("experiment", "create", "--paused", config),
        *det("experiment config 1", "experiment describe --json 1", "experiment list"),
        ours("experiment", "config", "1"),
        ours("experiment", "list", "--json"),
        ours("experiment", "fork", "1", "--paused", "--config", "name=forked"),
        ours("experiment", "config", "2"),
        json.dumps(master.client.login("admin")("GET", "/api/v1/experiments/1")),
    ]
    assert not [output for output in outputs if "hunter2" in output]
    assert all("********" in outputs[at] and "SHOWN=yes" in outputs[at] for at in (1, 4, 7, 8))
    master.stop()
    # The fork has the real values, for its tasks.
    rows = master.rows("SELECT config FROM experiments ORDER BY id")
    found = [json.loads(row[0]) for row in rows]
    assert [each["checkpoint_storage"]["secret_key"] for each in found] == ["hunter2", "hunter2"]
    assert [each["environment"]["environment_variables"]["cpu"][0] for each in found] == ["HF_TOKEN=hunter2"] * 2


def test_the_audit_log_says_who_did_what(master: Master, run: Runner, instep: Path, tmp_path: Path) -> None:
    environment = {"INSTEP_MASTER": master.address, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    audit = (instep, "master", "audit")
    api = master.client.login()
    api("POST", "/api/v1/workspaces", {"name": "mine"})
    for _ in range(3):
        with pytest.raises(Failed):
            master.client("GET", "/api/v1/users")
    with pytest.raises(Failed):
        api("DELETE", "/api/v1/models/" + quote("\x1b[2Jnone", safe=""))
    shown = run(*audit, env=environment).expect(0).stdout
    assert re.search(r"determined +workspace\.create +workspace 2 +done \(200\) +127\.0\.0\.1 +login", shown)
    assert re.search(r"- +read +/api/v1/users +refused \(401\) +127\.0\.0\.1 +none", shown)
    assert r"model \u{1b}[2Jnone" in shown
    assert "\x1b" not in shown
    lines = run(*audit, "--json", "--since", "1h", "--user", "determined", "--action", "workspace", env=environment)
    (record,) = [json.loads(line) for line in lines.expect(0).stdout.splitlines()]
    assert (record["action"], record["subject"], record["userId"]) == ("workspace.create", "workspace 2", 2)
    nothing = run(*audit, "--action", "group", env=environment).expect(0)
    assert (nothing.stdout, "hint:" in nothing.stderr) == ("", True)
    for option, name, what in (("--user", "nobody", "user 'nobody' not found"), ("--action", "x", "no action `x`")):
        unknown = run(*audit, option, name, env=environment).expect(1)
        assert what in unknown.stderr
        assert "hint:" in unknown.stderr
    wrong = run(*audit, "--since", "yesterday", env=environment).expect(2)
    assert "90s, 30m, 2h, 7d" in wrong.stderr
    with pytest.raises(Failed) as refused:
        api("GET", "/api/v1/master/audit")
    assert refused.value.status == 403
    # It is there when the master comes back, with what the minute held back.
    master.stop()
    assert master.rows("SELECT SUM(count) FROM audit WHERE action = 'read' AND user_id IS NULL") == [(3,)]


def test_the_audit_log_is_followed(
    master: Master, run: Runner, instep: Path, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    environment = {"INSTEP_MASTER": master.address, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    follower = run.start(instep, "master", "audit", "-f", "--json", env=environment)
    wait_until(lambda: "auth.login" in follower.stdout, 30, "the first records")
    master.client.login()("POST", "/api/v1/models", {"name": "followed"})
    wait_until(lambda: "model followed" in follower.stdout, 30, "the new record")


def test_the_memory_of_many_logins_at_once_is_bounded(master: Master) -> None:
    set_password(master, "admin", "Abcdefg1")
    set_password(master, "determined", "Abcdefg2")

    def memory(field: str) -> int:
        status = Path(f"/proc/{master.process.pid}/status").read_text()
        found = re.search(rf"{field}:\s+(\d+) kB", status)
        assert found, status
        return int(found[1]) << 10

    idle = memory("VmRSS")
    # Checking a password takes 19 MiB: all at once would be 1.2 GiB.
    with ThreadPoolExecutor(64) as pool:
        clients = list(pool.map(lambda _: master.client.login("determined", "Abcdefg2"), range(64)))
    assert len({client.token for client in clients}) == 64
    grown = memory("VmHWM") - idle
    assert grown <= 200 << 20, f"{grown >> 20} MiB more than {idle >> 20} MiB"
    print(f"idle {idle >> 20} MiB, at most {grown >> 20} MiB more")
