"""Jobs that some nodes run with Python's torchrun: static ones are shared, c10d ones are told apart."""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path

import pytest

from conftest import Result, Runner, Running, WaitUntil
from ports import free_port

SCRIPTS = Path(__file__).resolve().parent / "scripts"
LAUNCHERS = ("instep", "torchrun")
# Up to five imports of torch at once, also on a busy machine.
TRAINED_WITHIN_S = 150.0
pytestmark = pytest.mark.timeout(240)


class Mixed:
    """Starts nodes of one job under either launcher."""

    def __init__(self, instep: Path, forked: Path, folder: Path, run: Runner) -> None:
        self.folder = folder
        self.port = free_port()
        self._commands = {
            "instep": (str(instep), "run"),
            "torchrun": (str(forked), "-m", "torch.distributed.run"),
        }
        self._run = run
        self._python = str(forked)

    def start(self, launcher: str, options: str, *program: str | Path) -> Running:
        environment = {"PYTHON_EXEC": self._python, "OMP_NUM_THREADS": "1"}
        return self._run.start(*self._commands[launcher], *shlex.split(options), *program, env=environment)

    def static(self, launcher: str, node_rank: int, *arguments: str, workers: int = 2) -> Running:
        options = (
            f"--nnodes 2 --nproc-per-node {workers} --node-rank {node_rank} --rdzv-id mixed"
            f" --master-addr 127.0.0.1 --master-port {self.port}"
        )
        return self.start(launcher, options, SCRIPTS / "gloo_ranks.py", self.folder, *arguments)

    def dynamic(self, launcher: str) -> Running:
        options = f"--nnodes 2 --rdzv-id mixed --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{self.port}"
        program = (SCRIPTS / "puppet.py", self.folder, "ready", "hold")
        return self.start(launcher, f"{options} --rdzv-conf read_timeout=20,join_timeout=40", *program)

    def is_served(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def mixed(instep: Path, forked: Path, tmp_path: Path, run: Runner) -> Mixed:
    return Mixed(instep, forked, tmp_path, run)


def both_end(jobs: list[Running]) -> tuple[Result, Result]:
    first, second = (job.wait(TRAINED_WITHIN_S) for job in jobs)
    return first, second


@pytest.mark.parametrize("first", LAUNCHERS)
def test_static_job_with_torchrun_on_one_node_trains_as_one(mixed: Mixed, first: str) -> None:
    [second] = set(LAUNCHERS) - {first}
    jobs = [mixed.static(first, 0), mixed.static(second, 1)]
    for shown in both_end(jobs):
        shown.expect(0)
    seen = [json.loads((mixed.folder / f"{rank}.json").read_text()) for rank in range(4)]
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE")
    assert [[worker[name] for name in names] for worker in seen] == [
        ["0", "0", "2", "0", "2", "0", "4"],
        ["1", "1", "2", "0", "2", "1", "4"],
        ["2", "0", "2", "1", "2", "2", "4"],
        ["3", "1", "2", "1", "2", "3", "4"],
    ]
    for name, value in (
        ("WORLD_SIZE", "4"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", str(mixed.port)),
        ("TORCHELASTIC_RUN_ID", "mixed"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("TORCHELASTIC_RESTART_COUNT", "0"),
    ):
        assert {worker[name] for worker in seen} == {value}, name


@pytest.mark.parametrize(
    ("first", "failing"),
    [("torchrun", "torchrun"), ("instep", "instep"), pytest.param("instep", "torchrun", marks=pytest.mark.soak)],
)
def test_failure_in_a_mixed_job_ends_both_sides(mixed: Mixed, wait_until: WaitUntil, first: str, failing: str) -> None:
    [second] = set(LAUNCHERS) - {first}
    order = [first, second]
    rank = order.index(failing)
    jobs = [mixed.static(launcher, node, str(rank), workers=1) for node, launcher in enumerate(order)]
    ended = dict(zip(order, both_end(jobs), strict=True))
    for shown in ended.values():
        assert shown.status != 0, shown
    ours = ended["instep"].expect(1)
    assert "panicked" not in ours.stderr, ours
    # torchrun does not tell us what happened on its side: there our own rank is the first to be seen failing.
    assert f"rank      : {order.index('instep')} " in ours.stderr, ours
    if failing == "instep":
        assert "exitcode  : 3 " in ours.stderr, ours
    wait_until(lambda: not any(job.left_behind() for job in jobs), 5, lambda: f"{[j.left_behind() for j in jobs]}")


def test_torchrun_that_tries_to_join_our_dynamic_job_is_refused_and_we_say_so(
    mixed: Mixed, wait_until: WaitUntil
) -> None:
    ours = mixed.dynamic("instep")
    wait_until(mixed.is_served, 10, lambda: ours.stderr)
    theirs = mixed.dynamic("torchrun").wait(TRAINED_WITHIN_S)
    assert theirs.status != 0, theirs
    # The refusal may reach torchrun first.
    wait_until(lambda: "Python's torchrun tried to join this c10d job" in ours.stderr, 30, lambda: ours.stderr)
    assert "use --rdzv-backend static" in ours.stderr, ours.stderr
    # The job itself is unharmed: a node of our own can still join.
    assert ours.poll() is None, ours.stderr
    assert not list(mixed.folder.glob("*.ready"))


def test_our_node_does_not_join_the_dynamic_job_of_torchrun_and_says_why(mixed: Mixed, wait_until: WaitUntil) -> None:
    theirs = mixed.dynamic("torchrun")
    wait_until(mixed.is_served, 60, lambda: theirs.stderr)
    ours = mixed.dynamic("instep").wait(30).expect(1)
    message = f"error: the endpoint 127.0.0.1:{mixed.port} is served by Python's torchrun"
    assert ours.stderr.count(message) == 1, ours
    assert "hint: run instep on all nodes, or use --rdzv-backend static" in ours.stderr, ours
    assert theirs.poll() is None, theirs.stderr
