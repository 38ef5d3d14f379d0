"""Slurm in place of agents: `instep experiment create` on a pool whose work Slurm runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import Runner
from detached.conftest import Master
from managed.conftest import TERMINAL, Cluster, rows

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
            "INSTEP_MASTER_RESOURCE_POOLS": json.dumps([{"pool_name": "slurm", "engine": self.engine}]),
        }


class Site:
    """A Slurm cluster and a master that submits to it."""

    def __init__(self, slurm: SlurmCluster, cluster: Cluster, run: Runner) -> None:
        self.slurm, self.cluster, self._run = slurm, cluster, run
        self.go = cluster.folder / "go"

    def create(self, entrypoint: str = "counting.py", slots: int = 2, **more: object) -> int:
        """Submit an experiment with our own command; its number."""
        config = self.cluster.config(
            entrypoint,
            environment={"environment_variables": [f"GO={self.go}"]},
            resources={"slots_per_trial": slots, "resource_pool": "slurm"},
            **more,
        )
        environment = {"INSTEP_MASTER": self.cluster.master.address, "HOME": str(self.cluster.folder)}
        words = (self.cluster.instep, "experiment", "create", "--json", self.cluster.written(config), COUNTING)
        said = json.loads(self._run(*words, env=environment).expect(0).stdout)
        return int(said["id"])

    def trial(self, experiment: int) -> int:
        """The first trial of an experiment, once there is one."""
        self.cluster.wait_until(lambda: self.cluster.trials(experiment), 30, "a trial")
        number: int = self.cluster.trials(experiment)[0]["id"]
        return number

    def wait_for_gate(self, experiment: int, ranks: int = 2) -> int:
        """Wait until the first trial of an experiment has counted as far as it can without the file; its number."""
        trial = self.trial(experiment)
        gates = [self.go.with_name(f"gate-{trial}-{rank}") for rank in range(ranks)]
        arrived = "all ranks to count to 20"
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
        """The queue of the pool, as `instep queue` and `det job list` see it."""
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


@pytest.fixture
def pool(run: Runner, instep: Path, python: Path, tmp_path: Path, wait_until: Callable[..., None]) -> Iterator[Site]:
    """Two nodes, one slot each."""
    with (
        SlurmCluster(tmp_path / "slurm", nodes=2, gpus=0) as slurm,
        site(slurm, run, instep, python, tmp_path, wait_until) as made,
    ):
        yield made


def test_pools_that_would_break_are_refused_at_the_start(run: Runner, instep: Path, tmp_path: Path) -> None:
    def refused(engine: Json, path: str) -> str:
        pools = json.dumps([{"pool_name": "gpu", "engine": {"slots_per_node": 8, **engine}}])
        environment = {"INSTEP_MASTER_RESOURCE_POOLS": pools, "PATH": path}
        return run(instep, "master", "--port=0", f"--db={tmp_path}/master.db", env=environment).expect(1).stderr

    path = os.environ["PATH"]
    assert "unknown variant `pbs`" in refused({"type": "pbs"}, path)
    said = refused({"type": "slurm", "options": ["--array=1-4"]}, path)
    assert "pool `gpu`: `options`: --array is given by the master" in said
    said = refused({"type": "slurm"}, "/nowhere")
    assert "this machine has no sbatch, scancel, squeue" in said
    assert "hint: start the master where Slurm's commands are" in said


def test_trial_on_two_nodes_survives_the_end_of_its_job(pool: Site) -> None:
    cluster = pool.cluster
    experiment = pool.create()
    trial = pool.wait_for_gate(experiment)
    [first] = pool.jobs()
    found = cluster.api("GET", "/api/v1/agents")["agents"]
    assert sorted((agent["id"], agent["resourcePools"]) for agent in found) == [
        (f"n1-{first}", ["slurm"]),
        (f"n2-{first}", ["slurm"]),
    ]
    [shown] = [one for one in cluster.api("GET", "/api/v1/resource-pools")["resourcePools"] if one["name"] == "slurm"]
    assert (shown["schedulerType"], shown["numAgents"], shown["slotsUsed"]) == ("SCHEDULER_TYPE_SLURM", 2, 2)

    pool.slurm.command("scancel", str(first))
    pool.go.touch()
    pool.wait_for(experiment)
    assert "rank 1 resumed behind step 20" in cluster.text(trial)
    why = f"Slurm job {first} has ended: CANCELLED"
    cluster.wait_until(lambda: why in cluster.text(trial), 30, lambda: f"{why!r} in {cluster.text(trial)}")
    assert rows(cluster.api, trial, "training") == {step: {"x": 3 * step} for step in (10, 20, 30, 40)}
    checkpoints = cluster.api("GET", f"/api/v1/experiments/{experiment}/checkpoints")["checkpoints"]
    assert {checkpoint["metadata"]["steps_completed"] for checkpoint in checkpoints} >= {40}
    cluster.wait_until(lambda: pool.states() == ["CANCELLED", "COMPLETED"], 30, lambda: f"jobs {pool.jobs()}")
    assert cluster.api("GET", "/api/v1/agents")["agents"] == []


def test_killed_master_loses_no_job_and_submits_none_twice(pool: Site) -> None:
    cluster = pool.cluster
    first = pool.create()
    pool.wait_for_gate(first)
    # The controller takes the second, and the master is killed before it hears so.
    tools = cluster.folder / "tools"
    (tools / "hang").touch()
    second = pool.create(name="second")
    cluster.wait_until(lambda: (tools / "hung").exists() and (tools / "hung").read_text(), 30, "sbatch to submit")
    cluster.master.kill()
    (tools / "hang").unlink()
    assert pool.states() == ["RUNNING", "PENDING"]
    cluster.master.start(cluster.wait_until, "--agent-reconnect-wait=3")
    cluster.wait_until(
        lambda: any("is pending (Resources)" in job["reason"] for job in pool.queue()),
        30,
        lambda: f"the second job to be found: {pool.queue()}",
    )
    pool.go.touch()
    pool.wait_for(first)
    pool.wait_for(second)
    cluster.wait_until(lambda: pool.states() == ["COMPLETED"] * 2, 30, lambda: f"jobs {pool.jobs()}")
    assert all(trial["restarts"] == 0 for number in (first, second) for trial in cluster.trials(number))


@pytest.mark.soak
def test_search_goes_on_while_jobs_and_agents_are_killed(pool: Site) -> None:
    cluster = pool.cluster
    pool.go.touch()
    searcher = {"name": "random", "metric": "x", "max_trials": 8, "max_concurrent_trials": 8}
    experiment = pool.create(slots=1, searcher=searcher, max_restarts=5)
    cluster.wait_until(lambda: "RUNNING" in pool.states(), 60, "a job to run")
    running = [job for job, (state, _) in pool.jobs().items() if state == "RUNNING"]
    pool.slurm.command("scancel", str(running[0]))
    pending = [job for job, (state, _) in pool.jobs().items() if state == "PENDING"]
    pool.slurm.command("scancel", str(pending[-1]))
    cluster.wait_until(pool.agents, 60, "an agent")
    pool.agents()[-1].send_signal(signal.SIGKILL)
    pool.wait_for(experiment, seconds=300)
    trials = cluster.trials(experiment)
    assert [trial["state"] for trial in trials] == ["STATE_COMPLETED"] * 8
    cluster.wait_until(
        lambda: not {"PENDING", "RUNNING", "COMPLETING"} & set(pool.states()), 60, lambda: f"jobs {pool.jobs()}"
    )


@pytest.mark.soak
def test_lost_node_and_a_time_limit_cost_no_more_than_what_was_not_saved(pool: Site) -> None:
    cluster = pool.cluster
    experiment = pool.create(slots=1, slurm={"sbatch_args": ["--nodelist=n1", "--time=1"]}, max_restarts=0)
    trial = pool.wait_for_gate(experiment, 1)
    # The node is gone: its daemon, and all that its jobs run.
    pool.slurm.nodes["n1"].send_signal(signal.SIGKILL)
    for process in pool.agents():
        process.send_signal(signal.SIGKILL)
    pool.slurm.command("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")
    cluster.wait_until(lambda: pool.states()[0] in ("FAILED", "NODE_FAIL"), 90, lambda: f"jobs {pool.jobs()}")
    pool.slurm.start_node("n1")
    pool.slurm.command("scontrol", "update", "NodeName=n1", "State=RESUME")
    cluster.wait_until(lambda: "resumed behind step 20" in cluster.text(trial), 120, "the trial to run again")
    # Its second job runs into the limit, and its trial goes on in another.
    cluster.wait_until(lambda: len(pool.jobs()) == 3, 150, lambda: f"a third job: {pool.jobs()}\n{cluster.text(trial)}")
    why = "TIMEOUT (TimeLimit)"
    cluster.wait_until(lambda: why in cluster.text(trial), 30, lambda: f"{why!r} in {cluster.text(trial)}")
    pool.go.touch()
    pool.wait_for(experiment, seconds=120)


@pytest.mark.soak
def test_what_slurm_refuses_is_said_and_what_is_cancelled_goes(pool: Site) -> None:
    cluster = pool.cluster
    experiment = pool.create(slurm={"sbatch_args": ["--qos=nobody", "--account=nobody", "--constraint=nothing"]})
    trial = pool.trial(experiment)
    cluster.wait_until(lambda: "Slurm did not take the job" in cluster.text(trial), 60, lambda: cluster.text(trial))
    cluster.api("POST", f"/api/v1/experiments/{experiment}/cancel")
    pool.wait_for(experiment, "STATE_CANCELED")
    first = pool.create()
    pool.wait_for_gate(first)
    second = pool.create(name="waits")
    cluster.wait_until(lambda: pool.states() == ["RUNNING", "PENDING"], 30, lambda: f"jobs {pool.jobs()}")
    for number in (second, first):
        cluster.api("POST", f"/api/v1/experiments/{number}/kill")
        pool.wait_for(number, "STATE_CANCELED")
    cluster.wait_until(lambda: pool.states()[1] == "CANCELLED", 60, lambda: f"jobs {pool.jobs()}")
    cluster.wait_until(lambda: pool.states()[0] in ("COMPLETED", "CANCELLED"), 60, lambda: f"jobs {pool.jobs()}")
