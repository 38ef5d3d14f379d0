"""The demo's second act: a search on the demo's own cluster, in which every trial trains on two ranks.

The code and the configuration are written into the demo's folder and sent with `instep experiment create`, as anyone
would. All that is said about the search is read from the master.
"""

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from instep.demo.console import Console
from instep.demo.tracking import Client

SLOTS = 4
SEARCHED = ("rate", "width")
RANKS = 2
TRIALS = 4
EPOCHS = 16
CONFIGURATION = "search.yaml"
CODE = "code"
SCRIPT = Path(__file__).with_name("train_search.py")
DEADLINE_S = 240.0
POLL_INTERVAL_S = 0.25
PAUSE_S = 1.0
CREATE_TIMEOUT_S = 60.0
LOG_LINES = 30
LINE_LIMIT = 200
TERMINAL = ("STATE_COMPLETED", "STATE_CANCELED", "STATE_ERROR")

TEMPLATE = f"""\
name: instep demo search
entrypoint: train.py  # one process for each slot
resources:
  slots_per_trial: {RANKS}
hyperparameters:
  width: {{type: int, minval: 4, maxval: 64}}
  rate: {{type: log, base: 10, minval: -3, maxval: -1}}
  epochs: {EPOCHS}
searcher:
  name: adaptive_asha
  metric: loss
  smaller_is_better: true
  max_trials: {TRIALS}
  time_metric: epochs
  max_time: {EPOCHS}
  divisor: 2
  mode: aggressive
max_restarts: 0
reproducibility:
  experiment_seed: 1  # the same trials every time
"""

Json = dict[str, Any]


class SearchError(Exception):
    """The search did not go as announced."""


@dataclass(frozen=True)
class Outcome:
    """How the search ended."""

    experiment: int
    epochs: list[int]  # of each trial
    best: Json  # the trial
    storage: Path  # of checkpoints

    @property
    def checkpoint(self) -> Json:
        """The best trial's."""
        found: Json = self.best["bestCheckpoint"]
        return found

    def rows(self, *, kept: bool) -> list[tuple[str, str]]:
        """What to say about it; a folder is named only where it outlives the demo."""
        count, full = len(self.epochs), sum(epochs == EPOCHS for epochs in self.epochs)
        chosen = ", ".join(f"{name} {self.best['hparams'][name]:.3g}" for name in SEARCHED)
        checkpoint = self.checkpoint
        return [
            ("trials", f"{count} with {RANKS} ranks each, {full} trained to the last epoch"),
            ("epochs", f"{sum(self.epochs)} instead of {count * EPOCHS}"),
            ("best trial", f"{self.best['id']}: loss {loss_of(self.best):.6f} with {chosen}"),
            ("its checkpoint", str(self.storage / checkpoint["uuid"]) if kept else checkpoint["uuid"]),
        ]


@dataclass(frozen=True)
class Progress:
    """How far the search is: trials by what they do, and the best of them so far."""

    done: int
    running: int
    waiting: int
    best: int | None
    loss: float | None

    @classmethod
    def of(cls, trials: list[Json]) -> "Progress":
        """Count."""
        states = [trial["state"] for trial in trials]
        done = sum(state in TERMINAL for state in states)
        waiting = sum(state in ("STATE_QUEUED", "STATE_ACTIVE") for state in states)
        best = min((trial for trial in trials if trial["bestValidation"] is not None), key=loss_of, default=None)
        number, loss = (None, None) if best is None else (int(best["id"]), loss_of(best))
        return cls(done, len(states) - done - waiting, waiting, number, loss)

    @property
    def counts(self) -> tuple[int, int, int]:
        """What the trials do."""
        return self.done, self.running, self.waiting

    def __str__(self) -> str:
        """In one line."""
        line = f"trials: {self.done} done, {self.running} running, {self.waiting} waiting"
        return line if self.best is None else f"{line} | best so far: trial {self.best}, loss {self.loss:.6f}"


class Search:
    """The second act, on a cluster that lends slots."""

    def __init__(self, client: Client, folder: Path, console: Console) -> None:
        """Get ready to search; `folder` is where code and configuration go."""
        self._client = client
        self._folder = folder
        self._console = console
        self._told = Progress(0, 0, 0, None, None)
        self._told_at = 0.0

    def run(self, launcher: str | Path, environment: dict[str, str]) -> Outcome:
        """Create the search and follow it to its end."""
        self._write()
        experiment = self._create(launcher, environment)
        self._console.narrate(f"watch its trials at {self._client.page(experiment)}")
        state = self._follow(experiment)
        trials = self._trials(experiment)
        if state != "STATE_COMPLETED":
            raise SearchError(f"the search ended as {state}{self._last_words(trials)}")
        return judged(experiment, trials, self._storage(experiment))

    def _write(self) -> None:
        (self._folder / CONFIGURATION).write_text(TEMPLATE)
        (self._folder / CODE).mkdir()
        (self._folder / CODE / "train.py").write_text(SCRIPT.read_text())

    def _create(self, launcher: str | Path, environment: dict[str, str]) -> int:
        words = ["experiment", "create", CONFIGURATION, CODE]
        self._console.job_output(f"$ instep {' '.join(words)}")
        try:
            created = subprocess.run(
                [launcher, *words, "--json", "--master", self._client.address],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CREATE_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SearchError(f"`instep experiment create` took longer than {CREATE_TIMEOUT_S:.0f} s") from error
        if created.returncode != 0:
            raise SearchError(f"`instep experiment create` ended with status {created.returncode}: {created.stderr}")
        return int(json.loads(created.stdout)["id"])

    def _follow(self, experiment: int) -> str:
        """Say what changes until the search is over; give the state in which it ended."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            state = str(self._client.ask("GET", f"/api/v1/experiments/{experiment}")["experiment"]["state"])
            trials = self._trials(experiment)
            self._tell(Progress.of(trials))
            if state in TERMINAL:
                return state
            if time.monotonic() > deadline:
                raise SearchError(f"the search still runs after {DEADLINE_S:.0f} s{self._last_words(trials)}")
            time.sleep(POLL_INTERVAL_S)

    def _tell(self, now: "Progress") -> None:
        """Say each beginning and end at once, and a better loss not too often."""
        counts_changed = now.counts != self._told.counts
        if counts_changed or (now != self._told and time.monotonic() > self._told_at + PAUSE_S):
            self._told, self._told_at = now, time.monotonic()
            self._console.job_output(str(now))

    def _trials(self, experiment: int) -> list[Json]:
        found: list[Json] = self._client.ask("GET", f"/api/v1/experiments/{experiment}/trials?limit=100")["trials"]
        return sorted(found, key=lambda trial: int(trial["id"]))

    def _storage(self, experiment: int) -> Path:
        config = self._client.ask("GET", f"/api/v1/experiments/{experiment}")["experiment"]["config"]
        storage = config["checkpoint_storage"]
        return Path(storage["host_path"], storage.get("storage_path") or "")

    def _last_words(self, trials: list[Json]) -> str:
        """The end of the log of a trial that failed, or of the first."""
        if not trials:
            return ""
        chosen = next((trial for trial in trials if trial["state"] == "STATE_ERROR"), trials[0])
        query = f"limit={LOG_LINES}&orderBy=ORDER_BY_DESC"
        text = self._client.text("GET", f"/api/v1/trials/{chosen['id']}/logs?{query}").decode(errors="replace")
        # The first line of a run holds the whole configuration.
        lines = [json.loads(line)["result"]["message"].rstrip("\n")[:LINE_LIMIT] for line in text.splitlines()]
        return "\n    ".join([f"; the end of the log of trial {chosen['id']}:", *reversed(lines)])


def loss_of(trial: Json) -> float:
    """The best loss of a trial, infinite before its first report."""
    best = trial["bestValidation"]
    return float("inf") if best is None else float(best["metrics"]["avgMetrics"]["loss"])


def judged(experiment: int, trials: list[Json], storage: Path) -> Outcome:
    """What a search that ended well has to show."""
    unwell = [f"trial {trial['id']} is {trial['state']}" for trial in trials if trial["state"] != "STATE_COMPLETED"]
    if unwell or len(trials) != TRIALS:
        raise SearchError(f"{len(trials)} trials, expected {TRIALS} that end well: {', '.join(unwell) or 'all do'}")
    best = min(trials, key=loss_of)
    if best["bestCheckpoint"] is None:
        raise SearchError(f"trial {best['id']} has the best loss, and no checkpoint")
    epochs = [int(trial["latestValidation"]["metrics"]["avgMetrics"]["epochs"]) for trial in trials]
    if not (storage / best["bestCheckpoint"]["uuid"]).is_dir():
        raise SearchError(f"the checkpoint of trial {best['id']} is not in {storage}")
    return Outcome(experiment, epochs, best, storage)
