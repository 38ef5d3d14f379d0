"""The cluster that the other tests rely on: it runs jobs, survives lost daemons, and leaves nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from .cluster import SlurmCluster


@pytest.mark.soak
def test_daemons_can_be_killed_and_nothing_is_left_at_the_end(tmp_path: Path, wait_until: Callable[..., None]) -> None:
    with SlurmCluster(tmp_path / "slurm") as slurm:
        job = slurm.submit("srun sh -c 'echo $SLURMD_NODENAME at $(getent hosts $SLURMD_NODENAME)'", "--nodes=4")
        shown = slurm.wait_for(job, "COMPLETED")
        assert sorted(shown.splitlines()) == [
            f"{name} at {address} {name}" for name, address in slurm.addresses.items()
        ]

        held = slurm.submit("srun sleep 1000", "--nodes=4", "--gpus-per-node=4")
        slurm.wait_for(held, "RUNNING")
        wait_until(lambda: slurm.remembers(held), 30, "slurmctld to save the job")
        assert slurm.controller
        slurm.controller.send_signal(signal.SIGKILL)
        slurm.controller.wait()
        slurm.start_controller()
        assert slurm.state(held) == "RUNNING"
        slurm.nodes["n3"].send_signal(signal.SIGKILL)
        slurm.nodes["n3"].wait()
        slurm.start_node("n3")
        second = slurm.submit("echo here", "--nodelist=n3")
        assert slurm.wait_for(second, "COMPLETED") == "here\n"
        assert slurm.state(held) == "RUNNING"
        names = {process.name() for process in slurm.processes()}
        assert {"munged", "slurmctld", "slurmd", "slurmstepd", "srun", "sleep"} <= names, names
    assert slurm.processes() == []
