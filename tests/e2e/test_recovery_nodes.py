"""`instep run --recover step` on several machines: a whole node is lost, and its ranks continue on the others.

The machines are network namespaces. Most tests run scripts/session.py, which needs no torch; that the bits are the same
is shown with tests/elastic/scripts/train.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import time
from pathlib import Path
from typing import Any, TypedDict, Unpack

import psutil
import pytest
from namespaces import Network, Node, network

from conftest import ROOT, Result, Runner, Running, WaitUntil

# Every run has tests of jobs without one elsewhere; `make soak SUITE=token` runs the other files with one.
WITH_TOKEN = True

__all__ = ["network"]

# Three machines.
pytestmark = pytest.mark.parametrize("network", [3], indirect=True)

SESSION = Path(__file__).resolve().parent / "scripts" / "session.py"
TRAIN = ROOT / "tests" / "elastic" / "scripts" / "train.py"
PORT = 29617
STEPS = 6
# On each machine.
RANKS = 2
# Spares give way to everything else that runs on the machine.
READY_WITHIN_S = 120
# The launcher on a silent machine ends its ranks after some seconds; a loaded machine may take longer.
FENCED_WITHIN_S = 30
# How many heartbeats of 0.5 s may be missing. A virtual processor of a busy machine can stand still for five seconds:
# tests that break connections take silence of 12 s, those that cut links 8 s, and only the soak the default.
PATIENTLY, ON_SILENCE, BY_DEFAULT = 24, 16, 6


class How(TypedDict, total=False):
    """How a launcher is started; see `Cluster.launch_on`."""

    rendezvous: str
    options: tuple[str | Path, ...]
    env: dict[str, str | None]
    nodes: str
    last_call: int
    missed: int


class Cluster:
    """Jobs on three machines of two ranks each."""

    def __init__(self, network: Network, instep: Path, python: Path, run: Runner, folder: Path) -> None:
        self.network = network
        self.nodes: list[Node] = network.nodes
        self.instep = instep
        self.python = python
        self.runner = run
        self.folder = folder

    def launch(self, spares: int, *program: str | Path, **how: Unpack[How]) -> list[Running]:
        """Start a job on all machines, as `launch_on` does on one; elastic if `nodes` is a range."""
        return [self.launch_on(number, spares, *program, **how) for number in range(len(self.nodes))]

    def launch_on(
        self,
        number: int,
        spares: int,
        *program: str | Path,
        rendezvous: str = "c10d",
        options: tuple[str | Path, ...] = ("--no-python",),
        env: dict[str, str | None] | None = None,
        nodes: str = "",
        last_call: int = 30,
        missed: int = PATIENTLY,
    ) -> Running:
        """Start the launcher of one machine."""
        node, first = self.nodes[number], self.nodes[0].ipv4
        places = {
            "c10d": ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first}:{PORT}", "--rdzv-id", "nodes"),
            "static": ("--master-addr", first, "--master-port", str(PORT)),
        }
        return node.start(
            self.runner,
            *(self.instep, "run", "--recover", "step", "--spares", str(spares), "--nproc-per-node", str(RANKS)),
            *("--nnodes", nodes or str(len(self.nodes)), "--node-rank", str(number), *places[rendezvous]),
            *("--rdzv-conf", f"last_call_timeout={last_call},keep_alive_max_attempt={missed}"),
            *("--local-addr", node.ipv4, "--events", self.folder / f"events.{number}", *options),
            *program,
            env={"OMP_NUM_THREADS": "1", **(env or {})},
        )

    def session(self, spares: int, *faults: str, **how: Unpack[How]) -> list[Running]:
        return self.launch(spares, self.python, SESSION, self.folder, str(STEPS), *faults, **how)

    def own(self, rank: int, incarnation: int) -> dict[str, Any]:
        return dict(json.loads((self.folder / f"{rank}.{incarnation}.json").read_text()))

    def steps(self, rank: int, incarnation: int = 0) -> list[int]:
        return [int(line) for line in (self.folder / f"{rank}.{incarnation}.steps").read_text().split()]

    def has_done(self, steps: int, nodes: int | None = None) -> bool:
        """Whether all first incarnations have done so many steps."""
        ranks = range(RANKS * (nodes or len(self.nodes)))
        files = [self.folder / f"{rank}.0.steps" for rank in ranks]
        return all(path.exists() and len(path.read_text().split()) == steps for path in files)

    def diagnosis(self, job: Running) -> str:
        """What the ranks of a launcher wait for."""
        return self.runner(self.instep, "diagnose", str(job.pid), timeout=60).stdout

    def events(self, node: int, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (self.folder / f"events.{node}").read_text().splitlines()]
        return [line for line in lines if line["event"] == name]


@pytest.fixture
def cluster(network: Network, instep: Path, python: Path, run: Runner, tmp_path: Path) -> Cluster:
    return Cluster(network, instep, python, run, tmp_path)


def kill_node(job: Running) -> None:
    """Everything of one launcher at once, as if its machine had been switched off; its system still answers."""
    left = job.left_behind()
    job.send_signal(signal.SIGKILL)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def uninterrupted() -> set[str]:
    """The state after the last step of session.py, where nothing happens."""
    state = 1
    for step in range(STEPS):
        state = state * 6364136223846793005 % 2**64 + step
    return {str(state)}


def results(folder: Path) -> set[str]:
    return {path.read_text() for path in folder.glob("*.result")}


@pytest.mark.parametrize("rendezvous", ["c10d", "static"])
def test_ranks_of_a_killed_node_continue_on_the_others(
    cluster: Cluster, wait_until: WaitUntil, rendezvous: str
) -> None:
    jobs = cluster.session(1, "*.*@2:see go", rendezvous=rendezvous)
    wait_until(lambda: cluster.has_done(2), 60, lambda: f"two steps\n{jobs[0].stderr}")
    kill_node(jobs[1])
    wait_until(lambda: "moving rank" in jobs[2].stderr, 30, lambda: jobs[0].stderr)
    (cluster.folder / "go").touch()
    for node in (0, 2):
        jobs[node].wait().expect(0)
    assert results(cluster.folder) == uninterrupted()
    for rank in (0, 1, 4, 5):
        assert cluster.steps(rank) == list(range(STEPS)), "no step is skipped or done twice"
    told = jobs[0].stderr
    assert f"node 10.77.0.2 (pid {jobs[1].pid}) was lost: its connection broke; moving rank 2 to 10.77.0.1" in told
    assert "rank 3 to 10.77.0.3 (generation 1)" in told
    for rank, node in ((2, 0), (3, 2)):
        before, after = cluster.own(rank, 0), cluster.own(rank, 1)
        for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "INSTEP_SECRET"):
            assert before[name] == after[name], name
        [moved] = cluster.events(node, "rank_replaced")
        assert (moved["rank"], moved["pid"], moved["moved"]) == (rank, after["pid"], True)


def test_a_spare_takes_over_a_rank_of_another_node(cluster: Cluster, wait_until: WaitUntil) -> None:
    program = (SESSION, cluster.folder, str(STEPS), "*.*@2:see go")
    jobs = cluster.launch(1, *program, options=("--python", cluster.python, "--preload", "decimal"))
    for node in (0, 2):
        wait_until(
            lambda job=jobs[node]: "1 spare interpreter is ready" in job.stderr,
            READY_WITHIN_S,
            lambda job=jobs[node]: f"a spare\n{job.stderr}",
        )
    kill_node(jobs[1])
    wait_until(lambda: "moving rank" in jobs[0].stderr, 30, lambda: jobs[0].stderr)
    (cluster.folder / "go").touch()
    for node in (0, 2):
        jobs[node].wait().expect(0)
        [moved] = cluster.events(node, "rank_replaced")
        assert (moved["warm"], moved["moved"]) == (True, True)
    assert results(cluster.folder) == uninterrupted()
    assert cluster.own(3, 1)["LOCAL_RANK"] == "1", "what the spare was started with does not show"


def test_a_moved_rank_is_replaced_where_it_is_and_moves_on_with_its_node(
    cluster: Cluster, wait_until: WaitUntil
) -> None:
    jobs = cluster.session(4, "*.*@2:see go", "3.1@3:kill", "*.*@4:see again")
    wait_until(lambda: cluster.has_done(2), 60, lambda: f"two steps\n{jobs[0].stderr}")
    kill_node(jobs[1])
    wait_until(lambda: "moving rank" in jobs[0].stderr, 30)
    (cluster.folder / "go").touch()
    wait_until(lambda: cluster.folder.joinpath("3.2.json").exists(), 30, lambda: jobs[0].stderr)
    wait_until(lambda: "step 3 is next (generation 2)" in jobs[0].stderr, 30, lambda: jobs[0].stderr)
    wait_until(lambda: cluster.steps(0) == [0, 1, 2, 3], 30, lambda: jobs[0].stderr)
    kill_node(jobs[2])
    wait_until(lambda: "(generation 3)" in jobs[0].stderr, 30, lambda: jobs[0].stderr)
    (cluster.folder / "again").touch()
    jobs[0].wait().expect(0)
    assert results(cluster.folder) == uninterrupted()
    for rank in (0, 1):
        assert cluster.steps(rank) == list(range(STEPS)), "no step is skipped or done twice"


def test_a_lost_node_for_which_spares_are_missing_is_said(cluster: Cluster, wait_until: WaitUntil) -> None:
    jobs = cluster.session(0, "*.*@2:see go")
    wait_until(lambda: cluster.has_done(2), 60, lambda: f"two steps\n{jobs[0].stderr}")
    kill_node(jobs[2])
    for node in (0, 1):
        told = jobs[node].wait().expect(1).stderr
        assert "the other nodes are 2 spares short (--spares), so all workers restart; restarts are off" in told, told


def test_a_silent_node_is_replaced_and_ends_its_own_ranks(cluster: Cluster, wait_until: WaitUntil) -> None:
    jobs = cluster.session(1, "*.*@2:see go", "[23].0@2:see never", missed=ON_SILENCE)
    wait_until(lambda: cluster.has_done(2), 60, lambda: f"two steps\n{jobs[0].stderr}")
    old = [psutil.Process(cluster.own(rank, 0)["pid"]) for rank in (2, 3)]
    cluster.network.cut_link(cluster.nodes[1])
    wait_until(lambda: "moving rank" in jobs[0].stderr, 60, lambda: jobs[0].stderr)
    (cluster.folder / "go").touch()
    _, alive = psutil.wait_procs(old, FENCED_WITHIN_S)
    assert not alive, "ranks behind the cut live on"
    silent = jobs[1].wait().expect(1)
    assert "lost the connection to the first node, which leads the job" in silent.stderr
    for node in (0, 2):
        jobs[node].wait().expect(0)
    assert results(cluster.folder) == uninterrupted()
    assert "was lost: no heartbeat for " in jobs[0].stderr


def test_ranks_of_a_suspended_launcher_are_replaced_and_it_ends_them_when_it_wakes(
    cluster: Cluster, wait_until: WaitUntil
) -> None:
    jobs = cluster.session(1, "*.*@2:see go", "[23].0@2:see never", missed=ON_SILENCE)
    wait_until(lambda: cluster.has_done(2), 60, lambda: f"two steps\n{jobs[0].stderr}")
    old = [psutil.Process(cluster.own(rank, 0)["pid"]) for rank in (2, 3)]
    jobs[1].send_signal(signal.SIGSTOP)
    wait_until(lambda: "moving rank" in jobs[0].stderr, 60, lambda: jobs[0].stderr)
    (cluster.folder / "go").touch()
    for node in (0, 2):
        jobs[node].wait().expect(0)
    assert results(cluster.folder) == uninterrupted()
    jobs[1].send_signal(signal.SIGCONT)
    jobs[1].wait().expect(1)
    assert not psutil.wait_procs(old, FENCED_WITHIN_S)[1]


# What an elastic job does.
RANGE = "1:3"
QUICKLY = 10


def test_an_elastic_job_moves_ranks_too_and_is_not_stopped_for_a_newcomer(
    cluster: Cluster, wait_until: WaitUntil
) -> None:
    program = (cluster.python, SESSION, cluster.folder, str(STEPS), "*.*@2:see go")
    jobs = cluster.launch(2, *program, last_call=QUICKLY, nodes=RANGE)
    wait_until(lambda: cluster.has_done(2), 60, lambda: f"two steps\n{jobs[0].stderr}")
    kill_node(jobs[1])
    wait_until(lambda: "moving rank" in jobs[0].stderr, 30, lambda: jobs[0].stderr)
    newcomer = cluster.launch_on(1, 2, *program, last_call=QUICKLY, nodes=RANGE)
    told = "they keep their step, and a new node stands by for the ranks of a lost one"
    wait_until(lambda: told in newcomer.stderr, 30, lambda: newcomer.stderr)
    (cluster.folder / "go").touch()
    for node in (0, 2):
        ended = jobs[node].wait().expect(0)
        assert "stopping the workers" not in ended.stderr, "the newcomer costs the others nothing"
    newcomer.wait().expect(0)
    assert results(cluster.folder) == uninterrupted()
    for rank in (0, 1, 4, 5):
        assert cluster.steps(rank) == list(range(STEPS)), "no step is skipped or done twice"


# Two machines begin, and the third one comes when they train.
LATE = "2:3"
SOON = 1


def begin_with_two(cluster: Cluster, *program: str | Path, env: dict[str, str | None] | None = None) -> list[Running]:
    return [cluster.launch_on(node, 0, *program, last_call=SOON, env=env, nodes=LATE) for node in (0, 1)]


def join_late(
    cluster: Cluster, wait_until: WaitUntil, *program: str | Path, env: dict[str, str | None] | None = None
) -> Running:
    late = cluster.launch_on(2, 0, *program, last_call=SOON, env=env, nodes=LATE)
    wait_until(lambda: "a new node stands by for the ranks of a lost one" in late.stderr, 30, lambda: late.stderr)
    return late


def test_a_node_that_joins_later_takes_the_ranks_of_a_killed_one(cluster: Cluster, wait_until: WaitUntil) -> None:
    program = (cluster.python, SESSION, cluster.folder, str(STEPS), "*.*@2:see go")
    jobs = begin_with_two(cluster, *program)
    wait_until(lambda: cluster.has_done(2, nodes=2), 60, lambda: f"two steps\n{jobs[0].stderr}")
    late = join_late(cluster, wait_until, *program)
    kill_node(jobs[1])
    moving = f"moving ranks 2-3 to {cluster.nodes[2].ipv4} (generation 1)"
    wait_until(lambda: moving in jobs[0].stderr, 30, lambda: jobs[0].stderr)
    (cluster.folder / "go").touch()
    told = [job.wait().expect(0).stderr for job in (jobs[0], late)]
    assert not any("stopping the workers" in text for text in told), "nobody restarts"
    assert results(cluster.folder) == uninterrupted()
    for rank in (0, 1):
        assert cluster.steps(rank) == list(range(STEPS)), "no step is skipped or done twice"
    for rank in (2, 3):
        before, after = cluster.own(rank, 0), cluster.own(rank, 1)
        for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "INSTEP_SECRET"):
            assert before[name] == after[name], name
    assert [event["rank"] for event in cluster.events(2, "rank_replaced")] == [2, 3]


@pytest.mark.soak
def test_a_node_that_took_ranks_over_is_lost_and_the_next_one_takes_them(
    cluster: Cluster, wait_until: WaitUntil
) -> None:
    """Its successor is a new launcher on the machine that was lost first."""
    program = (cluster.python, SESSION, cluster.folder, str(STEPS), "*.*@2:see go", "*.*@4:see again")
    jobs = begin_with_two(cluster, *program)
    wait_until(lambda: cluster.has_done(2, nodes=2), 60, lambda: f"two steps\n{jobs[0].stderr}")
    second = join_late(cluster, wait_until, *program)
    kill_node(jobs[1])
    wait_until(lambda: "(generation 1)" in jobs[0].stderr, 30, lambda: jobs[0].stderr)
    (cluster.folder / "go").touch()
    wait_until(lambda: cluster.steps(0) == [0, 1, 2, 3], 30, lambda: jobs[0].stderr)
    third = cluster.launch_on(1, 0, *program, last_call=SOON, nodes=LATE)
    wait_until(lambda: "stands by" in third.stderr, 30, lambda: third.stderr)
    kill_node(second)
    wait_until(lambda: "(generation 2)" in jobs[0].stderr, 30, lambda: jobs[0].stderr)
    (cluster.folder / "again").touch()
    for job in (jobs[0], third):
        assert "stopping the workers" not in job.wait().expect(0).stderr
    assert results(cluster.folder) == uninterrupted()


def test_an_elastic_job_without_spares_goes_on_with_fewer_nodes(cluster: Cluster, wait_until: WaitUntil) -> None:
    program = (cluster.python, SESSION, cluster.folder, str(STEPS), "*.*@2:see go")
    jobs = cluster.launch(0, *program, last_call=QUICKLY, nodes=RANGE)
    wait_until(lambda: cluster.has_done(2), 60, lambda: f"two steps\n{jobs[0].stderr}")
    kill_node(jobs[1])
    short = "the other nodes are 2 spares short (--spares), so all workers restart"
    wait_until(lambda: short in jobs[2].stderr, 30, lambda: jobs[2].stderr)
    (cluster.folder / "go").touch()
    for node in (0, 2):
        told = jobs[node].wait().expect(0).stderr
        assert "restart 1 of" not in told, f"a lost machine is no failure of an elastic job\n{told}"
    assert results(cluster.folder) == uninterrupted()


def test_an_elastic_job_whose_first_node_is_lost_starts_again_under_the_next(
    cluster: Cluster, wait_until: WaitUntil
) -> None:
    """The store is lost with it, and with that the places where ranks meet: all restart, and it is said."""
    program = (cluster.python, SESSION, cluster.folder, str(STEPS), "*.*@2:see go")
    jobs = cluster.launch(4, *program, last_call=QUICKLY, nodes=RANGE)
    wait_until(lambda: cluster.has_done(2), 60, lambda: f"two steps\n{jobs[0].stderr}")
    kill_node(jobs[0])
    told = [f"the node that led the job, at {cluster.nodes[0].ipv4}:{PORT}, was lost", "now leads the job"]
    wait_until(lambda: told[1] in jobs[1].stderr + jobs[2].stderr, 60, lambda: jobs[1].stderr)
    (cluster.folder / "go").touch()
    for node in (1, 2):
        assert told[0] in jobs[node].wait().expect(0).stderr
    assert results(cluster.folder) == uninterrupted()


def test_the_smaller_side_of_a_cut_does_not_train_on(cluster: Cluster, wait_until: WaitUntil) -> None:
    """It has the coordinator and spares enough for all ranks; the others, a majority, go on without it."""
    program = (cluster.python, SESSION, cluster.folder, str(STEPS), "*.*@2:see go")
    jobs = cluster.launch(4, *program, last_call=QUICKLY, nodes=RANGE, missed=ON_SILENCE)
    wait_until(lambda: cluster.has_done(2), 60, lambda: f"two steps\n{jobs[0].stderr}")
    cluster.network.cut_link(cluster.nodes[0])
    wait_until(lambda: "the others may continue without this side" in jobs[0].stderr, 60, lambda: jobs[0].stderr)
    wait_until(lambda: "now leads the job" in jobs[1].stderr + jobs[2].stderr, 60, lambda: jobs[1].stderr)
    (cluster.folder / "go").touch()
    for node in (1, 2):
        jobs[node].wait().expect(0)
    # Silence of the two may be noticed one after the other: then ranks of the first begin to move, and never meet.
    assert "recovered in" not in jobs[0].stderr
    assert results(cluster.folder) == uninterrupted()


class Training:
    """tests/elastic/scripts/train.py on a cluster, whose ranks are forked."""

    def __init__(self, cluster: Cluster, forked: Path) -> None:
        self.cluster = cluster
        self.forked = forked

    def start(self, folder: Path, case: str, epochs: int, pace: float = 0.01, missed: int = PATIENTLY) -> list[Running]:
        folder.mkdir()
        self.cluster.folder = folder
        env: dict[str, str | None] = {"RESULTS": str(folder), "EPOCHS": str(epochs), "PACE": str(pace)}
        return self.cluster.launch(2 * RANKS, self.forked, TRAIN, case, env=env, missed=missed)

    def on_one_machine(self, folder: Path, case: str, epochs: int, ranks: int | None = None) -> list[dict[str, Any]]:
        """What the training ends with where nothing happens."""
        folder.mkdir()
        world = str(ranks or RANKS * len(self.cluster.nodes))
        env = {"OMP_NUM_THREADS": "1", "RESULTS": str(folder), "EPOCHS": str(epochs)}
        options = ("run", "--standalone", "--nproc-per-node", world, "--no-python")
        self.cluster.runner(self.cluster.instep, *options, self.forked, TRAIN, case, env=env).expect(0)
        return ended(folder)


@pytest.fixture
def training(cluster: Cluster, forked: Path) -> Training:
    return Training(cluster, forked)


def ended(folder: Path) -> list[dict[str, Any]]:
    """What each rank ended with."""
    found = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in found]


def check(found: list[dict[str, Any]], expected: list[dict[str, Any]], said: str) -> None:
    """The bits are those of a training that nobody has disturbed."""
    assert len(found) == len(expected), said
    for rank, wanted in zip(found, expected, strict=True):
        for key in ("digest", "steps", "rates", "scale"):
            assert rank[key] == wanted[key], f"{key}\n{said}"


def have_trained(folder: Path, ranks: int = 6) -> bool:
    return len(list(folder.glob("*.ok"))) == ranks


def test_the_bits_are_the_same_after_a_node_was_killed(
    training: Training, wait_until: WaitUntil, tmp_path: Path
) -> None:
    """BatchNorm has statistics that only one rank has: a peer on the next node keeps them."""
    folder, case, epochs = tmp_path / "disturbed", "adam-norm-dropout", 12
    jobs = training.start(folder, case, epochs)
    wait_until(lambda: have_trained(folder), 60, lambda: f"a step\n{jobs[0].stderr}")
    kill_node(jobs[1])
    told: list[Result] = [jobs[node].wait().expect(0) for node in (0, 2)]
    assert "recovered in " in told[0].stderr
    check(ended(folder), training.on_one_machine(tmp_path / "calm", case, epochs), told[0].stderr)


@pytest.mark.soak
@pytest.mark.parametrize(("frozen", "token"), [("launcher", False), ("launcher", True), ("machine", True)])
def test_ranks_that_come_back_after_others_took_their_places_change_no_bit(
    training: Training,
    wait_until: WaitUntil,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frozen: str,
    token: bool,
) -> None:
    """The launcher is stopped while its ranks train, or everything of its machine is; both come back."""
    if not token:
        monkeypatch.delenv("INSTEP_JOB_TOKEN_FILE")
    folder, case, epochs = tmp_path / "disturbed", "adam-norm-dropout", 200
    jobs = training.start(folder, case, epochs, pace=0.05, missed=ON_SILENCE)
    wait_until(lambda: have_trained(folder), 60, lambda: f"a step\n{jobs[0].stderr}")
    old = [psutil.Process(int((folder / f"{rank}.ok").read_text())) for rank in (2, 3)]
    stopped = [psutil.Process(jobs[1].pid), *(old if frozen == "machine" else ())]
    for process in stopped:
        process.suspend()
    wait_until(lambda: "recovered in " in jobs[0].stderr, 60, lambda: jobs[0].stderr)
    # With a token their launcher relays the store: they wait for it, and learn the same when it is back.
    if frozen == "launcher" and not token:
        assert not psutil.wait_procs(old, FENCED_WITHIN_S)[1], "ranks live on whose places are taken"
    for process in stopped:
        process.resume()
    jobs[1].wait().expect(1)
    assert not psutil.wait_procs(old, FENCED_WITHIN_S)[1], "ranks live on whose places are taken"
    told = [jobs[node].wait().expect(0) for node in (0, 2)]
    assert "restarting" not in told[0].stderr
    check(ended(folder), training.on_one_machine(tmp_path / "calm", case, epochs), told[0].stderr)


@pytest.mark.soak
@pytest.mark.parametrize("how", ["killed", "silent"])
@pytest.mark.parametrize("spares", [0, 1])
def test_the_bits_are_the_same_where_a_node_that_joined_later_goes_on(
    training: Training, wait_until: WaitUntil, tmp_path: Path, how: str, spares: int
) -> None:
    cluster, case, epochs = training.cluster, "adam-norm-dropout", 200
    folder = cluster.folder = tmp_path / "disturbed"
    folder.mkdir()
    env: dict[str, str | None] = {"RESULTS": str(folder), "EPOCHS": str(epochs), "PACE": "0.02"}

    def launch(node: int) -> Running:
        missed = PATIENTLY if how == "killed" else ON_SILENCE
        return cluster.launch_on(
            node, spares, training.forked, TRAIN, case, last_call=SOON, env=env, nodes=LATE, missed=missed
        )

    jobs = [launch(0), launch(1)]
    wait_until(lambda: have_trained(folder, 2 * RANKS), 60, lambda: f"a step\n{jobs[0].stderr}")
    late = launch(2)
    wait_until(lambda: "a new node stands by" in late.stderr, 30, lambda: late.stderr)
    if how == "killed":
        kill_node(jobs[1])
    else:
        cluster.network.cut_link(cluster.nodes[1])
    told = [job.wait(180).expect(0).stderr for job in (jobs[0], late)]
    assert "recovered in " in told[0], told[0]
    assert "stopping the workers" not in told[0], told[0]
    assert cluster.events(2, "rank_replaced"), told[1]
    calm = training.on_one_machine(tmp_path / "calm", case, epochs, ranks=2 * RANKS)
    check(ended(folder), calm, told[0])


CASES = ("adam-dropout", "sgd-norm", "static-views", "scaler-accumulate", "two-zeros", "unused-dropout")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("how", "trainings", "epochs"), [("killed", 30, 60), ("silent", 20, 160)])
def test_a_hundred_nodes_are_lost_and_the_bits_are_the_same(
    training: Training, wait_until: WaitUntil, tmp_path: Path, how: str, trainings: int, epochs: int
) -> None:
    """Two nodes of each training, one after the other, are killed or cut off. Prints how long it took."""
    seed = int(os.environ.get("INSTEP_SEED", random.SystemRandom().randrange(1 << 32)))
    chance, network = random.Random(seed), training.cluster.network
    missed = PATIENTLY if how == "killed" else BY_DEFAULT
    took: list[float] = []
    calm: dict[str, list[dict[str, Any]]] = {}
    for number in range(trainings):
        case, folder = CASES[number % len(CASES)], tmp_path / f"{number}"
        said = f"seed {seed}, training {number}: {case}, {how}\n"
        jobs = training.start(folder, case, epochs, missed=missed)
        wait_until(lambda f=folder: have_trained(f), 60, lambda j=jobs, s=said: s + j[0].stderr)
        for generation, node in enumerate(chance.sample((1, 2), 2), start=1):
            time.sleep(chance.uniform(0.0, 0.5))
            struck = time.time()
            if how == "killed":
                kill_node(jobs[node])
            else:
                network.cut_link(network.nodes[node])

            def recovered(generation: int = generation) -> list[float]:
                events = training.cluster.events(0, "step_recovered")
                return [event["time"] for event in events if event["generation"] == generation]

            wait_until(recovered, 60, lambda j=jobs[0], s=said: s + j.stderr + training.cluster.diagnosis(j))
            [resumed] = recovered()
            took.append(resumed - struck)
        jobs[0].wait(180).expect(0)
        for node in (1, 2):
            jobs[node].wait(60)
            network.mend_link(network.nodes[node])
        if case not in calm:
            calm[case] = training.on_one_machine(tmp_path / f"calm.{number}", case, epochs)
        check(ended(folder), calm[case], said + jobs[0].stderr)
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    print(f"\n{how}: {len(took)} nodes, p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s, max {max(took):.2f} s")
