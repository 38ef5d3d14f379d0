"""A cluster of one's own for each test: a master and as many agents as the test wants, all on this machine."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Runner, Running
from detached.conftest import Client, Master, determined, forked_det, forked_determined, master
from detached.det import det
from detached.test_scripts import rows

__all__ = ["det", "determined", "forked_det", "forked_determined", "master", "rows"]

CONTEXTS = Path(__file__).parent / "contexts"
# What no experiment leaves by itself, or only by being deleted.
TERMINAL = {"STATE_COMPLETED", "STATE_CANCELED", "STATE_ERROR"}
Json = dict[str, Any]
# The search of Determined's tutorial.
SEARCH = {
    "hyperparameters": {"increment_by": {"type": "int", "minval": 1, "maxval": 8}},
    "searcher": {
        "name": "adaptive_asha",
        "metric": "x",
        "smaller_is_better": False,
        "max_trials": 10,
        "time_metric": "batches",
        "max_time": 100,
    },
}


class Cluster:
    """A master, its agents, and experiments on them."""

    def __init__(
        self,
        run: Runner,
        instep: Path,
        interpreter: Path,
        master: Master,
        folder: Path,
        wait_until: Callable[..., None],
        api: Client | None = None,
    ) -> None:
        self._run = run
        self.instep = instep
        self.interpreter = interpreter
        self.folder = folder
        self.wait_until = wait_until
        self.master = master
        self.api = api or master.client.login()
        self.agents: dict[str, Running] = {}

    def agent(
        self, name: str, slots: int, *options: str, python: Path | None = None, master: str | None = None, uid: int = 0
    ) -> Running:
        """Start an agent, or start it again, and wait until its slots are lent; `master` is another way to it.

        Where root runs the tests, `uid` is another user whose agent it is.
        """
        words = ["--master", master or self.master.address, "--name", name, "--slots", str(slots)]
        words += ["--python", str(python or self.interpreter), "--state-folder", str(self.folder / name), *options]
        # The folders of these tests are root's where root runs them; else all tasks run as the user who does.
        words += ["--default-user", "root"] if os.geteuid() == 0 and not uid else ["--shared-uid"]
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
        environment = {"HOME": str(self.folder), "DET_DEBUG_CONFIG_PATH": str(self.folder / "client")}
        process = self._run.start(*become, self.instep, "agent", *words, env=environment)
        self.agents[name] = process

        def is_known() -> bool:
            assert process.poll() is None, process.stderr
            return any(
                agent["id"] == name and agent["enabled"] for agent in self.api("GET", "/api/v1/agents")["agents"]
            )

        self.wait_until(is_known, 30, f"agent {name} to be known")
        return process

    def end(self) -> None:
        """Kill the agents and everything that they started."""
        for name, agent in self.agents.items():
            agent.kill_tree()
            remove_groups(self.folder / name)

    def config(self, entrypoint: str | list[str], **more: object) -> Json:
        """Give a configuration with everything that tests do not care about."""
        return {
            "name": "test",
            "entrypoint": entrypoint,
            "searcher": {"name": "single", "metric": "x", "smaller_is_better": False},
            "checkpoint_storage": {
                "type": "shared_fs",
                "host_path": str(self.folder),
                "storage_path": "checkpoints",
            },
            "max_restarts": 0,
            **more,
        }

    def written(self, config: Json) -> Path:
        """Write a configuration to a file; JSON is YAML, too."""
        path = self.folder / f"config-{len(list(self.folder.glob('config-*')))}.yaml"
        path.write_text(json.dumps(config))
        return path

    def experiment(self, number: int) -> Json:
        """Give an experiment as the API shows it."""
        found: Json = self.api("GET", f"/api/v1/experiments/{number}")["experiment"]
        return found

    def trials(self, number: int) -> list[Json]:
        """Give the trials of an experiment, oldest first."""
        found: list[Json] = self.api("GET", f"/api/v1/experiments/{number}/trials?limit=1000")["trials"]
        return sorted(found, key=lambda trial: trial["id"])

    def logs(self, trial: int, query: str = "") -> list[Json]:
        """Give the lines of a trial's log."""
        return self.api.lines(f"/api/v1/trials/{trial}/logs?{query}")

    def text(self, trial: int) -> str:
        """Give a trial's log as people read it."""
        return "".join(line["message"] for line in self.logs(trial))

    def wait_for(self, number: int, state: str, seconds: float = 90) -> Json:
        """Wait until an experiment has reached a state; fail at once when it ends in another."""

        def logs() -> str:
            return "\n".join(self.text(trial["id"]) for trial in self.trials(number))

        def reached() -> bool:
            found = self.experiment(number)["state"]
            if found != state and found in TERMINAL:
                pytest.fail(f"experiment {number} is {found}, not {state}\n{logs()}")
            return bool(found == state)

        self.wait_until(reached, seconds, lambda: f"experiment {number} to be {state}\n{logs()}")
        return self.experiment(number)

    def wait_for_steps(self, trial: int, steps: int, seconds: float = 60) -> None:
        """Wait until a trial has reported so many steps."""
        path = f"/api/v1/trials/{trial}"
        self.wait_until(
            lambda: self.api("GET", path)["trial"]["totalBatchesProcessed"] >= steps,
            seconds,
            f"trial {trial} to report step {steps}",
        )


def remove_groups(state: Path) -> None:
    """Remove the control groups that an agent could not remove because it was killed; nothing may run in them."""
    record = state / "cgroups"
    for folder in json.loads(record.read_text())["folders"].values() if record.exists() else ():
        for group in [*Path(folder).glob("*/"), Path(folder)]:
            with contextlib.suppress(OSError):
                group.rmdir()


@pytest.fixture
def cluster(
    run: Runner,
    instep: Path,
    determined: Path,
    master: Master,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> Iterator[Cluster]:
    """A master without agents; when the test is over, nothing that it started may still run."""
    made = Cluster(run, instep, determined, master, tmp_path, wait_until)
    yield made
    made.end()


@pytest.fixture
def settings(master: Master, tmp_path: Path) -> dict[str, str]:
    """The environment for Determined's client: this test's master, and no trace of other logins."""
    return {
        "DET_MASTER": master.address,
        "DET_DEBUG_CONFIG_PATH": str(tmp_path / "client"),
        "HOME": str(tmp_path),
    }


@pytest.fixture
def api(cluster: Cluster) -> Client:
    """A client that speaks for the default user."""
    return cluster.api


@pytest.fixture
def follow(run: Runner, determined: Path, settings: dict[str, str]) -> Callable[..., Running]:
    """Start the real `det`, to watch it while it runs."""

    def start(*words: str | Path) -> Running:
        return run.start(determined, "-m", "determined.cli", *words, env=settings)

    return start
