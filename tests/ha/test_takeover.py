"""A leader is killed or stopped: another one takes over, and nothing that was acknowledged is lost or there twice."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from conftest import Runner
from detached.conftest import Client
from detached.postgres import Postgres
from detached.test_wire import new_trial

from .conftest import TAKEOVER_S, Masters, Member, Reporter

REPORTERS = 8


@contextmanager
def reporting(address: str, api: Client) -> Iterator[list[Reporter]]:
    """Reporters that report without a pause, each to a trial of its own."""
    assert api.token is not None
    reporters = [Reporter(address, api.token, new_trial(api), number) for number in range(REPORTERS)]
    stop = threading.Event()
    threads = [threading.Thread(target=reporter.run, args=(stop,), daemon=True) for reporter in reporters]
    for thread in threads:
        thread.start()
    try:
        yield reporters
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not [error for reporter in reporters for error in reporter.errors]


def check(api: Client, reporters: list[Reporter]) -> None:
    """Every acknowledged point and line is there once, and nothing else is."""
    for reporter in reporters:
        expected = Counter(range(1, reporter.acknowledged + 1))
        path = f"/api/v1/trials/metrics/trial_metrics?trialIds={reporter.trial}&group=g{reporter.number}"
        points = [each["totalBatches"] for page in api.lines(path) for each in page["metrics"]]
        assert Counter(points) == expected, (reporter.number, reporter.repeated)
        lines = api.lines(f"/api/v1/trials/{reporter.trial}/logs")
        own = f"line {reporter.number} "
        told = Counter(int(line["message"].split()[-1]) for line in lines if own in line["message"])
        assert told == expected, (reporter.number, reporter.repeated)


def test_a_killed_leader_is_followed_at_once_and_nothing_acknowledged_is_lost(masters: Masters) -> None:
    first, second, third = masters.start(), masters.start(), masters.start()
    assert masters.leader() is first
    api = first.client.login()
    with reporting(third.address, api) as reporters:
        masters.wait_until(lambda: all(each.acknowledged >= 20 for each in reporters), 30, "reports to be stored")
        killed = time.monotonic()
        first.signal(signal.SIGKILL)
        before = sum(len(each.times) for each in reporters)
        masters.wait_until(
            lambda: all(each.times and each.times[-1] > killed + 0.5 for each in reporters),
            TAKEOVER_S,
            masters.told,
        )
        leader = masters.leader()
        assert leader in (second, third)
        assert leader.health()["epoch"] == 2
        masters.wait_until(lambda: sum(len(each.times) for each in reporters) > before + 100, 30, "more reports")
    gaps = [b - a for each in reporters for a, b in zip(each.times, each.times[1:], strict=False)]
    print(f"the longest wait of a reporter was {max(gaps):.2f} s")
    assert max(gaps) < 30
    api = Client(leader.address, api.token)
    check(api, reporters)
    other = third if leader is second else second
    assert Client(other.address, api.token)("GET", "/api/v1/me")["user"]["username"] == "determined"

    # It comes back as one that stands by, and is told which gauges say so.
    first.process = first.start()
    assert masters.leader() is leader
    measures = first.client.raw("GET", "/metrics")[2].decode()
    assert "instep_leader 0\n" in measures
    assert "instep_leader_epoch 2\n" in measures


def test_a_stopped_leader_loses_its_lease_and_writes_nothing_when_it_wakes(masters: Masters, server: Postgres) -> None:
    first, second = masters.start(), masters.start()
    assert masters.leader() is first
    api = first.client.login()
    trial = new_trial(api)
    assert api.token is not None
    early, late = Reporter(second.address, api.token, trial, 1), Reporter(first.address, api.token, trial, 2)
    path = f"/api/v1/trials/{trial}/reports"
    assert Client(second.address, api.token).raw("POST", path, early.batch(1))[0] == 200

    pid = first.process.pid
    first.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    asked: list[int] = []

    def ask() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            asked.append(Client(first.address, api.token).raw("POST", path, late.batch(1))[0])

    # The kernel takes it for the one that is stopped, which finds it when it wakes.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    masters.wait_until(second.leads, TAKEOVER_S, masters.told)
    print(f"taken over {time.monotonic() - stopped:.2f} s after the stop")
    after = Client(second.address, api.token)
    assert after.raw("POST", path, early.batch(2))[0] == 200

    first.signal(signal.SIGCONT)
    assert masters.leader() is second
    assert (first.process.pid, first.process.poll()) == (pid, None), "whoever started it notices nothing"
    assert Path(f"/proc/{pid}/exe").readlink().name == "instep"
    thread.join(60)
    assert 200 not in asked, "it wrote after it was replaced"
    early.acknowledged = 2
    check(after, [early])
    assert server.psql(f'SELECT epoch FROM "{masters.folder.name}".lease') == "2\n"
    # It is of use again: what it is asked is passed on.
    assert Client(first.address, api.token).raw("POST", path, late.batch(1))[0] == 200
    late.acknowledged = 1
    check(Client(first.address, api.token), [early, late])
    assert json.loads(first.client.raw("GET", "/health")[2])["role"] == "standby"


def test_encrypted_masters_know_each_other_and_clients_know_both(
    masters: Masters, run: Runner, instep: Path, tmp_path: Path
) -> None:
    first, second = (masters.start("--tls-self-signed", scheme="https") for _ in range(2))
    certificates = tmp_path / "both.pem"
    certificates.write_text("".join(path.read_text() for path in sorted(tmp_path.glob("m*/instep/*.cert.pem"))))
    environment = {"INSTEP_MASTER_CERT_FILE": str(certificates), "HOME": str(tmp_path), "XDG_CONFIG_HOME": None}

    def ask(*words: str) -> Any:  # noqa: ANN401
        return json.loads(run(instep, *words, "--json", env=environment).expect(0).stdout)

    both = f"{first.address},{second.address}"
    roles = {each["address"]: each["role"] for each in ask("master", "status", "-m", both)}
    assert roles == {first.address: "leader", second.address: "standby"}
    assert ask("whoami", "-m", both)["username"] == "determined"
    # OpenSSL, too, finds the certificate of each among those of both.
    for each in (first, second):
        assert Client(each.address, trusted=certificates)("GET", "/info")["version"]

    # One that is ended in order leaves the lock behind, and clients go to the other.
    first.signal(signal.SIGTERM)
    first.process.wait().expect(0)
    assert ask("whoami", "-m", both)["username"] == "determined"
    shown = run(instep, "master", "status", "-m", both, env=environment).expect(0).stdout
    assert re.search(rf"{re.escape(first.address)} +unreachable", shown), shown
    assert re.search(rf"{re.escape(second.address)} +leader +2 ", shown), shown

    # The session is that of the first address; the answer is the other's, by way of the first.
    first.process = first.start()
    status = ("master", "status", "-m", first.address)
    masters.wait_until(lambda: run(instep, *status, env=environment).status == 0, 30, "a master that stands by")
    assert [each["role"] for each in ask(*status)] == ["standby", "leader"]
    assert ask("whoami", "-m", first.address)["username"] == "determined"
    for member in (first, second):
        member.signal(signal.SIGTERM)
        member.process.wait().expect(0)
    refused = run(instep, "master", "status", "-m", both, env=environment).expect(1)
    assert "none of the masters can be reached" in refused.stderr


def test_masters_go_on_after_the_server_was_restarted(masters: Masters, server: Postgres) -> None:
    first, second = masters.start(), masters.start()
    assert masters.leader() is first
    with reporting(second.address, first.client.login()) as reporters:
        masters.wait_until(lambda: all(each.acknowledged >= 5 for each in reporters), 30, "reports to be stored")
        server.restart()
        before = [each.acknowledged for each in reporters]
        masters.wait_until(
            lambda: all(each.acknowledged > count + 5 for each, count in zip(reporters, before, strict=True)),
            TAKEOVER_S,
            masters.told,
        )
    # Whoever had the lock first.
    check(Client(masters.leader().address, reporters[0].token), reporters)


def asked_from(address: str, member: Member, body: bytes, headers: dict[str, str]) -> int:
    """Try a password from an address of this machine; give the status."""
    parts = urlsplit(member.address)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30, source_address=(address, 0))
    with contextlib.closing(connection):
        connection.request("POST", "/api/v1/auth/login", body, headers)
        return connection.getresponse().status


def test_the_leader_knows_who_asks_by_way_of_another_master_and_believes_nobody_else(masters: Masters) -> None:
    first, second = masters.start(), masters.start()
    assert masters.leader() is first
    admin = first.client.login("admin")
    admin("POST", "/api/v1/users", {"user": {"username": "ann", "active": True}, "password": "Long-enough-1"})
    wrong = json.dumps({"username": "ann", "password": "Wrong-1"}).encode()
    claim = {"Instep-Forwarded": "0123456789abcdef 10.9.8.7:80"}
    assert asked_from("127.0.0.5", second, wrong, {}) == 401
    assert asked_from("127.0.0.6", second, wrong, claim) == 401, "what a client claims is replaced"
    assert asked_from("127.0.0.7", first, wrong, claim) == 503, "and not believed"
    records = admin("GET", "/api/v1/master/audit")["records"]
    found = [each["address"] for each in records if each["action"] == "auth.login" and each["status"] == 401]
    assert found == ["127.0.0.5", "127.0.0.6"]
    # Who is local to one master is not to another: nobody without a password logs in there.
    nobody = json.dumps({"username": "determined"}).encode()
    assert asked_from("127.0.0.1", second, nobody, {}) == 403
    for named in ("Instep-Forwarded", "close, instep-forwarded"):
        assert asked_from("127.0.0.1", second, nobody, {"Connection": named}) == 403, "nor by having the header removed"
    assert Client(second.address, admin.token).raw("GET", "/api/v1/me", headers={"Host": "elsewhere.example"})[0] == 403


@pytest.mark.soak
def test_a_leader_that_hears_nothing_of_the_server_steps_down_and_goes_on_with_it(
    masters: Masters, server: Postgres
) -> None:
    first, second = masters.start(), masters.start()
    assert masters.leader() is first
    api = first.client.login()
    trial = new_trial(api)
    assert api.token is not None
    postmaster = psutil.Process(int((Path(server.sockets) / "data/postmaster.pid").read_text().split()[0]))
    # What is asked meanwhile has to wait, or is refused; nobody leads for sure.
    stopped = [postmaster, *postmaster.children(recursive=True)]
    for process in stopped:
        process.suspend()
    try:
        masters.wait_until(
            lambda: all(each.health().get("role") == "standby" for each in (first, second)), 90, masters.told
        )
        assert first.process.poll() is None, "it begins anew"
    finally:
        for process in stopped:
            process.resume()
    leader = masters.leader(90)
    reporter = Reporter(leader.address, api.token, trial, 1)
    path = f"/api/v1/trials/{trial}/reports"
    assert Client(leader.address, api.token).raw("POST", path, reporter.batch(1))[0] == 200
    reporter.acknowledged = 1
    check(Client(leader.address, api.token), [reporter])
