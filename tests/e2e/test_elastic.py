"""Elastic jobs: nodes that vanish, leave, come and fall silent, and a first node that is lost, as users see them.

Each test prints the seconds from the fault to the first worker of the next round.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from namespaces import Network, Node

from conftest import ROOT, Runner, Running, WaitUntil, with_token

MEMBER = Path(__file__).resolve().parent / "scripts" / "member.py"
PORT = 29603
# Short, so that tests are quick; long enough for a busy machine, whose virtual processors can stand still for seconds.
INTERVAL_S, ATTEMPTS = 0.5, 9
WINDOW_S = INTERVAL_S * ATTEMPTS
CONF = f"keep_alive_interval={INTERVAL_S},keep_alive_max_attempt={ATTEMPTS},last_call_timeout=1,settle_time=0.3"


class Job:
    """One elastic job on some machines."""

    def __init__(self, network: Network, instep: Path, python: Path, run: Runner, folder: Path) -> None:
        self.network = network
        self.nodes = network.nodes
        self.folder = folder
        self._instep = instep
        self._run = run
        self._environment: Mapping[str, str | None] = {
            "PYTHON_EXEC": str(python),
            "OMP_NUM_THREADS": "1",
        }

    def launch(
        self, node: Node, nodes: str, *program: str | Path, conf: str = "", options: str = "", cwd: Path | None = None
    ) -> Running:
        words = (
            f"--nnodes {nodes} --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint {self.nodes[0].ipv4}:{PORT}"
            f" --rdzv-id elastic --rdzv-conf {CONF}{conf} --no-status {options}"
        )
        command = program or (MEMBER, self.folder)
        return node.start(self._run, self._instep, "run", *shlex.split(words), *command, env=self._environment, cwd=cwd)

    def start(self, nodes: str, count: int, wait_until: WaitUntil, **more: str) -> list[Running]:
        """One launcher on each of the first `count` machines, in order; all of their workers run."""
        jobs = [self.launch(node, nodes, **more) for node in self.nodes[:count]]
        self.running(count, jobs, wait_until)
        return jobs

    def worlds(self) -> dict[int, list[dict[str, str]]]:
        """What the workers alive say of themselves, by their process id."""
        found = []
        for path in self.folder.glob("*.member"):
            member = json.loads(path.read_text())
            if member["began"] == began(member["pid"]):
                found.append(member)
        worlds: dict[int, list[dict[str, str]]] = {}
        for member in found:
            worlds.setdefault(int(member["WORLD_SIZE"]), []).append(member)
        return worlds

    def whole(self, size: int) -> bool:
        """Whether exactly one round of this size runs, with every rank once."""
        worlds = self.worlds()
        ranks = sorted(int(member["RANK"]) for member in worlds.get(size, []))
        return list(worlds) == [size] and ranks == list(range(size))

    def running(self, size: int, jobs: Sequence[Running], wait_until: WaitUntil, limit: float = 40) -> None:
        wait_until(
            lambda: self.whole(size),
            limit,
            lambda: f"{size} workers, there are {self.worlds()}\n" + "\n---\n".join(job.stderr for job in jobs),
        )

    def finish(self, jobs: Sequence[Running]) -> int:
        """Let the workers end, and expect that all launchers end well with the right result; return its steps."""
        (self.folder / "end").touch()
        for job in jobs:
            job.wait(20).expect(0)
        collision = self.folder / "collision"
        assert not collision.exists(), collision.read_text()
        steps = max(int(path.name) for path in (self.folder / "chain").iterdir() if path.name.isdigit())
        value = 0
        for _ in range(steps):
            value = (value * 6364136223846793005 + 1442695040888963407) % 2**64
        assert (self.folder / "chain" / str(steps)).read_text() == str(value)
        return steps

    def recovered(self, size: int, jobs: Sequence[Running], wait_until: WaitUntil, what: str) -> float:
        since = time.monotonic()
        self.running(size, jobs, wait_until)
        seconds = time.monotonic() - since
        print(f"{what}: {seconds:.2f} s until {size} workers run again")
        return seconds


@pytest.fixture
def job(instep: Path, python: Path, run: Runner, tmp_path: Path) -> Iterator[Job]:
    """Three machines."""
    network = Network(nodes=3)
    try:
        network.create()
        yield Job(network, instep, python, run, tmp_path)
    finally:
        run.kill_all()
        network.remove()


def began(pid: str) -> str | None:
    """When a process started, in ticks since the machine did; None if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return None


def kill_node(job: Running) -> None:
    """Everything of one launcher at once, as if its machine had been switched off; its system still answers."""
    left = job.left_behind()
    job.send_signal(signal.SIGKILL)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def test_killed_worker_costs_a_restart(job: Job, wait_until: WaitUntil) -> None:
    jobs = job.start("1:3", 2, wait_until, options="--max-restarts 1")
    victim = next(member for member in job.worlds()[2] if member["RANK"] == "1")
    os.kill(int(victim["pid"]), signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{victim['pid']}").exists() or not job.whole(2), 5)
    job.recovered(2, jobs, wait_until, "worker killed")
    assert {member["TORCHELASTIC_RESTART_COUNT"] for member in job.worlds()[2]} == {"1"}
    job.finish(jobs)
    assert "restart 1 of 1" in jobs[0].stderr, jobs[0].stderr


def test_killed_launcher_is_noticed_at_once_and_can_come_back(job: Job, wait_until: WaitUntil) -> None:
    jobs = job.start("1:3", 3, wait_until)
    kill_node(jobs[2])
    assert job.recovered(2, jobs[:2], wait_until, "launcher killed") < 10
    assert "was lost: its connection broke" in jobs[0].stderr, jobs[0].stderr
    assert re.search(r"round \d+: 2 nodes, 2 workers; .* s without workers", jobs[1].stderr), jobs[1].stderr
    again = job.launch(job.nodes[2], "1:3")
    job.recovered(3, [*jobs[:2], again], wait_until, "node added")
    # Nothing failed: no restart was paid, although none was allowed.
    assert {member["TORCHELASTIC_RESTART_COUNT"] for member in job.worlds()[3]} == {"0"}
    job.finish([*jobs[:2], again])


def test_spare_steps_in_for_a_node_that_drains(job: Job, wait_until: WaitUntil, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    jobs = job.start("1:2", 2, wait_until, options=f"--events {events}")
    spare = job.launch(job.nodes[2], "1:2")
    wait_until(lambda: "waits as a spare" in spare.stderr, 10, lambda: spare.stderr)
    jobs[1].send_signal(signal.SIGTERM)
    job.running(2, [jobs[0], spare], wait_until)
    jobs[1].wait(10).expect(1)
    assert (tmp_path / "1.SIGTERM").exists(), "its worker had the time to save"
    assert "is draining: received SIGTERM" in jobs[0].stderr, jobs[0].stderr
    wait_until(lambda: "this is node 1" in spare.stderr, 10, lambda: spare.stderr)
    job.finish([jobs[0], spare])
    seen = [json.loads(line) for line in events.read_text().splitlines()]
    names = {event["event"] for event in seen}
    assert {"node_joined", "round_started", "draining", "node_left", "round_stopped", "completed"} <= names, names
    assert all(event["time"] > 1.7e9 and event["elapsed"] >= 0 for event in seen)


@pytest.mark.parametrize("how", ["killed", "drained"])
def test_first_node_is_lost_and_the_job_goes_on(job: Job, wait_until: WaitUntil, how: str) -> None:
    jobs = job.start("1:3", 3, wait_until)
    if how == "killed":
        kill_node(jobs[0])
    else:
        jobs[0].send_signal(signal.SIGTERM)
    job.recovered(2, jobs[1:], wait_until, f"first node {how}")
    addresses = {(member["INSTEP_MASTER_ADDR"] or member["MASTER_ADDR"], member["RANK"]) for member in job.worlds()[2]}
    assert addresses == {(job.nodes[1].ipv4, "0"), (job.nodes[1].ipv4, "1")}
    assert "this node now leads the job" in jobs[1].stderr, jobs[1].stderr
    if how == "drained":
        jobs[0].wait(10).expect(1)
    # A newcomer that only knows the endpoint finds the job where it has moved to.
    again = job.launch(job.nodes[0], "1:3")
    job.recovered(3, [*jobs[1:], again], wait_until, "the endpoint's node is back")
    job.finish([*jobs[1:], again])


def test_first_node_falls_silent_and_comes_back(job: Job, wait_until: WaitUntil) -> None:
    jobs = job.start("1:3", 3, wait_until)
    stale = next(int(member["pid"]) for member in job.worlds()[3] if member["RANK"] == "0")
    job.network.cut_link(job.nodes[0])
    wait_until(lambda: not Path(f"/proc/{stale}").exists(), WINDOW_S * 4, "the worker behind the cut link to end")
    job.recovered(2, jobs[1:], wait_until, "first node silent")
    wait_until(lambda: "may have continued without this side" in jobs[0].stderr, 10, lambda: jobs[0].stderr)
    job.network.mend_link(job.nodes[0])
    job.recovered(3, jobs, wait_until, "link healed after the window")
    job.finish(jobs)


def test_short_cut_of_a_link_changes_nothing(job: Job, wait_until: WaitUntil) -> None:
    jobs = job.start("1:3", 2, wait_until)
    before = {member["pid"] for member in job.worlds()[2]}
    job.network.cut_link(job.nodes[1])
    time.sleep(WINDOW_S / 3)
    job.network.mend_link(job.nodes[1])
    time.sleep(WINDOW_S * 1.5)
    assert {member["pid"] for member in job.worlds()[2]} == before, jobs[0].stderr
    job.finish(jobs)


def test_half_of_two_waits_for_the_other_half(job: Job, wait_until: WaitUntil) -> None:
    jobs = job.start("1:2", 2, wait_until, conf=",join_timeout=5")
    job.network.cut_link(job.nodes[1])
    # The side of the first node goes on, the other one gives up and says what it does not know.
    job.running(1, jobs, wait_until)
    shown = jobs[1].wait(WINDOW_S * 2 + 20).expect(1)
    assert "may have continued without this side" in shown.stderr, shown
    job.finish(jobs[:1])


def test_minimum_is_gathered_again_after_everyone_else_was_killed(job: Job, wait_until: WaitUntil) -> None:
    jobs = job.start("2:3", 3, wait_until)
    for victim in jobs[1:]:
        kill_node(victim)
    reason = re.compile(r"waiting for 1 more node: 1 of 2 have joined .*; gone: .*its connection broke")
    wait_until(lambda: reason.search(jobs[0].stderr) is not None, 10, lambda: jobs[0].stderr)
    again = job.launch(job.nodes[1], "2:3")
    job.recovered(2, [jobs[0], again], wait_until, "the minimum is back")
    job.finish([jobs[0], again])


def test_minimum_that_never_comes_is_named(job: Job) -> None:
    started = time.monotonic()
    shown = job.launch(job.nodes[0], "2:3", conf=",join_timeout=2").wait(15).expect(1)
    assert time.monotonic() - started < 10
    assert re.search(r"gave up after 2 s waiting for 1 more node: 1 of 2 have joined \(.*, pid \d+\)", shown.stderr), (
        shown
    )


def test_job_of_the_same_name_with_other_options_is_refused(job: Job, wait_until: WaitUntil) -> None:
    jobs = job.start("1:3", 1, wait_until)
    for other, conf, explanation in [
        ("1:2", "", "the job was started with --nnodes 1:3, that node with --nnodes 1:2"),
        ("1:3", ",quorum=min", "--rdzv-conf quorum=majority, that node with --rdzv-conf quorum=min"),
    ]:
        shown = job.launch(job.nodes[1], other, conf=conf).wait(15).expect(1)
        # Whoever has proved the token may know what differs.
        if not with_token(sys.modules[__name__]):
            assert "options or version of instep are not those of the job" in shown.stderr, shown
            assert "1:3" not in shown.stderr and "majority" not in shown.stderr, shown

        def is_explained(explanation: str = explanation) -> bool:
            return explanation in jobs[0].stderr

        wait_until(is_explained, 10, lambda: jobs[0].stderr)
    job.finish(jobs)


def test_events_that_cannot_be_written_are_an_error_at_the_start(instep: Path, run: Runner, tmp_path: Path) -> None:
    shown = run(instep, "run", "--events", tmp_path / "no" / "such.jsonl", "--no-python", "true").expect(1)
    assert "error: cannot write events to" in shown.stderr and "hint: choose a file for --events" in shown.stderr, shown


EPOCHS = 40


class Training:
    """The tutorial's training in an elastic job, an epoch at a time, and what happens to it."""

    def __init__(self, job: Job, folder: Path, wait_until: WaitUntil, options: str) -> None:
        self.job = job
        self._options = options
        self.launchers: dict[int, Running] = {}
        self.costs: list[tuple[str, float]] = []
        self._scripts = shutil.copytree(ROOT / "examples" / "ddp", folder / "ddp", ignore=shutil.ignore_patterns("__*"))
        shutil.copy(MEMBER.with_name("elastic_training.py"), self._scripts)
        self._folder = folder
        self._wait_until = wait_until
        self._allowed = 0
        self._allow(1)

    def _allow(self, epochs: int) -> None:
        self._allowed = epochs
        fresh = self._folder / "allowed.new"
        fresh.write_text(str(epochs))
        fresh.replace(self._folder / "allowed")

    def launch(self, *numbers: int) -> None:
        for number in numbers:
            script = (self._scripts / "elastic_training.py", str(EPOCHS), self._folder)
            self.launchers[number] = self.job.launch(self.job.nodes[number], "2:3", *script, options=self._options)

    def progress(self) -> list[dict[str, float]]:
        path = self._folder / "progress"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def stderr(self) -> str:
        return "\n---\n".join(f"node {number}\n{one.stderr}" for number, one in self.launchers.items())

    @contextmanager
    def survives(self, what: str, world: int, *, same: bool = False) -> Iterator[None]:
        """What the block does is followed by an epoch of so many ranks: in a new round, or in the `same`."""
        before, since = self.progress(), time.time()
        last = before[-1]["pid"] if before else 0
        yield
        self._allow(self._allowed + 1)

        def trained() -> bool:
            lines = self.progress()[len(before) :]
            if lines and lines[-1]["epoch"] + 1 == self._allowed:
                # It may have been the old round.
                self._allow(self._allowed + 1)
            wanted = [line for line in lines if (line["pid"] == last) == same]
            return bool(wanted) and wanted[-1]["world"] == world

        self._wait_until(trained, 90, lambda: f"{what}: {self.progress()}\n{self.stderr()}")
        self.costs.append((what, self.progress()[-1]["time"] - since))

    def kill_worker(self, rank: int) -> None:
        os.kill(int((self._folder / f"worker.{rank}").read_text()), signal.SIGKILL)

    def says(self, number: int, text: str) -> None:
        self._wait_until(lambda: text in self.launchers[number].stderr, 40, self.stderr)

    def lose(self, number: int) -> None:
        kill_node(self.launchers.pop(number))

    def finish(self) -> float:
        self._allow(EPOCHS)
        for one in self.launchers.values():
            one.wait(60).expect(0)
        return float((self._folder / "loss").read_text())


# The soak form has all of the faults, real interpreters, and spares for them.
@pytest.mark.timeout(400)
@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["some", "all"])
def test_training_survives_everything_and_ends_with_the_same_loss(
    instep: Path, python: Path, forked: Path, run: Runner, wait_until: WaitUntil, tmp_path: Path, everything: bool
) -> None:
    network = Network(nodes=4)
    try:
        network.create()
        folders = [tmp_path / "undisturbed", tmp_path / "disturbed"]
        for folder in folders:
            folder.mkdir()
        job = Job(network, instep, python if everything else forked, run, tmp_path)
        options = "--max-restarts 1 --preload torch" if everything else "--max-restarts 1"
        undisturbed = Training(job, folders[0], wait_until, options)
        undisturbed.launch(0, 1)
        expected = undisturbed.finish()

        training = Training(job, folders[1], wait_until, options)
        with training.survives("start", 3):
            training.launch(0, 1, 2)
        if everything:
            lose_nodes_and_links(training, network)
        with training.survives("worker killed", 3):
            training.kill_worker(1)
        with training.survives("first node lost", 2):
            training.lose(0)
        with training.survives("first node returns", 3):
            training.launch(0)
        loss = training.finish()
        for what, seconds in training.costs:
            print(f"{what:<36} {seconds:6.2f} s until an epoch is trained")
        assert loss == pytest.approx(expected, rel=1e-4), (loss, expected)
    finally:
        run.kill_all()
        network.remove()


def lose_nodes_and_links(training: Training, network: Network) -> None:
    """Faults one after the other, from three nodes to three nodes."""
    nodes = network.nodes
    training.launch(3)
    training.says(3, "waits as a spare")
    with training.survives("node drained, a spare steps in", 3):
        leaving = training.launchers.pop(2)
        leaving.send_signal(signal.SIGTERM)
    leaving.wait(20).expect(1)
    with training.survives("launcher killed, a node less", 2):
        training.lose(3)
    with training.survives("node added", 3):
        training.launch(2)
    with training.survives("link cut for less than the window", 3, same=True):
        network.cut_link(nodes[1])
        time.sleep(WINDOW_S / 3)
        network.mend_link(nodes[1])
    with training.survives("link cut for long", 2):
        network.cut_link(nodes[1])
    with training.survives("link healed", 3):
        network.mend_link(nodes[1])
    training.lose(1)
    training.lose(2)
    training.says(0, "waiting for 1 more node: 1 of 2 have joined")
    with training.survives("all but one lost, one returns", 2):
        training.launch(1)
    with training.survives("another returns", 3):
        training.launch(2)


def belongings(job: Running) -> tuple[int, int, int]:
    """Open files, threads and KiB of memory of a launcher."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{job.pid}/status").read_text().splitlines())
    return len(list(Path(f"/proc/{job.pid}/fd").iterdir())), int(status["Threads"]), int(status["RssAnon"].split()[0])


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_random_faults_for_a_long_time(
    instep: Path, python: Path, run: Runner, wait_until: WaitUntil, tmp_path: Path
) -> None:
    """Four machines, a fault every 15 s for SOAK_SECONDS; then everything runs again, and nothing has leaked."""
    seconds = float(os.environ.get("SOAK_SECONDS", "120"))
    seed = int(os.environ.get("SEED", str(time.time_ns() % 2**32)))
    print(f"SEED={seed}")
    chance = random.Random(seed)
    network = Network(nodes=4)
    try:
        network.create()
        job = Job(network, instep, python, run, tmp_path)
        options = "--max-restarts 100000"
        jobs = {number: job.launch(node, "2:4", options=options) for number, node in enumerate(job.nodes)}
        job.running(4, list(jobs.values()), wait_until)
        held = {number: belongings(one) for number, one in jobs.items()}
        faults = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            number = chance.randrange(4)
            fault = chance.choice(["worker", "launcher", "drain", "cut"])
            print(f"{fault} on node {number}")
            faults += 1
            if fault == "worker":
                chance.choice(jobs[number].children()).kill()
            elif fault == "cut":
                network.cut_link(job.nodes[number])
                time.sleep(WINDOW_S * chance.choice([0.3, 3]))
                network.mend_link(job.nodes[number])
            else:
                if fault == "drain":
                    jobs[number].send_signal(signal.SIGTERM)
                    jobs[number].wait(60)
                else:
                    kill_node(jobs[number])
                    jobs[number].wait(60)
                del held[number]
                time.sleep(chance.random() * 3)
                jobs[number] = job.launch(job.nodes[number], "2:4", options=options)
            job.running(4, list(jobs.values()), wait_until, limit=60)
            for other, one in jobs.items():
                held.setdefault(other, belongings(one))
            time.sleep(chance.random() * 15)
        for number, one in jobs.items():
            files, threads, memory = (now - before for now, before in zip(belongings(one), held[number], strict=True))
            print(f"node {number} since it came: {files:+} files, {threads:+} threads, {memory:+} KiB")
            assert files <= 8 and threads <= 4 and memory <= 8192
        steps = job.finish(list(jobs.values()))
        print(f"{faults} faults in {seconds:.0f} s, {steps} steps")
    finally:
        run.kill_all()
        network.remove()
