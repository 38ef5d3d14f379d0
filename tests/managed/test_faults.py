"""Processes that are killed and networks that are cut: nothing is lost, nothing runs twice, nothing is left running.

Every victim is killed at several moments of one experiment: while its task starts, while it trains, while it saves a
checkpoint, and when it has reported everything and is about to end.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from conftest import Runner
from detached.conftest import Master

from .conftest import Cluster
from .faults import MOMENTS, Relay, Work

GRID = {
    "searcher": {"name": "grid", "metric": "x"},
    "hyperparameters": {"y": {"type": "categorical", "vals": [1, 2, 3]}},
}

TWO = {"y": {"type": "categorical", "vals": [1, 2]}}


@pytest.fixture
def window() -> int:
    """The reconnect window; tests set another by parametrizing it."""
    return 25


@pytest.fixture
def master(run: Runner, instep: Path, tmp_path: Path, wait_until: Callable[..., None], window: int) -> Iterator[Master]:
    """A master with this window."""
    server = Master(run.start, instep, tmp_path / "master.db")
    server.start(wait_until, "--agent-reconnect-wait", str(window))
    yield server
    if server.process.poll() is None:
        server.stop()


@pytest.fixture
def work(cluster: Cluster, tmp_path: Path, python: Path) -> Work:
    """The script that can be held, on this test's cluster."""
    return Work(cluster, tmp_path, python)


@pytest.fixture
def relay(master: Master) -> Iterator[Relay]:
    """A way to the master that can be cut."""
    made = Relay(master.port)
    yield made
    made.close()


def kill(work: Work, *find: Callable[[], psutil.Process | None]) -> None:
    """Kill processes as soon as they are there, so that none sees the end of another."""

    def done() -> bool:
        found = [process for one in find if (process := one())]
        if len(found) < len(find):
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in found:
                process.suspend()
            for process in found:
                process.kill()
            return True
        return False

    work.cluster.wait_until(done, 60, lambda: f"the processes to kill\n{work.log()}")


def has_ended(process: psutil.Process | None) -> bool:
    """Whether a process is gone, or has yet to be buried."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process is None or process.status() == psutil.STATUS_ZOMBIE
    return True


def test_killed_workers_count_as_failures(work: Work) -> None:
    work.agent()
    work.begin(*MOMENTS, max_restarts=4)
    kill(work, work.worker)
    for moment in MOMENTS:
        work.wait_for(moment)
        kill(work, work.worker)
        work.release(moment)
    work.check(restarts=4)
    # The one killed while it saved had only the first checkpoint to go back to; the first may not have begun at all.
    assert work.runs()[-4:] == ["1 0", "1 4", "1 4", "1 12"]


def test_what_was_reported_before_a_checkpoint_is_not_lost_with_the_worker(work: Work) -> None:
    work.agent()
    (work.watch / "die-saved").touch()
    work.begin(max_restarts=1)
    work.check(restarts=1)
    assert work.runs() == ["1 0", "1 4"]


@pytest.mark.parametrize("victims", [("guardian",), ("supervisor",), ("guardian", "supervisor")], ids="+".join)
def test_killed_tasks_are_not_held_against_the_trial(work: Work, victims: tuple[str, ...]) -> None:
    work.agent()
    work.begin(*MOMENTS)
    find = [getattr(work, victim) for victim in victims]
    kill(work, *find)
    for moment in MOMENTS:
        work.wait_for(moment)
        worker = work.worker()
        kill(work, *find)
        if len(victims) == 1:
            # It is ended by who is left of the two, and must not go on before that.
            work.cluster.wait_until(lambda gone=worker: has_ended(gone), 30, "the worker to end")
        work.release(moment)
    work.check()
    runs = work.runs()
    if len(victims) == 1:
        assert runs[-4:] == ["1 0", "1 4", "1 4", "1 12"]
    else:
        # It is the agent that ends the worker then, which may have come some steps further by that time.
        starts = [int(run.split()[1]) for run in runs]
        assert len(starts) > 1
        assert starts == sorted(starts)
        assert set(starts) <= {0, 4, 8, 12}


def test_killed_agents_find_their_work_again(work: Work) -> None:
    agent = work.agent()
    work.begin(*MOMENTS)
    work.cluster.wait_until(lambda: any(work.shares().iterdir()), 60, "an order")
    work.end(agent, signal.SIGKILL)
    agent = work.agent()
    for moment in MOMENTS:
        work.wait_for(moment)
        work.end(agent, signal.SIGKILL)
        # It goes on while nobody looks, at the last moment to its end.
        work.release(moment)
        time.sleep(0.3)
        agent = work.agent()
    work.check()
    assert work.runs() == ["1 0"], "it never stopped"


def test_what_nobody_looks_after_any_more_ends_when_the_agent_is_back(work: Work) -> None:
    agent = work.agent()
    work.begin("training")
    work.wait_for("training")
    work.end(agent, signal.SIGKILL)
    kill(work, work.guardian, work.supervisor)
    assert work.left(), "the script's own child lives on"
    work.agent()
    work.release("training")
    work.check()
    assert work.runs() == ["1 0", "1 4"]


def test_an_agent_that_is_stopped_in_order_leaves_its_work_running(work: Work) -> None:
    agent = work.agent()
    work.begin("training")
    work.wait_for("training")
    work.end(agent, signal.SIGTERM)
    work.agent()
    work.release("training")
    work.check()
    assert work.runs() == ["1 0"]


def test_killed_masters_lose_nothing(work: Work, master: Master, window: int) -> None:
    def restart(moment: str | None) -> None:
        master.kill()
        if moment:
            # It reports to nobody for a while.
            work.release(moment)
            time.sleep(0.3)
        master.start(work.cluster.wait_until, "--agent-reconnect-wait", str(window))

    work.agent(slots=2)
    work.begin(*MOMENTS, **GRID)
    restart(None)
    work.cluster.wait_until(lambda: work.guardian() is not None, 60, "a task")
    restart(None)
    for moment in MOMENTS:
        work.wait_for(moment)
        restart(moment)
    work.check(trials=3)


def test_a_second_master_is_refused_and_disturbs_nothing(work: Work, run: Runner, instep: Path, master: Master) -> None:
    work.agent()
    work.begin("training")
    work.wait_for("training")
    second = run(instep, "master", "--port", "0", "--db", master.place, env=master.environment)
    assert second.status == 1
    assert "another master" in second.stderr and "hint:" in second.stderr
    work.release("training")
    work.check()
    assert work.runs() == ["1 0"]


@pytest.mark.parametrize("window", [10])
def test_a_short_cut_is_not_noticed_by_the_work(work: Work, relay: Relay) -> None:
    work.agent(master=relay.address)
    work.begin("training")
    work.wait_for("training")
    relay.cut()
    work.release("training")
    # Longer than it takes both sides to see that the connection is dead.
    time.sleep(4)
    relay.mend()
    work.check()
    assert work.runs() == ["1 0"], work.log()


@pytest.mark.parametrize("window", [3])
def test_work_that_is_cut_off_ends_before_others_take_it(work: Work, relay: Relay) -> None:
    # One agent is behind a network that is cut, the other dies and does not come back for long.
    work.agent(master=relay.address)
    dies = work.agent("two")
    # The scripts do not care about SIGTERM.
    work.begin("training", variables=("STUBBORN=1",), **{**GRID, "hyperparameters": TWO})
    for trial in (1, 2):
        work.cluster.wait_until(lambda: len(work.runs()) == 2, 60, work.log)
        work.cluster.wait_for_steps(trial, 6)
    work.agent("three", slots=2)
    relay.cut()
    work.end(dies, signal.SIGKILL)
    for find in (partial(work.worker, "one"), partial(work.worker, "two")):
        work.cluster.wait_until(lambda: find() is None, 30, lambda: f"the work to end by itself: {work.left()}")  # noqa: B023
    # It is given to others only later; else these would find the locks of the first.
    work.cluster.wait_until(lambda: len(work.runs()) == 4, 60, "the work to be taken by others")
    work.release("training")
    relay.mend()
    work.agent("two")
    work.check(trials=2)
    assert sorted(work.runs()) == ["1 0", "1 4", "2 0", "2 4"]


@pytest.mark.parametrize("window", [3])
@pytest.mark.parametrize("fault", ["killed", pytest.param("cut", marks=pytest.mark.soak)])
def test_a_gang_ends_as_a_whole_and_starts_again_as_a_whole(work: Work, relay: Relay, fault: str) -> None:
    work.agent("one", slots=2)
    hit = work.agent("two", slots=2, master=relay.address)
    (work.watch / "hold").touch()
    work.begin(script="gang.py", resources={"slots_per_trial": 4})
    work.cluster.wait_until(lambda: sorted(work.runs()) == ["1 0", "1 1"], 60, lambda: f"the gang\n{work.log()}")
    if fault == "killed":
        work.end(hit, signal.SIGKILL)
    else:
        relay.cut()
    for name in ("one", "two"):
        find = partial(work.worker, name)
        work.cluster.wait_until(lambda: find() is None, 60, lambda: f"the gang to end: {work.left()}")  # noqa: B023
    # Half of the gang has slots already; it waits for those of the other half.
    assert len(work.runs()) == 2
    work.agent("three", slots=2)
    work.cluster.wait_until(lambda: len(work.runs()) == 4, 60, lambda: f"the gang again\n{work.log()}")
    relay.mend()
    (work.watch / "hold").unlink()
    work.cluster.wait_for(work.number, "STATE_COMPLETED")
    assert sorted(work.runs()) == ["1 0", "1 0", "1 1", "1 1"], work.log()
    assert [trial["restarts"] for trial in work.cluster.trials(work.number)] == [0]
    assert not (work.watch / "twice").exists()
    work.cluster.wait_until(lambda: not work.left(), 20, lambda: f"processes to end: {work.left()}")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_anything_is_killed_at_any_moment(work: Work, master: Master, window: int, seed: int) -> None:
    chance = random.Random(seed)
    agent = work.agent(slots=2)
    work.begin(max_restarts=100, **GRID)
    for _ in range(20):
        time.sleep(chance.uniform(0, 0.6))
        victim = chance.choice(["worker", "guardian", "supervisor", "agent", "master"])
        if victim == "agent":
            work.end(agent, signal.SIGKILL)
            agent = work.agent(slots=2)
        elif victim == "master":
            master.kill()
            master.start(work.cluster.wait_until, "--agent-reconnect-wait", str(window))
        elif process := getattr(work, victim)():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    work.check(trials=3, restarts=None)
