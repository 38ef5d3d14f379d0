"""A catalogue of hangs and deaths: the report must name the right rank and what keeps it.

Ways of hanging follow each other in one job, with `--hang-after 1`: each is reported by itself, as an event, and then
let go. Of a job that has died, `instep diagnose` is asked about what it left.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from namespaces import Network, network

from conftest import Runner, Running, WaitUntil

__all__ = ["network"]

SCRIPTS = Path(__file__).parent / "scripts"
LATE = 1
# Seconds in which a hang must be reported, on a machine that is busy with other things.
PATIENCE = 25.0

# What keeps whom, by way of hanging. Several ranks where each of them is as much to blame.
IN_USER_CODE = """sleep event_wait lock thread_join subprocess_wait waitpid file_lock busy_loop holds_the_interpreter
    checkpoint_write missed_barrier receive_without_send send_without_receive queued_then_sleep"""
WAITING_FOR_DATA = "queue_get socket_read pipe_read asks_the_user http_request loader_worker loader_inline"
HANGS: dict[str, set[tuple[int, str]]] = {
    **{way: {(LATE, "in_user_code")} for way in IN_USER_CODE.split()},
    **{way: {(LATE, "waiting_for_data")} for way in WAITING_FOR_DATA.split()},
    "skipped_iteration": {(LATE, "deadlock")},
    "both_receive": {(0, "deadlock"), (1, "deadlock")},
    "two_groups": {(0, "deadlock"), (1, "deadlock")},
    "three_groups": {(0, "deadlock"), (1, "deadlock"), (2, "deadlock")},
    "chain": {(2, "in_user_code")},
    "stopped": {(LATE, "stopped")},
    "stopped_inside": {(LATE, "stopped")},
}
DEATHS = {
    "killed": "dead",
    "crashed": "dead",
    "aborted": "dead",
    "left_at_once": "finished",
    "left": "finished",
    "raised": "finished",
    "goes_on_alone": "finished",
    "another_call": "in_another_collective",
}
SAMPLE = ["sleep", "holds_the_interpreter", "loader_worker", "two_groups", "stopped"]


def hang_events(path: Path) -> list[dict[str, Any]]:
    """What the launcher has reported so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == "hang"]


def blamed(findings: list[dict[str, Any]]) -> set[tuple[int, str]]:
    """Whom the first finding blames, and for what."""
    return {(cause["rank"], cause["class"]) for cause in findings[0]["causes"]} if findings else set()


def launch(instep: Path, python: Path, folder: Path, ways: list[str], options: list[str]) -> list[str]:
    script = str(SCRIPTS / "hangs.py")
    front = [str(instep), "run", "--standalone", "--python", str(python), "--nproc-per-node", "3"]
    return [*front, *options, script, str(folder), *ways]


def work_through(ways: list[str], instep: Path, python: Path, tmp_path: Path, run: Runner) -> list[str]:
    """Let ranks hang in all of these ways; gives what was reported wrongly."""
    events = tmp_path / "events.jsonl"
    options = ["--hang-after", "1", "--events", str(events), "--log-dir", "/dev/null"]
    job = run.start(*launch(instep, python, tmp_path, ways, options), env={"INSTEP_RUN_DIR": str(tmp_path / "run")})
    wrong = []
    for number, way in enumerate(ways):
        before = len(hang_events(events))
        deadline = time.monotonic() + PATIENCE + (30 if number == 0 else 0)
        found: set[tuple[int, str]] = set()
        # A second rank may have come to its own operation a moment later: the last report of a hang counts.
        while time.monotonic() < deadline and not found & HANGS[way]:
            assert job.poll() is None, job
            time.sleep(0.1)
            found = blamed(hang_events(events)[-1]["findings"]) if len(hang_events(events)) > before else set()
        if not found or not found <= HANGS[way]:
            wrong.append(f"{way}: expected {HANGS[way]}, the report says {found}")
        (tmp_path / f"go-{number}").touch()
        if way.startswith("stopped"):
            process = process_of(LATE, tmp_path)
            os.kill(process, signal.SIGCONT)
    job.wait().expect(0)
    assert not list((tmp_path / "run" / "jobs").iterdir()), "a job that ends well leaves nothing"
    return wrong


def process_of(rank: int, tmp_path: Path) -> int:
    """The process of a rank, as the launcher has noted it."""
    (job,) = (tmp_path / "run" / "jobs").glob("*/job.json")
    workers = json.loads(job.read_text())["workers"]
    return next(int(worker["process"]) for worker in workers if worker["rank"] == rank)


def die(way: str, instep: Path, python: Path, tmp_path: Path, run: Runner) -> str | None:
    """Let a rank die this way, and ask about what is left; gives what is wrong with the answer."""
    environment = {"INSTEP_RUN_DIR": str(tmp_path / way)}
    ended = run(*launch(instep, python, tmp_path, [way], ["--log-dir", "/dev/null"]), env=environment)
    (folder,) = (tmp_path / way / "jobs").iterdir()
    assert f"instep diagnose {folder}" in ended.stderr
    answer = run(str(instep), "diagnose", str(folder), "--json", env=environment).expect(3)
    found = blamed(json.loads(answer.stdout)["jobs"][0]["diagnosis"]["findings"])
    return None if found == {(LATE, DEATHS[way])} else f"{way}: expected {DEATHS[way]}, the report says {found}"


def test_hangs_are_explained(instep: Path, python: Path, tmp_path: Path, run: Runner) -> None:
    assert work_through(SAMPLE, instep, python, tmp_path, run) == []


@pytest.mark.parametrize("way", ["killed", "left"])
def test_deaths_are_explained(way: str, instep: Path, python: Path, tmp_path: Path, run: Runner) -> None:
    assert die(way, instep, python, tmp_path, run) is None


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_whole_catalogue(instep: Path, python: Path, tmp_path: Path, run: Runner) -> None:
    assert len(HANGS) + len(DEATHS) >= 30
    wrong = work_through(list(HANGS), instep, python, tmp_path, run)
    wrong += [text for way in DEATHS if (text := die(way, instep, python, tmp_path, run)) is not None]
    assert len(wrong) <= 1, wrong


def test_the_first_node_says_what_a_rank_of_another_node_does(
    network: Network, instep: Path, python: Path, tmp_path: Path, run: Runner, wait_until: WaitUntil
) -> None:
    options = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "apart", "--python", str(python)]
    options += ["--rdzv-endpoint", f"{network.nodes[0].ipv4}:29400", "--hang-after", "1", "--log-dir", "/dev/null"]
    script = [str(SCRIPTS / "hangs.py"), str(tmp_path), "sleep"]
    events = [tmp_path / f"events-{node}.jsonl" for node in range(2)]

    def start(node: int, ranks: int) -> Running:
        own = ["--node-rank", str(node), "--nproc-per-node", str(ranks), "--events", str(events[node])]
        environment = {"INSTEP_RUN_DIR": str(tmp_path / f"run-{node}")}
        return network.nodes[node].start(run, instep, "run", *options, *own, *script, env=environment)

    first, second = start(0, 1), start(1, 2)

    def reported() -> list[dict[str, Any]]:
        findings = [event["findings"] for event in hang_events(events[0])]
        return [found[0] for found in findings if blamed(found) == {(LATE, "in_user_code")}]

    wait_until(reported, 90, lambda: f"the report\n{first.stderr}\n{second.stderr}")
    (tmp_path / "go-0").touch()
    for node in (first, second):
        node.wait().expect(0)
    assert (reported()[0]["arrived"], reported()[0]["missing"]) == ([0, 2], [LATE])
    # The line of the script, and the stack of a process on the other machine.
    assert f"rank {LATE} (pid " in first.stderr and "hangs.py:" in first.stderr, first
    assert "run `instep diagnose` there" not in first.stderr, first


@pytest.mark.soak
def test_a_cut_cable_is_told_from_ranks_that_do_not_come(
    network: Network, instep: Path, python: Path, tmp_path: Path, run: Runner, wait_until: WaitUntil
) -> None:
    environment = {"INSTEP_RUN_DIR": str(tmp_path / "run")}
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "cut"]
    options += ["--rdzv-endpoint", f"{network.nodes[0].ipv4}:29400", "--python", str(python)]
    script = [str(SCRIPTS / "hangs.py"), str(tmp_path), "reduces_until_it_fails"]
    jobs = [node.start(run, instep, "run", *options, *script, env=environment) for node in network.nodes[:2]]
    wait_until(lambda: all((tmp_path / f"reduced-{rank}").exists() for rank in range(2)), timeout=90)
    network.cut_link(network.nodes[1])
    for job in jobs:
        job.wait().expect(1)
    answer = run(instep, "diagnose", "cut", "--json", env=environment).expect(3)
    (found,) = json.loads(answer.stdout)["jobs"]
    assert blamed(found["diagnosis"]["findings"]) == {(0, "network_cut"), (1, "network_cut")}, answer


@pytest.mark.parametrize(("way", "expected"), [("sleeps", "in_user_code"), ("broadcasts", "in_another_collective")])
def test_a_job_on_gloo_is_explained_by_its_stacks(
    way: str, expected: str, instep: Path, python: Path, tmp_path: Path, run: Runner, wait_until: WaitUntil
) -> None:
    environment = {"INSTEP_RUN_DIR": str(tmp_path / "run"), "PATH": "/usr/bin:/bin"}  # without py-spy
    front = [str(instep), "run", "--standalone", "--python", str(python), "--nproc-per-node", "3"]
    job = run.start(*front, str(SCRIPTS / "unrecorded.py"), str(tmp_path), way, env=environment)
    wait_until(lambda: all((tmp_path / f"ready-{rank}").exists() for rank in range(3)), 90, lambda: job.stderr)

    def diagnosed() -> list[dict[str, Any]]:
        answer = run(instep, "diagnose", str(job.pid), "--json", env=environment)
        findings: list[dict[str, Any]] = json.loads(answer.stdout)["jobs"][0]["diagnosis"]["findings"]
        assert answer.status == (3 if findings else 0), answer
        return findings

    # The others may not have come to the collective yet.
    wait_until(lambda: blamed(diagnosed()) == {(LATE, expected)}, 30, lambda: str(diagnosed()))
    answer = run(instep, "diagnose", str(job.pid), env=environment).expect(3)
    assert answer.stdout.startswith("ranks 0 and 2 wait inside all_reduce at "), answer
    assert "unrecorded.py" in answer.stdout and "no stacks" not in answer.stdout, answer
    assert job.poll() is None, "a job that is diagnosed goes on"


def test_a_script_that_handles_the_signal_itself_is_not_disturbed(
    instep: Path, python: Path, tmp_path: Path, run: Runner, wait_until: WaitUntil
) -> None:
    environment = {"INSTEP_RUN_DIR": str(tmp_path / "run"), "PATH": "/usr/bin:/bin"}
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, sys, time\nfrom pathlib import Path\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "signal.signal(49, lambda *_: (folder / 'disturbed').touch())\n"
        "import torch\n(folder / 'ready').touch()\ntime.sleep(600)\n"
    )
    front = [str(instep), "run", "--standalone", "--python", str(python), "--nproc-per-node", "1"]
    job = run.start(*front, str(script), env=environment)
    wait_until((tmp_path / "ready").exists, 90, lambda: job.stderr)
    run(instep, "diagnose", str(job.pid), env=environment).expect(0)
    assert job.poll() is None and not (tmp_path / "disturbed").exists()
