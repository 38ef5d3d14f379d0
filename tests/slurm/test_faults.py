"""Trials while Slurm's daemons and the machines of a cluster are killed."""

from __future__ import annotations

import signal

import pytest

from .site import Site

pytestmark = pytest.mark.soak


def test_trial_runs_on_and_ends_while_daemons_of_slurm_are_dead(pool: Site) -> None:
    cluster, slurm = pool.cluster, pool.slurm
    first = pool.create()
    trial = pool.wait_for_gate(first)
    [job] = pool.jobs()
    second = pool.create(name="second")
    cluster.wait_until(lambda: len(pool.jobs()) == 2, 60, "the second job")
    waiting = max(pool.jobs())
    cluster.wait_until(lambda: slurm.remembers(job) and slurm.remembers(waiting), 60, "slurmctld to save the jobs")
    daemons = [slurm.controller, slurm.nodes["n1"], slurm.nodes["n2"]]
    for daemon in daemons:
        assert daemon
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
    cluster.wait_until(
        lambda: any("Slurm does not answer" in one["reason"] for one in pool.queue()), 120, lambda: str(pool.queue())
    )
    pool.go.touch()
    pool.wait_for(first, seconds=120)
    slurm.start_controller()
    for name in ("n1", "n2"):
        slurm.start_node(name)
    pool.wait_for(second, seconds=180)
    cluster.wait_until(lambda: pool.states() == ["COMPLETED"] * 2, 120, lambda: f"jobs {pool.jobs()}")
    assert cluster.trials(first)[0]["restarts"] == 0
    assert "resumed" not in cluster.text(trial), "it was not disturbed"
