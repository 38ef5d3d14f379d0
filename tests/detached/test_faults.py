"""The master killed at random moments under load: what it acknowledged is there, once."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
from functools import partial

from conftest import WaitUntil

from .conftest import Client, Master
from .test_wire import new_trial

KILLS = 20
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


def test_acknowledged_points_survive_kills_at_random_moments(master: Master, wait_until: WaitUntil) -> None:
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

    for _ in range(KILLS):
        goal = sum(reporter.acknowledged for reporter in reporters) + chance.randrange(1, 400)
        wait_until(partial(enough, goal), 60, "reports to be acknowledged")
        master.kill()
        master.start(wait_until)
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
