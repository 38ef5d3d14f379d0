"""Records the demo in a master, so that its chart can be looked at in the browser.

The master is the one that `INSTEP_MASTER` names, or one that the demo starts for itself on a free port, with its
database in the demo's folder. Recording is a bonus: what goes wrong here is said once, and the demo goes on.
"""

import json
import os
import re
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

DATABASE = "master.db"
TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0


class TrackingError(Exception):
    """The master cannot be used."""


class OwnMaster:
    """`instep master` on a free port, for as long as the demo runs."""

    def __init__(self, launcher: str | Path, folder: Path) -> None:
        """Start it, and wait until it says where it listens."""
        self._process = subprocess.Popen(
            [launcher, "master", "--port", "0", "--db", folder / DATABASE],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        # A master that says nothing would be waited for without end.
        watch = threading.Timer(TIMEOUT_S, self._process.kill)
        watch.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        watch.cancel()
        found = re.search(r"https?://\S+", line)
        if found is None:
            self._process.kill()
            _, said = self._process.communicate()
            raise TrackingError(said.strip() or "the master ended at once")
        self.address = found[0]

    def stop(self) -> None:
        """End it; what was recorded is in its database."""
        self._process.terminate()
        try:
            self._process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


class Run:
    """The demo as an experiment with one trial."""

    def __init__(self, address: str, ranks: int) -> None:
        """Log in, and make them."""
        self._address = address.rstrip("/")
        self._token = ""
        user = {"username": os.environ.get("DET_USER", "determined"), "password": os.environ.get("DET_PASS", "")}
        self._token = self._ask("POST", "/api/v1/auth/login", user)["token"]
        config = {"name": "instep demo", "searcher": {"name": "single", "metric": "loss", "smaller_is_better": True}}
        body = {"config": json.dumps(config), "unmanaged": True}
        self.experiment = int(self._ask("POST", "/api/v1/experiments", body)["experiment"]["id"])
        request = {"experimentId": self.experiment, "hparams": {"ranks": ranks}, "unmanaged": True}
        self._trial = int(self._ask("POST", "/api/v1/trials", request)["trial"]["id"])
        self._run_id = 0
        self.start()

    @property
    def page(self) -> str:
        """Where its page is."""
        return f"{self._address}/det/experiments/{self.experiment}"

    def start(self) -> None:
        """Begin an attempt: what it reports replaces what earlier ones said about the same epochs."""
        answer = self._ask("POST", f"/api/v1/trials/{self._trial}/start", {"resume": True})
        self._run_id = int(answer["trialRunId"])

    def report(self, epoch: int, loss: float) -> None:
        """Report the loss after an epoch."""
        for group in ("training", "validation"):
            inner = {
                "trialId": self._trial,
                "trialRunId": self._run_id,
                "stepsCompleted": epoch,
                "metrics": {"avgMetrics": {"loss": loss}},
            }
            self._ask("POST", f"/api/v1/trials/{self._trial}/metrics", {"group": group, "metrics": inner})

    def finish(self, *, well: bool) -> int:
        """End it; give how many points of the loss the master has."""
        state = "STATE_COMPLETED" if well else "STATE_ERROR"
        self._ask("PATCH", f"/api/v1/trials/{self._trial}", {"state": state})
        query = f"trialIds={self._trial}&metricIds=training.loss"
        [trial] = self._ask("GET", f"/api/v1/trials/time-series?{query}")["trials"]
        return sum(len(metric["data"]) for metric in trial["metrics"])

    def _ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(f"{self._address}{path}", data=data, headers=headers, method=method)
        try:
            # No proxy: the master is asked as it is named.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise TrackingError(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from error
        except (OSError, ValueError) as error:
            raise TrackingError(f"{method} {path}: {error}") from error
