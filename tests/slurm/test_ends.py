"""What becomes of a trial whose job Slurm ends: it is told before, saves, and resumes in another job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Runner

from .cluster import FREEZER, SlurmCluster
from .site import Site, site

# What a site with preemption has: jobs of `high` take the nodes of those in `low`, which have a while to end.
PREEMPTION = ("PreemptType=preempt/partition_prio", "PreemptMode=CANCEL")
PARTITIONS = (
    "PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=40",
    "PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10",
)
MakeSite = Callable[..., contextlib.AbstractContextManager[Site]]


@pytest.fixture
def make_site(run: Runner, instep: Path, python: Path, tmp_path: Path, wait_until: Callable[..., None]) -> MakeSite:
    """Make two nodes with a slot each, whose jobs can be preempted, and a master."""

    @contextlib.contextmanager
    def make(*options: str, **engine: object) -> Iterator[Site]:
        with (
            SlurmCluster(
                tmp_path / "slurm", nodes=2, gpus=0, partitions=PARTITIONS, options=(*PREEMPTION, *options)
            ) as slurm,
            site(slurm, run, instep, python, tmp_path, wait_until, partition="low", **engine) as made,
        ):
            yield made

    return make


def resumed_behind(pool: Site, trial: int, step: int) -> None:
    """Wait until a trial has resumed."""
    said = f"rank 0 resumed behind step {step}"
    pool.cluster.wait_until(
        lambda: said in pool.cluster.text(trial), 240, lambda: f"{said!r} in {pool.describe(trial)}"
    )


# Slurm sends SIGTERM to the tasks of a step, or to all processes that they have started: that depends on how it follows
# them. Where it is told to send the signal of `--signal` instead, this does not matter.
@pytest.mark.soak
@pytest.mark.parametrize(
    ("options", "step"),
    [
        (["ProctrackType=proctrack/cgroup"], 25),
        (["ProctrackType=proctrack/pgid"], 25),
        (["SlurmctldParameters=preempt_send_user_signal"], 25),
        (["ProctrackType=proctrack/linuxproc"], 20),
    ],
    ids=["cgroup", "pgid", "SIGURG", "linuxproc"],
)
def test_preempted_job_is_saved_within_its_grace_and_resumed_in_another(
    make_site: MakeSite, options: list[str], step: int
) -> None:
    if "ProctrackType=proctrack/cgroup" in options and not FREEZER.exists():
        pytest.skip("this machine has no freezer of control groups of version 1")
    with make_site(*options) as pool:
        experiment = pool.create(gate=25, max_restarts=0)
        trial = pool.wait_for_gate(experiment)
        other = pool.slurm.submit("sleep 3", "--partition=high", "--nodes=2", "--exclusive")
        pool.slurm.wait_for(other, "COMPLETED")
        pool.go.touch()
        resumed_behind(pool, trial, step)
        pool.wait_for(experiment, seconds=120)
        assert pool.cluster.trials(experiment)[0]["restarts"] == 0
        if step == 25:
            assert "the scheduler that started its agents is about to end them" in pool.cluster.text(trial)
            assert pool.states()[0] == "COMPLETED", "it ended by itself within its grace"


@pytest.mark.soak
def test_time_limit_comes_with_a_notice(make_site: MakeSite) -> None:
    with make_site() as pool:
        experiment = pool.create(gate=25, max_restarts=0, slurm={"sbatch_args": ["--time=2"]})
        trial = pool.wait_for_gate(experiment)
        resumed_behind(pool, trial, 25)
        pool.go.touch()
        pool.wait_for(experiment, seconds=120)
        assert pool.cluster.trials(experiment)[0]["restarts"] == 0
        assert pool.states()[0] == "COMPLETED", "it ended by itself before its limit"


@pytest.mark.soak
def test_time_limit_without_a_notice_costs_no_more_than_what_was_not_saved(make_site: MakeSite) -> None:
    with make_site(notice=0) as pool:
        experiment = pool.create(gate=25, max_restarts=0, slurm={"sbatch_args": ["--time=1"]})
        trial = pool.wait_for_gate(experiment)
        resumed_behind(pool, trial, 20)
        pool.go.touch()
        pool.wait_for(experiment, seconds=120)
        why = "TIMEOUT (TimeLimit)"
        pool.cluster.wait_until(lambda: why in pool.cluster.text(trial), 60, lambda: pool.describe(trial))
        assert pool.cluster.trials(experiment)[0]["restarts"] == 0


@pytest.mark.soak
def test_job_of_a_failed_trial_ends_with_the_code_of_its_script(make_site: MakeSite) -> None:
    with make_site() as pool:
        failing = ["python3", "-c", "raise SystemExit(3)"]
        experiment = pool.create(failing, slots=2, max_restarts=1)
        pool.wait_for(experiment, "STATE_ERROR", seconds=120)
        pool.cluster.wait_until(lambda: pool.states() == ["FAILED"] * 2, 60, lambda: f"jobs {pool.jobs()}")
        for job in pool.jobs():
            assert "ExitCode=3:0" in pool.slurm.command("scontrol", "show", "job", str(job))
        [trial] = pool.cluster.trials(experiment)
        assert trial["restarts"] == 1
        assert "has ended" not in pool.cluster.text(trial["id"]), "the trial has said how it ended"
