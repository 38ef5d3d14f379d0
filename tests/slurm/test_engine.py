"""Slurm in place of agents: `instep experiment create` on a pool whose work Slurm runs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from conftest import Runner
from managed.conftest import rows

from .site import Json, Site


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


@pytest.mark.parametrize("pool", [4], indirect=True)
def test_trial_on_four_nodes_survives_the_end_of_its_job(pool: Site) -> None:
    cluster = pool.cluster
    experiment = pool.create(slots=4)
    trial = pool.wait_for_gate(experiment, ranks=4)
    [first] = pool.jobs()
    found = cluster.api("GET", "/api/v1/agents")["agents"]
    assert sorted((agent["id"], agent["resourcePools"]) for agent in found) == [
        (f"n{node}-{first}", ["slurm"]) for node in (1, 2, 3, 4)
    ]
    [shown] = [one for one in cluster.api("GET", "/api/v1/resource-pools")["resourcePools"] if one["name"] == "slurm"]
    assert (shown["schedulerType"], shown["numAgents"], shown["slotsUsed"]) == ("SCHEDULER_TYPE_SLURM", 4, 4)

    pool.slurm.command("scancel", str(first))
    pool.go.touch()
    pool.wait_for(experiment)
    assert "rank 3 resumed behind step 20" in cluster.text(trial)
    why = f"Slurm job {first} has ended: CANCELLED"
    cluster.wait_until(lambda: why in cluster.text(trial), 30, lambda: f"{why!r} in {cluster.text(trial)}")
    assert rows(cluster.api, trial, "training") == {step: {"x": 10 * step} for step in (10, 20, 30, 40)}
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
    assert "is pending (Resources)" in pool.ours("job", "list")
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
def test_lost_node_costs_no_more_than_what_was_not_saved(pool: Site) -> None:
    cluster = pool.cluster
    experiment = pool.create(slots=1, slurm={"sbatch_args": ["--nodelist=n1"]}, max_restarts=0)
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
