"""A Slurm cluster and a master that submits to it, as `instep experiment create` and `det` see them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import Runner
from detached.conftest import Master
from managed.conftest import TERMINAL, Cluster

from .cluster import SlurmCluster

COUNTING = Path(__file__).parent / "scripts" / "counting"
Json = dict[str, Any]
# `sbatch` of a controller that takes a job and never says so.
SBATCH = """#!/bin/sh
if [ -e "{folder}/hang" ]; then {sbatch} "$@" > "{folder}/hung"; exec sleep 1000; fi
exec {sbatch} "$@"
"""


class SlurmMaster(Master):
    """A master with one pool, `slurm`, of whole nodes with a slot each."""

    def __init__(self, slurm: SlurmCluster, python: Path, *arguments: Any, **engine: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments)
        agent = [f"--python={python}", "--default-user=root", "--task-memory=none", "--task-processes=none"]
        self.slurm = slurm
        self.engine = {
            "type": "slurm",
            "partition": "all",
            "slots_per_node": 1,
            "slot_type": "cpu",
            "poll_interval": 1,
            "options": ["--exclusive"],
            "agent_options": agent,
            "output": f"{slurm.folder}/agents-%j.out",
            **engine,
        }
        self.pools = [{"pool_name": "slurm", "engine": self.engine}]

    @property
    def environment(self) -> dict[str, str]:
        """Where Slurm is, behind a `sbatch` of ours."""
        tools = self.database.parent / "tools"
        if not tools.exists():
            tools.mkdir()
            (tools / "sbatch").write_text(SBATCH.format(folder=tools, sbatch=shutil.which("sbatch")))
            (tools / "sbatch").chmod(0o755)
        return {
            **super().environment,
            **self.slurm.environment,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "INSTEP_MASTER_RESOURCE_POOLS": json.dumps(self.pools),
        }


class Site:
    """A Slurm cluster and a master that submits to it."""

    def __init__(self, slurm: SlurmCluster, cluster: Cluster, run: Runner) -> None:
        self.slurm, self.cluster, self._run = slurm, cluster, run
        self.go = cluster.folder / "go"

    def create(
        self, entrypoint: str | list[str] = "counting.py", slots: int = 2, gate: int = 20, **more: object
    ) -> int:
        """Submit an experiment with our own command; its number."""
        config = self.cluster.config(
            entrypoint,
            environment={"environment_variables": [f"GO={self.go}", f"GATE={gate}"]},
            resources={"slots_per_trial": slots, "resource_pool": "slurm"},
            **more,
        )
        return int(
            json.loads(self.ours("experiment", "create", "--json", self.cluster.written(config), COUNTING))["id"]
        )

    def ours(self, *words: str | Path) -> str:
        """Run one of our own commands; what it printed."""
        environment = {"INSTEP_MASTER": self.cluster.master.address, "HOME": str(self.cluster.folder)}
        return self._run(self.cluster.instep, *words, env=environment).expect(0).stdout

    def trial(self, experiment: int) -> int:
        """The first trial of an experiment, once there is one."""
        self.cluster.wait_until(lambda: self.cluster.trials(experiment), 30, "a trial")
        number: int = self.cluster.trials(experiment)[0]["id"]
        return number

    def wait_for_gate(self, experiment: int, ranks: int = 2) -> int:
        """Wait until the first trial of an experiment has counted as far as it can without the file; its number."""
        trial = self.trial(experiment)
        gates = [self.go.with_name(f"gate-{trial}-{rank}") for rank in range(ranks)]
        arrived = "all ranks to count as far as they can"
        self.cluster.wait_until(
            lambda: all(gate.exists() for gate in gates), 60, lambda: f"{arrived}\n{self.describe(trial)}"
        )
        return trial

    def wait_for(self, experiment: int, state: str = "STATE_COMPLETED", seconds: float = 60) -> None:
        """Wait until an experiment has ended in a state."""

        def logs() -> str:
            trials = self.cluster.trials(experiment)
            return f"experiment {experiment} to be {state}\n{self.describe(trials[0]['id'])}"

        def is_over() -> bool:
            found = self.cluster.experiment(experiment)["state"]
            if found != state and found in TERMINAL:
                pytest.fail(f"it is {found}, not {logs()}")
            return bool(found == state)

        self.cluster.wait_until(is_over, seconds, logs)

    def describe(self, trial: int) -> str:
        """What is known of a trial and of everything around it."""
        agents = "".join(file.read_text() for file in self.slurm.folder.glob("agents-*.out"))
        master = self.cluster.master.process.stderr
        return f"{self.cluster.text(trial)}\n{self.jobs()}\n{self.queue()}\n{agents}\n{master}"

    def jobs(self) -> dict[int, tuple[str, str]]:
        """The state of every job, and its allocation."""
        shown = self.slurm.command("squeue", "--noheader", "--states=all", "--format=%i|%T|%k")
        lines = [line.split("|") for line in shown.splitlines()]
        return {int(job): (state, comment.rpartition(":")[2]) for job, state, comment in lines}

    def states(self) -> list[str]:
        """The states of all jobs, the oldest job first."""
        return [state for _, (state, _) in sorted(self.jobs().items())]

    def agents(self) -> list[psutil.Process]:
        """The agents of jobs that run."""
        found = []
        for process in self.slurm.processes():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if process.name() == "instep" and any(word.startswith("--for=") for word in words):
                    found.append(process)
        return found

    def queue(self) -> list[Json]:
        """The queue of the pool, as the pages see it."""
        found: list[Json] = self.cluster.api("GET", "/api/v1/job-queues-v2?resourcePool=slurm")["jobs"]
        return [job.get("full", job) for job in found]


@contextlib.contextmanager
def site(
    slurm: SlurmCluster,
    run: Runner,
    instep: Path,
    python: Path,
    folder: Path,
    wait_until: Callable[..., None],
    **engine: object,
) -> Iterator[Site]:
    """A master for a Slurm cluster, and the end of both."""
    master = SlurmMaster(slurm, python, run.start, instep, folder / "master.db", **engine)
    # What an agent that was killed ran is given up soon.
    master.start(wait_until, "--agent-reconnect-wait=3")
    yield Site(slurm, Cluster(run, instep, python, master, folder, wait_until), run)
