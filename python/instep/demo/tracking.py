"""The demo's master: one of its own, what it asks it, and the first act's record in it.

What is recorded goes to the master that `INSTEP_MASTER` names, or to the one that the demo starts for itself, with its
database in the demo's folder. Recording is a bonus: what goes wrong there is said once, and the demo goes on.
"""

import contextlib
import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

DATABASE = "master.db"
TIMEOUT_S = 10.0
UP_TIMEOUT_S = 90.0
# Ending the agent ends its tasks, which get some seconds to end by themselves.
DOWN_TIMEOUT_S = 150.0


# What names another master, or a user of it.
ELSEWHERE = {
    *("INSTEP_MASTER", "INSTEP_USER", "INSTEP_PASSWORD", "INSTEP_USER_TOKEN"),
    *("DET_MASTER", "DET_USER", "DET_PASS", "DET_USER_TOKEN"),
}


class TrackingError(Exception):
    """The master cannot be used."""


class OwnMaster:
    """What `instep up` starts, for as long as the demo runs: a master on a free port, and an agent that lends slots."""

    def __init__(self, launcher: str | Path, folder: Path, *, slots: int, environment: dict[str, str]) -> None:
        """Start it; tasks find `environment`."""
        self._launcher = launcher
        self._database = folder / DATABASE
        self.environment = {name: value for name, value in environment.items() if name not in ELSEWHERE}
        try:
            self.address = self._up(slots)
        except BaseException:
            with contextlib.suppress(TrackingError):
                self.stop()
            raise

    def _up(self, slots: int) -> str:
        started = self._instep("up", "--port", "0", "--slots", str(slots), timeout_s=UP_TIMEOUT_S)
        found = re.search(r"https?://\S+", started.stdout)
        if started.returncode != 0 or found is None:
            raise TrackingError(started.stderr.strip() or "`instep up` did not say where it serves")
        if slots > 0 and "agent: " not in started.stdout:
            raise TrackingError(started.stderr.strip() or "`instep up` started no agent")
        return found[0]

    @property
    def port(self) -> int:
        """Where it serves."""
        return int(self.address.rpartition(":")[2])

    def stop(self) -> None:
        """End it and all that runs on its slots; what was recorded is in its database."""
        ended = self._instep("down", timeout_s=DOWN_TIMEOUT_S)
        if ended.returncode != 0:
            raise TrackingError(ended.stderr.strip() or f"`instep down` ended with status {ended.returncode}")

    def _instep(self, verb: str, *words: str, timeout_s: float) -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run(
                [self._launcher, verb, "--db", self._database, *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TrackingError(f"`instep {verb}` took longer than {timeout_s:.0f} s") from error


class Client:
    """Asks a master on behalf of a user."""

    def __init__(self, address: str, user: str = "determined", password: str = "") -> None:
        """Log in."""
        self.address = address.rstrip("/")
        self._token = ""
        self._token = self.ask("POST", "/api/v1/auth/login", {"username": user, "password": password})["token"]

    @classmethod
    def of_environment(cls) -> "Client | None":
        """For the master that INSTEP_MASTER names, if it names one, as the user of DET_USER and DET_PASS."""
        address = os.environ.get("INSTEP_MASTER")
        if not address:
            return None
        return cls(address, os.environ.get("DET_USER", "determined"), os.environ.get("DET_PASS", ""))

    def page(self, experiment: int) -> str:
        """Where the page of an experiment is."""
        return f"{self.address}/det/experiments/{experiment}"

    def ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401
        """Give the answer to one request."""
        return json.loads(self.text(method, path, body))

    def text(self, method: str, path: str, body: object = None) -> bytes:
        """Give the answer to one request as it is."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(f"{self.address}{path}", data=data, headers=headers, method=method)
        try:
            # No proxy: the master is asked as it is named.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise TrackingError(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from error
        except (OSError, ValueError) as error:
            raise TrackingError(f"{method} {path}: {error}") from error


class Run:
    """The first act as an experiment with one trial."""

    def __init__(self, client: Client, ranks: int) -> None:
        """Make them."""
        self._client = client
        config = {"name": "instep demo", "searcher": {"name": "single", "metric": "loss", "smaller_is_better": True}}
        body = {"config": json.dumps(config), "unmanaged": True}
        self.experiment = int(client.ask("POST", "/api/v1/experiments", body)["experiment"]["id"])
        request = {"experimentId": self.experiment, "hparams": {"ranks": ranks}, "unmanaged": True}
        self._trial = int(client.ask("POST", "/api/v1/trials", request)["trial"]["id"])
        self._run_id = 0
        self.start()

    def start(self) -> None:
        """Begin an attempt: what it reports replaces what earlier ones said about the same epochs."""
        answer = self._client.ask("POST", f"/api/v1/trials/{self._trial}/start", {"resume": True})
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
            self._client.ask("POST", f"/api/v1/trials/{self._trial}/metrics", {"group": group, "metrics": inner})

    def finish(self, *, well: bool) -> int:
        """End it; give how many points of the loss the master has."""
        state = "STATE_COMPLETED" if well else "STATE_ERROR"
        self._client.ask("PATCH", f"/api/v1/trials/{self._trial}", {"state": state})
        query = f"trialIds={self._trial}&metricIds=training.loss"
        [trial] = self._client.ask("GET", f"/api/v1/trials/time-series?{query}")["trials"]
        return sum(len(metric["data"]) for metric in trial["metrics"])
