"""Takeovers of every kind, fifty of them, under reports and a search: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import contextlib
import http.client
import random
import signal
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from conftest import Runner
from detached.conftest import Client
from detached.test_wire import new_trial
from managed.conftest import Cluster
from managed.faults import Work

from .conftest import TAKEOVER_S, Masters, Member, Reporter
from .database import Pair, Way, pair
from .test_search import Addresses, AnyMaster
from .test_takeover import check

REPORTERS = 8
AGENTS = ("one", "two", "three", "four")
TRIALS = 24
# How often each kind: fifty in all.
KINDS = {
    "killed": 14,
    "stopped": 6,
    "cut off": 6,
    "killed at COMMIT": 10,
    "server restarted": 6,
    "standby promoted": 4,
    "ended": 4,
}
# Far more than it takes; on a machine that does nothing else 3 s after a kill and 15 s after a stop.
GENEROUS_S = {"killed": 15.0, "stopped": 40.0}
# After which another master is asked, as clients do.
PATIENCE_S = 5.0


@dataclass
class Seen:
    """When a report was sent that was acknowledged, and when that was known."""

    sent: float
    known: float


class MovingReporter(Reporter):
    """Reports to whichever master answers, each batch until it is acknowledged."""

    masters: Masters
    seen: list[Seen]

    def run(self, stop: threading.Event) -> None:
        """Report until it is told to stop, and never leave one out."""
        self.seen = []
        sequence, turn = 1, self.number
        while not stop.is_set():
            address = self.masters.members[turn % len(self.masters.members)].address
            sent = time.monotonic()
            status, said = self.post(address, sequence)
            if status == 200:
                self.acknowledged = sequence
                self.seen.append(Seen(sent, time.monotonic()))
                sequence += 1
                time.sleep(0.02)
                continue
            if status not in (0, 502, 503):
                self.errors.append(f"{status} {said!r}")
                return
            self.repeated += 1
            turn += 1
            time.sleep(0.05)

    def post(self, address: str, sequence: int) -> tuple[int, bytes]:
        """Send a batch; 0 if there is no answer in time."""
        parts = urlsplit(address)
        assert parts.hostname is not None
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            connection.request("POST", f"/api/v1/trials/{self.trial}/reports", self.batch(sequence), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()


@dataclass
class Stage:
    """Everything that takes part."""

    masters: Masters
    ways: dict[str, Way]
    servers: Pair
    # What was sent to a leader that was stopped, and its answers.
    late: MovingReporter
    asked: list[int]
    repeats: int = 0

    def others(self, leader: Member) -> list[Member]:
        """All but one."""
        return [member for member in self.masters.members if member is not leader]

    def wait_for_another(self, leader: Member) -> None:
        """Wait until another one leads."""
        others = self.others(leader)
        self.masters.wait_until(lambda: any(each.leads() for each in others), TAKEOVER_S, self.masters.told)

    def epoch(self) -> int:
        """What the database says."""
        return int(self.servers.primary.psql(f'SELECT epoch FROM "{self.masters.folder.name}".lease'))


def kill(leader: Member) -> None:
    leader.signal(signal.SIGKILL)
    leader.process.wait()


def killed(stage: Stage, leader: Member) -> float:
    kill(leader)
    begin = time.monotonic()
    stage.wait_for_another(leader)
    leader.process = leader.start()
    return begin


def ended(stage: Stage, leader: Member) -> float:
    begin = time.monotonic()
    leader.signal(signal.SIGTERM)
    leader.process.wait().expect(0)
    stage.wait_for_another(leader)
    leader.process = leader.start()
    return begin


def stopped(stage: Stage, leader: Member) -> float:
    begin = time.monotonic()
    leader.signal(signal.SIGSTOP)

    def ask() -> None:
        stage.asked.append(stage.late.post(leader.address, 1)[0])

    # The kernel takes it for the one that is stopped, which finds it when it wakes.
    threading.Thread(target=ask, daemon=True).start()
    try:
        stage.wait_for_another(leader)
        epoch = stage.epoch()
    finally:
        leader.signal(signal.SIGCONT)
    pid = leader.process.pid
    stage.masters.leader()
    assert stage.epoch() == epoch, "one that wakes takes nothing back"
    assert (leader.process.pid, leader.process.poll()) == (pid, None)
    return begin


def cut_off(stage: Stage, leader: Member) -> float:
    begin = time.monotonic()
    stage.ways[leader.name].cut()
    try:
        stage.wait_for_another(leader)
    finally:
        stage.ways[leader.name].mend()
    return begin


def killed_at_commit(stage: Stage, leader: Member) -> float:
    stage.repeats += 1
    way = stage.ways[leader.name]
    way.at_commit(lambda: leader.signal(signal.SIGKILL), arrives=stage.repeats % 2 == 0)
    stage.masters.wait_until(lambda: not way.waits_for_commit(), 30, "the leader to commit")
    leader.process.wait()
    begin = time.monotonic()
    stage.wait_for_another(leader)
    leader.process = leader.start()
    return begin


def server_restarted(stage: Stage, _leader: Member) -> float:
    stage.servers.primary.control("restart")
    return time.monotonic()


def standby_promoted(stage: Stage, _leader: Member) -> float:
    begin = time.monotonic()
    port = stage.servers.promote().port
    for way in stage.ways.values():
        way.lead_to(port)
    stage.masters.leader()
    stage.servers.add_standby()
    return begin


DO: dict[str, Callable[[Stage, Member], float]] = {
    "killed": killed,
    "stopped": stopped,
    "cut off": cut_off,
    "killed at COMMIT": killed_at_commit,
    "server restarted": server_restarted,
    "standby promoted": standby_promoted,
    "ended": ended,
}


@pytest.fixture
def servers(wait_until: Callable[..., None]) -> Iterator[Pair]:
    with pair(wait_until) as found:
        yield found


@pytest.fixture
def ways(servers: Pair) -> Iterator[dict[str, Way]]:
    """Each master's own way to the server."""
    made = {f"m{number}": Way(servers.primary.port) for number in range(3)}
    yield made
    for way in made.values():
        way.close()


@pytest.fixture
def masters(
    run: Runner, instep: Path, tmp_path: Path, ways: dict[str, Way], wait_until: Callable[..., None]
) -> Iterator[Masters]:
    made = Masters(run, instep, tmp_path, "", wait_until)
    for way in ways.values():
        made.place = f"postgres://determined@127.0.0.1:{way.port}/determined?schema={tmp_path.name}"
        made.start("--checkpoints", str(tmp_path))
    yield made
    for member in made.members:
        if member.process.poll() is None:
            member.signal(signal.SIGCONT)


@pytest.fixture
def cluster(
    run: Runner, instep: Path, python: Path, masters: Masters, tmp_path: Path, wait_until: Callable[..., None]
) -> Iterator[Cluster]:
    leader = masters.leader().client
    token = leader.login().token
    assert token is not None
    (tmp_path / "token").write_text(leader.login("admin")("POST", "/api/v1/agents/tokens", {"name": "all"})["token"])
    known: Any = Addresses(masters)
    made = Cluster(run, instep, python, known, tmp_path, wait_until, AnyMaster(masters, token))
    yield made
    made.end()


@contextlib.contextmanager
def searching(cluster: Cluster, folder: Path, python: Path) -> Iterator[list[str]]:
    """One search after the other, each looked through when it is done; what went wrong is said at the end."""
    stop = threading.Event()
    done, wrong = list[str](), list[BaseException]()

    def search() -> None:
        try:
            while not stop.is_set():
                name = f"search-{len(done) + 1}"
                (folder / name).mkdir()
                work = Work(cluster, folder / name, python)
                searcher = {"name": "random", "metric": "x", "max_trials": TRIALS, "smaller_is_better": False}
                work.begin(searcher=searcher, hyperparameters={"a": {"type": "int", "minval": 1, "maxval": 1000}})
                cluster.wait_for(work.number, "STATE_COMPLETED", 900)
                # `restarts` 0, every metric once, nothing twice.
                work.check(TRIALS)
                done.append(name)
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join(900)
    assert not thread.is_alive()
    if wrong:
        raise wrong[0]


@contextlib.contextmanager
def reporting(masters: Masters, api: Client) -> Iterator[list[MovingReporter]]:
    """Reporters that report without a pause, each to a trial of its own."""
    reporters = [reporter(masters, api, number) for number in range(REPORTERS)]
    stop = threading.Event()
    threads = [threading.Thread(target=each.run, args=(stop,), daemon=True) for each in reporters]
    for thread in threads:
        thread.start()
    try:
        yield reporters
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not [error for each in reporters for error in each.errors]


def reporter(masters: Masters, api: Client, number: int) -> MovingReporter:
    assert api.token is not None
    made = MovingReporter("", api.token, new_trial(api), number)
    made.masters = masters
    return made


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_fifty_takeovers_of_every_kind(
    cluster: Cluster,
    masters: Masters,
    servers: Pair,
    ways: dict[str, Way],
    python: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    for name in AGENTS:
        cluster.agent(name, 1, "--token-file", str(tmp_path / "token"))
    api = masters.leader().client.login()
    stage = Stage(masters, ways, servers, reporter(masters, api, REPORTERS), [])
    todo = [kind for kind, count in KINDS.items() for _ in range(count)]
    random.Random(7).shuffle(todo)
    first, last = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    say("")
    with reporting(masters, api) as reporters, searching(cluster, tmp_path, python) as searches:
        for number, kind in enumerate(todo, 1):
            leader = masters.leader()
            masters.wait_until(lambda: all(len(each.seen) > 3 for each in reporters), 60, "reports")
            begin = DO[kind](stage, leader)

            def answered(since: float = begin) -> list[float]:
                known = [next((seen.known for seen in each.seen if seen.sent >= since), None) for each in reporters]
                return [at - since for at in known if at is not None]

            masters.wait_until(lambda: len(answered()) == REPORTERS, TAKEOVER_S, masters.told)
            now = masters.leader()
            first[kind].append(min(answered()))
            last[kind].append(max(answered()))
            told = f"{leader.name} -> {now.name}, term {now.health()['epoch']}"
            say(f"{number:3} {kind:18} first report {first[kind][-1]:5.2f} s, all {last[kind][-1]:5.2f} s  {told}")
            if kind in GENEROUS_S:
                assert first[kind][-1] < GENEROUS_S[kind]
            time.sleep(0.5)
    api = AnyMaster(masters, str(api.token))
    check(api, [*reporters, stage.late])
    assert 200 not in stage.asked, "one that was replaced wrote"
    acknowledged = sum(each.acknowledged for each in reporters)
    say(f"{len(searches)} searches of {TRIALS} trials; {acknowledged} reports, each there once")
    say(f"{'kind':18} count  first report: median, longest   all reporters: median, longest")
    for kind in KINDS:
        shown = [f"{statistics.median(times):6.2f} {max(times):6.2f}" for times in (first[kind], last[kind])]
        say(f"{kind:18} {len(first[kind]):5}  {shown[0]:>29}   {shown[1]:>30}")
