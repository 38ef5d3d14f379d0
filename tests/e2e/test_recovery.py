"""`instep run --recover step`: one rank is lost in one of many ways, and what becomes of the others.

The ranks are scripts/session.py: no torch, but real processes that follow the keys in the store as a session does.
Faults are the script's own, at a step that the test names, so that nothing here depends on time.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from conftest import Result, Runner, WaitUntil
from ports import free_port

SCRIPTS = Path(__file__).resolve().parent / "scripts"
STEPS = 6
# Spares give way to everything else that runs on the machine.
READY_WITHIN_S = 300


class Job:
    """Runs scripts/session.py under `--recover step`, and reads what its ranks left."""

    def __init__(self, instep: Path, python: Path, folder: Path, run: Runner) -> None:
        self.instep = instep
        self.python = python
        self.folder = folder
        self.runner = run

    def command(self, ranks: int, *faults: str, options: tuple[str | Path, ...] = ()) -> list[str | Path]:
        files = ["--events", self.folder / "events", "--summary-json", self.folder / "summary"]
        common = ["--recover", "step", "--nproc-per-node", str(ranks), "--python", self.python, *files]
        spares = () if "--spares" in options else ("--spares", "0")
        program = [SCRIPTS / "session.py", self.folder, str(STEPS), *faults]
        return [self.instep, "run", *common, *spares, *options, *program]

    def run(self, ranks: int, *faults: str, options: tuple[str | Path, ...] = ()) -> Result:
        return self.runner(*self.command(ranks, *faults, options=options))

    def own(self, rank: int, incarnation: int = 0) -> dict[str, Any]:
        return dict(json.loads((self.folder / f"{rank}.{incarnation}.json").read_text()))

    def incarnations(self, rank: int) -> int:
        return len(list(self.folder.glob(f"{rank}.*.steps")))

    def steps(self, rank: int, incarnation: int = 0) -> list[int]:
        return [int(line) for line in (self.folder / f"{rank}.{incarnation}.steps").read_text().split()]

    def results(self) -> set[str]:
        return {path.read_text() for path in self.folder.glob("*.result")}

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (self.folder / "events").read_text().splitlines()]
        return [line for line in lines if line["event"] == name]

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "summary").read_text()))


@pytest.fixture
def job(instep: Path, python: Path, tmp_path: Path, run: Runner) -> Job:
    return Job(instep, python, tmp_path, run)


def uninterrupted() -> set[str]:
    """The state after the last step, where nothing happens."""
    state = 1
    for step in range(STEPS):
        state = state * 6364136223846793005 % 2**64 + step
    return {str(state)}


def test_a_killed_rank_is_replaced_and_its_peers_keep_their_processes(job: Job) -> None:
    result = job.run(4, "3.0@2:kill").expect(0)
    assert job.results() == uninterrupted()
    assert [job.incarnations(rank) for rank in range(4)] == [1, 1, 1, 2], "peers were never started again"
    for rank in range(3):
        assert job.steps(rank) == list(range(STEPS)), "no step is skipped or done twice"
    assert job.steps(3) == [0, 1]
    first, second = job.own(3), job.own(3, 1)
    assert first["pid"] != second["pid"]
    told = ("INSTEP_RECOVER", "INSTEP_INCARNATION", "INSTEP_RECOVERY_GENERATION", "TORCHELASTIC_RESTART_COUNT")
    assert [first[name] for name in told] == ["step", "0", "0", "0"]
    assert [second[name] for name in told] == ["step", "1", "1", "0"]
    for name in ("RANK", "LOCAL_RANK", "MASTER_PORT", "INSTEP_SECRET"):
        assert first[name] == second[name], name
    assert "was killed by SIGKILL; replacing it (generation 1)" in result.stderr
    assert "step 2 is next (generation 1)" in result.stderr
    [lost], [replaced], [recovered] = map(job.events, ("rank_lost", "rank_replaced", "step_recovered"))
    assert (lost["rank"], lost["incarnation"], lost["exit"]) == (3, 0, -9)
    assert (replaced["rank"], replaced["incarnation"], replaced["generation"]) == (3, 1, 1)
    assert (replaced["pid"], replaced["warm"]) == (second["pid"], False)
    assert (recovered["generation"], recovered["step"]) == (1, 2)
    summary = job.summary()
    counts = {name: summary[name] for name in ("rounds", "restarts", "replacements", "recoveries")}
    assert counts == {"rounds": 1, "restarts": 0, "replacements": 1, "recoveries": 1}


def test_a_second_loss_during_the_recovery_is_the_next_generation(job: Job) -> None:
    job.run(4, "3.0@2:kill", "1.0@recovery:kill", "3.1@recovery:kill").expect(0)
    assert job.results() == uninterrupted()
    assert [job.incarnations(rank) for rank in range(4)] == [1, 2, 1, 3]
    for rank in (0, 2):
        assert job.steps(rank) == list(range(STEPS))
    assert job.summary()["replacements"] == 3


def test_an_error_of_the_script_in_one_step_is_forgiven_once(job: Job) -> None:
    result = job.run(2, "1.0@3:raise", "1.1@4:raise").expect(0)
    assert job.results() == uninterrupted()
    assert "(ValueError: no such thing in step 3); replacing it (generation 1)" in result.stderr
    assert "(ValueError: no such thing in step 4); replacing it (generation 2)" in result.stderr


def test_a_rank_that_fails_twice_in_one_step_ends_the_job_with_its_traceback(job: Job) -> None:
    result = job.run(2, "1.*@3:raise", options=("--max-restarts", "3")).expect(1)
    assert "rank 1 failed twice in step 3: rank 1 on " in result.stderr
    assert "ValueError: no such thing in step 3" in result.stderr.split("Root cause")[1]
    summary = job.summary()
    assert (summary["restarts"], summary["root_cause"]["rank"]) == (0, 1), "restarts would not help"
    assert summary["replacements"] == 1, "nor would a second replacement"


def test_a_rank_that_dies_again_and_again_before_it_resumes_ends_the_job(job: Job) -> None:
    result = job.run(2, "1.0@2:kill", "1.[1-9]@start:kill").expect(1)
    assert "rank 1 was killed 6 times before a step was redone: rank 1 on " in result.stderr
    assert len(job.events("rank_replaced")) == 5


def test_a_range_of_nodes_without_c10d_is_refused_before_anything_starts(job: Job) -> None:
    options = ("--nnodes", "1:4", "--rdzv-backend", "static")
    result = job.run(2, options=options)
    assert result.status != 0
    assert "--recover step with a range of nodes (--nnodes 1:4) needs the c10d rendezvous" in result.stderr
    assert "hint: give one number of nodes" in result.stderr
    assert not list(job.folder.glob("*.json"))


def test_a_job_without_a_session_is_told_that_it_would_not_have_recovered(job: Job) -> None:
    script = job.folder / "train.py"
    script.write_text("")
    words = (job.instep, "run", "--python", job.python)
    assert "could not have replaced a lost rank" in job.runner(*words, "--recover", "step", script).expect(0).stderr
    assert "Session" not in job.runner(*words, script).expect(0).stderr


def test_without_a_session_all_workers_restart(job: Job) -> None:
    result = job.run(2, "0.0@start:mute", "1.0@start:kill", options=("--max-restarts", "1")).expect(0)
    assert "rank 0 has no instep.elastic.Session, so all workers restart; restart 1 of 1" in result.stderr
    assert job.results() == uninterrupted()
    summary = job.summary()
    assert (summary["rounds"], summary["restarts"], summary["replacements"]) == (2, 1, 0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_all_workers_restart_where_no_rank_has_the_state(job: Job, ranks: int) -> None:
    """A rank alone; or the second of two, lost while the first one is replaced."""
    faults = ["0.0@2:kill", "1.0@recovery:kill"][:ranks]
    result = job.run(ranks, *faults, options=("--max-restarts", "1")).expect(0)
    assert "no rank with the state of the step is left, so all workers restart; restart 1 of 1" in result.stderr
    assert job.results() == uninterrupted()


def test_a_rank_that_fails_because_of_the_loss_restarts_all_and_is_not_the_cause(job: Job) -> None:
    """Rank 2 is killed while rank 1 is outside of its session: rank 1 fails as it would without recovery."""
    faults = ("1.0@0:lost", "2.0@2:kill")
    result = job.run(3, *faults, options=("--max-restarts", "1")).expect(0)
    assert job.results() == uninterrupted()
    told = "rank 1 failed because of it outside of a step of an instep.elastic.Session, so all workers restart"
    assert told in result.stderr
    [stopped] = job.events("round_stopped")
    assert stopped["reason"].startswith("rank 2 on "), "the rank that was lost is the cause"


def test_a_replacement_that_cannot_be_started_is_said(job: Job) -> None:
    program = job.folder / "program"
    program.write_text(f'#!/bin/sh\nexec {job.python} "$@"\n')
    program.chmod(0o755)
    command = job.command(2, "1.0@2:vanish program", "1.0@2:kill", options=("--no-python",))
    at = command.index(SCRIPTS / "session.py")
    result = job.runner(*command[:at], program, *command[at:]).expect(1)
    assert "there is no such file" in result.stderr
    assert "its replacement could not be started, so all workers restart; restarts are off" in result.stderr


def test_both_incarnations_are_in_the_log(job: Job) -> None:
    logs = job.folder / "logs"
    job.run(2, "1.0@2:raise", options=("--redirects", "3", "--log-dir", logs)).expect(0)
    [folder] = logs.glob("*/attempt_0/1")
    assert (folder / "stdout.log").read_text() == "rank 1 incarnation 0\nrank 1 incarnation 1\n"
    assert "ValueError: no such thing in step 2" in (folder / "stderr.log").read_text()


def test_a_signal_during_a_replacement_ends_the_job(job: Job, wait_until: WaitUntil) -> None:
    running = job.runner.start(*job.command(2, "1.0@2:kill", "1.1@start:see nothing"))
    wait_until((job.folder / "1.1.json").exists, 60, lambda: f"the replacement\n{running.stderr}")
    running.send_signal(signal.SIGINT)
    assert running.wait().status == 1
    wait_until(lambda: not running.left_behind(), 10, "its workers to end")


def test_a_rank_of_another_node_is_replaced_there(job: Job) -> None:
    nodes = []
    port = free_port()
    for node in range(2):
        place = ("--nnodes", "2", "--node-rank", str(node), "--master-port", str(port))
        nodes.append(job.runner.start(*job.command(2, "2.0@2:kill", "3.0@2:kill", options=place)))
    first, second = (node.wait() for node in nodes)
    first.expect(0)
    second.expect(0)
    assert job.results() == uninterrupted()
    assert [job.incarnations(rank) for rank in range(4)] == [1, 1, 2, 2]
    for rank in range(2):
        assert job.steps(rank) == list(range(STEPS))
    for node in (first, second):
        assert "was killed by SIGKILL; replacing" in node.stderr
    for rank in (2, 3):
        assert job.own(rank, 1)["RANK"] == str(rank)


def test_a_spare_takes_over_any_rank_of_its_node(job: Job, wait_until: WaitUntil) -> None:
    options = ("--spares", "1", "--preload", "decimal")
    faults = ("*.*@2:see go", "1.0@2:kill", "*.*@4:see again", "0.0@4:kill")
    running = job.runner.start(*job.command(2, *faults, options=options))
    for times, name in ((1, "go"), (2, "again")):
        wait_until(
            lambda times=times: running.stderr.count("spare interpreter is ready") == times,
            READY_WITHIN_S,
            lambda: f"a spare\n{running.stderr}",
        )
        (job.folder / name).touch()
    running.wait().expect(0)
    assert job.results() == uninterrupted()
    assert [event["warm"] for event in job.events("rank_replaced")] == [True, True]
    assert [job.own(rank, 1)["RANK"] for rank in range(2)] == ["0", "1"]
