"""Kills at random moments, full disks, locked and damaged files: what was acknowledged is there, and errors say why."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import shutil
import sqlite3
import statistics
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from conftest import Runner, WaitUntil

from .conftest import Client, Failed, Master
from .test_wire import new_trial, report

KILLS = 20
SOAK_KILLS = 200
CLIENTS = 4


class Reporter(threading.Thread):
    """Reports step after step; repeats a report that was not acknowledged, as a client that retries would."""

    def __init__(self, master: Master, token: str, trial: int, group: str) -> None:
        super().__init__(daemon=True)
        self.master, self.token, self.trial, self.group = master, token, trial, group
        self.acknowledged = 0
        self.errors: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set() and not self.errors:
            connection = http.client.HTTPConnection("127.0.0.1", self.master.port, timeout=20)
            # The master may be dead, dying or just starting: then another connection is tried a little later.
            with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
                self.report(connection)
            self.stopping.wait(0.005)

    def report(self, connection: http.client.HTTPConnection) -> None:
        """Report on one connection, until it breaks or the test is over."""
        while not self.stopping.is_set() and not self.errors:
            step = self.acknowledged
            metrics = {"avgMetrics": {"value": step, "other": -step}, "batchMetrics": None}
            inner = {"trialRunId": 1, "stepsCompleted": step, "metrics": metrics}
            body = json.dumps({"group": self.group, "metrics": inner})
            path = f"/api/v1/trials/{self.trial}/metrics"
            connection.request("POST", path, body, {"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status == 200:
                self.acknowledged += 1
            else:
                self.errors.append(text.decode())


def survive(master: Master, wait_until: WaitUntil, kills: int) -> None:
    """Kill and restart a master under load, then look at everything it holds."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    api = master.client.login()
    trial = new_trial(api)
    assert api.token is not None
    reporters = [Reporter(master, api.token, trial, f"group{number}") for number in range(CLIENTS)]
    for reporter in reporters:
        reporter.start()

    def enough(goal: int) -> bool:
        return sum(reporter.acknowledged for reporter in reporters) > goal or any(each.errors for each in reporters)

    starts = []
    for _ in range(kills):
        goal = sum(reporter.acknowledged for reporter in reporters) + chance.randrange(1, 400)
        wait_until(partial(enough, goal), 60, "reports to be acknowledged")
        master.kill()
        began = time.monotonic()
        master.start(wait_until)
        starts.append(time.monotonic() - began)
    # For whoever reads along: the goal is 1 s, on a machine that does nothing else.
    print(f"start-up after a kill: median {statistics.median(starts):.3f} s, longest {max(starts):.3f} s")
    for reporter in reporters:
        reporter.stopping.set()
    for reporter in reporters:
        reporter.join(timeout=30)
        assert not reporter.errors
    api = Client(master.address, api.token)
    for reporter in reporters:
        path = f"/api/v1/trials/metrics/trial_metrics?trialIds={trial}&group={reporter.group}"
        found = [row for element in api.lines(path) for row in element["metrics"]]
        steps = [row["totalBatches"] for row in found]
        # One report may have been stored without its acknowledgement.
        assert steps == list(range(len(steps)))
        assert reporter.acknowledged <= len(steps) <= reporter.acknowledged + 1
        assert all(row["metrics"]["avg_metrics"] == {"value": step, "other": -step} for step, row in enumerate(found))


def test_acknowledged_points_survive_kills_at_random_moments(master: Master, wait_until: WaitUntil) -> None:
    survive(master, wait_until, KILLS)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_acknowledged_points_survive_many_kills(master: Master, wait_until: WaitUntil) -> None:
    survive(master, wait_until, SOAK_KILLS)


def steps_of(api: Client, trial: int) -> list[int]:
    """The steps with training metrics."""
    path = f"/api/v1/trials/metrics/trial_metrics?trialIds={trial}&group=training"
    return [row["totalBatches"] for element in api.lines(path) for row in element["metrics"]]


def must_fail(api: Client, trial: int, step: int) -> None:
    """A report that cannot be stored is answered with an error in the documented shape."""
    with pytest.raises(Failed) as failed:
        report(api, trial, step, {"loss": 1.0})
    assert failed.value.status == 500
    assert failed.value.body["error"]["reason"] == "Internal"
    assert failed.value.body["error"]["error"]
    assert failed.value.body["requestId"]


def can_mount() -> bool:
    """Whether this user may have file systems of its own."""
    words = ("unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt")
    return bool(shutil.which("unshare")) and subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="no file system of one's own can be mounted here")
def test_a_full_disk_refuses_reports_and_loses_none(
    run: Runner, instep: Path, tmp_path: Path, wait_until: WaitUntil
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    script = 'mount -t tmpfs -o size=6m tmpfs "$1" && exec "$0" master --port 0 --db "$1/master.db"'
    words = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, instep, folder)
    serving = run.start(*words)
    pattern = re.compile(r"http://127\.0\.0\.1:\d+")
    wait_until(lambda: pattern.search(serving.stdout) or serving.poll() is not None, 30, "the master to listen")
    found = pattern.search(serving.stdout)
    assert found, serving.stderr
    api = Client(found[0]).login()
    trial = new_trial(api)
    report(api, trial, 1, {"loss": 1.0})
    assert api("GET", "/health") == {"status": "up"}
    filler = Path(f"/proc/{serving.pid}/root{folder}/filler")
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    # Before anything has failed, and without a token.
    with pytest.raises(Failed) as unhealthy:
        Client(found[0])("GET", "/health")
    assert unhealthy.value.status == 503
    assert "the database cannot be written: only 0 KiB are free on its disk" in unhealthy.value.message
    assert "hint: " in unhealthy.value.message
    acknowledged = [1]
    # What the journal has room for may still be taken.
    for step in range(2, 2000):
        try:
            report(api, trial, step, {"loss": 1.0, "text": "x" * 2000})
        except Failed:
            break
        acknowledged.append(step)
    must_fail(api, trial, 5000)
    assert steps_of(api, trial) == acknowledged
    assert serving.poll() is None
    filler.unlink()
    assert api("GET", "/health") == {"status": "up"}
    report(api, trial, 6000, {"loss": 1.0})
    assert steps_of(api, trial) == [*acknowledged, 6000]


def test_a_locked_database_refuses_reports_until_it_is_free(master: Master) -> None:
    api = master.client.login()
    trial = new_trial(api)
    report(api, trial, 1, {"loss": 1.0})
    other = sqlite3.connect(master.database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    must_fail(api, trial, 2)
    assert steps_of(api, trial) == [1], "reading goes on"
    with pytest.raises(Failed) as unhealthy:
        api("GET", "/health")
    assert unhealthy.value.status == 503
    assert "locked" in unhealthy.value.message
    other.execute("ROLLBACK")
    assert api("GET", "/health") == {"status": "up"}
    other.close()
    report(api, trial, 2, {"loss": 1.0})
    assert steps_of(api, trial) == [1, 2]


def test_a_damaged_database_is_reported_and_the_process_lives(master: Master, wait_until: WaitUntil) -> None:
    api = master.client.login()
    trial = new_trial(api)
    for step in range(50):
        report(api, trial, step, {"loss": 1.0, "text": "x" * 1000})
    master.stop()
    with contextlib.closing(sqlite3.connect(master.database)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # what is still in the log may be all of it
    master.start(wait_until)
    size = master.database.stat().st_size
    with master.database.open("r+b") as file:
        # Everything but the header and the schema.
        file.seek(8192)
        file.write(os.urandom(size - 8192))
    with pytest.raises(Failed) as failed:
        for path in ("/api/v1/experiments", f"/api/v1/trials/{trial}", "/api/v1/workspaces", "/api/v1/users"):
            api("GET", path)
    assert failed.value.status == 500
    assert failed.value.body["requestId"]
    assert master.client("GET", "/info")["version"]
    assert master.process.poll() is None
    master.kill()
