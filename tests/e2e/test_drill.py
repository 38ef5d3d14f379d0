"""`instep drill` and `instep run --drill`: ranks are killed on purpose; the report says whether the job resumed."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from conftest import Runner, WaitUntil

# Goes on where it was if it has a snapshot, as the examples do; a step takes 20 ms.
RESTARTABLE = """
import os, sys, time
from pathlib import Path
steps, snapshot = int(sys.argv[1]), Path(sys.argv[2] + os.environ["RANK"])
first = int(snapshot.read_text()) if snapshot.exists() else 0
for step in range(first, steps):
    print(f"step {step}", flush=True)
    time.sleep(0.02)
    snapshot.with_suffix(".new").write_text(str(step + 1))
    snapshot.with_suffix(".new").rename(snapshot)
"""
# Begins from the start each time, and its first line is another one each time.
FORGETFUL = """
import os, sys, time
print(f"pid {os.getpid()} at {time.time()}", flush=True)
for step in range(int(sys.argv[1])):
    print(f"step {step}", flush=True)
    time.sleep(0.02)
"""
# Says nothing about how far it is.
SECRETIVE = """
import os, sys, time
print(f"pid {os.getpid()}", flush=True)
for _ in range(int(sys.argv[1])):
    print("working", flush=True)
    time.sleep(0.02)
"""


@pytest.fixture
def restartable(tmp_path: Path) -> Path:
    path = tmp_path / "restartable.py"
    path.write_text(RESTARTABLE)
    return path


def test_a_script_that_goes_on_passes(
    run: Runner, instep: Path, python: Path, tmp_path: Path, restartable: Path
) -> None:
    found = tmp_path / "found.json"
    job = [instep, "run", "--python", python, "--nproc-per-node", "2", restartable, "150", tmp_path / "snapshot"]
    result = run(instep, "drill", "--kill-rank", "500ms", "--times", "3", "--json", found, "--", *job).expect(0)
    report = json.loads(found.read_text())
    assert len(report["kills"]) == 3, result
    assert report["restarts"] == 3
    for kill in report["kills"]:
        assert kill["kind"] == "kill-rank"
        assert len(kill["ranks"]) == 1
        assert 0 <= kill["restarted_after_seconds"] <= kill["first_line_after_seconds"]
        # A kill may come before rank 0 has got anywhere.
        assert kill["resumed"] in (True, None), result
    assert report["resumes"] == sum(kill["resumed"] is True for kill in report["kills"]) > 0, result
    assert re.fullmatch(r"step \d+", report["kills"][-1]["progress_after"])
    assert 0 < report["share_at_work"] < 1
    assert "restarted after 3 of 3 kills, resumed after " in result.stderr
    # Every step was done, and the last ones once each.
    assert {f"step {step}" for step in range(150)} <= set(result.stdout.splitlines())


def test_the_same_seed_gives_the_same_choices(
    run: Runner, instep: Path, python: Path, tmp_path: Path, restartable: Path
) -> None:
    chosen = []
    for attempt in range(2):
        found = tmp_path / f"found{attempt}.json"
        options = ["--nproc-per-node", "4", "--max-restarts", "3", "--python", python]
        drill = ["--drill", "kill-rank=300ms,seed=11", "--drill-json", found]
        run(instep, "run", *options, *drill, restartable, "100", tmp_path / f"snapshot{attempt}").expect(0)
        chosen.append([kill["ranks"] for kill in json.loads(found.read_text())["kills"]])
    assert len(chosen[0]) == 3
    assert chosen[0] == chosen[1]


def test_a_script_that_starts_over_has_not_resumed_whatever_its_first_line_is(
    run: Runner, instep: Path, python: Path, tmp_path: Path
) -> None:
    script, found = tmp_path / "forgetful.py", tmp_path / "found.json"
    script.write_text(FORGETFUL)
    # Killed when it is some steps far, also where an interpreter takes a second to start.
    job = [instep, "run", "--python", python, script, "120"]
    drill = ["--kill-rank", "2s", "--times", "1", "--json", found]
    result = run(instep, "drill", *drill, "--", *job).expect(0)
    [kill] = json.loads(found.read_text())["kills"]
    assert (kill["resumed"], kill["progress_after"]) == (False, "step 0"), result
    assert f"no: at step 0 again, killed at {kill['progress_before']}\n" in result.stderr
    assert "restarted after 1 of 1 kills, resumed after 0;" in result.stderr
    assert "hint: the job started over: " in result.stderr


def test_where_no_step_is_printed_it_cannot_be_known_whether_the_job_resumed(
    run: Runner, instep: Path, python: Path, tmp_path: Path
) -> None:
    script, found = tmp_path / "secretive.py", tmp_path / "found.json"
    script.write_text(SECRETIVE)
    job = [instep, "run", "--python", python, script, "60"]
    drill = ["--kill-rank", "400ms", "--times", "1", "--json", found]
    result = run(instep, "drill", *drill, "--", *job).expect(0)
    [kill] = json.loads(found.read_text())["kills"]
    assert kill["resumed"] is None, result
    assert "unknown: no step or epoch printed\n" in result.stderr
    assert "restarted after 1 of 1 kills, resumed after 0 (1 unknown);" in result.stderr
    assert "hint: print the step or the epoch" in result.stderr


def test_the_median_of_two_times_lies_between_them(
    run: Runner, instep: Path, python: Path, tmp_path: Path, restartable: Path
) -> None:
    found = tmp_path / "found.json"
    job = [instep, "run", "--python", python, restartable, "100", tmp_path / "snapshot"]
    result = run(instep, "drill", "--kill-rank", "300ms", "--times", "2", "--json", found, "--", *job).expect(0)
    report = json.loads(found.read_text())
    first, second = (kill["first_line_after_seconds"] for kill in report["kills"])
    assert report["median_first_line_after_seconds"] == pytest.approx((first + second) / 2), result


def test_a_whole_node_is_lost(run: Runner, instep: Path, python: Path, tmp_path: Path, restartable: Path) -> None:
    found = tmp_path / "found.json"
    job = [instep, "run", "--python", python, "--nproc-per-node", "2", restartable, "100", tmp_path / "snapshot"]
    result = run(instep, "drill", "--kill-node", "500ms", "--times", "1", "--json", found, "--", *job).expect(0)
    [kill] = json.loads(found.read_text())["kills"]
    assert (kill["kind"], kill["ranks"]) == ("kill-node", [0, 1]), result


def test_a_drill_that_killed_nobody_fails(
    run: Runner, instep: Path, python: Path, tmp_path: Path, restartable: Path
) -> None:
    job = [instep, "run", "--python", python, restartable, "2", tmp_path / "snapshot"]
    result = run(instep, "drill", "--kill-rank", "5h", "--", *job).expect(1)
    assert "the job ended before the first kill" in result.stderr
    assert "hint: make the job longer, or kill sooner: instep drill --every " in result.stderr


def test_the_exit_code_is_the_jobs(run: Runner, instep: Path, python: Path, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit(7)\n")
    job = [instep, "run", "--python", python, "--propagate-exit-code", script]
    result = run(instep, "drill", "--kill-rank", "5h", "--", *job).expect(7)
    assert "fails.py FAILED" in result.stderr


def test_a_drill_that_is_stopped_says_nothing_of_restarts(
    run: Runner, instep: Path, python: Path, tmp_path: Path, restartable: Path, wait_until: WaitUntil
) -> None:
    job = [instep, "run", "--python", python, restartable, "100000", tmp_path / "snapshot"]
    drill = run.start(instep, "drill", "--every", "100ms", "--times", "1", "--", *job)
    wait_until(lambda: "restart 1 of" in drill.stderr, 30, lambda: f"a restart\n{drill.stderr}")
    drill.send_signal(signal.SIGINT)
    shown = drill.wait().expect(1)
    assert "interrupted: the job was stopped before its end" in shown.stderr, shown
    assert "not restartable" not in shown.stderr, shown


def test_bad_input(run: Runner, instep: Path, restartable: Path) -> None:
    for words, message in (
        (["drill", "--", "torchrun", "x.py"], "`torchrun x.py` is not an `instep run` command"),
        (["drill", "--kill-rank", "soon", "--", "instep", "run", restartable], "soon is not a time such as 30s or 5m"),
        (["drill", "--", "instep", "run", "--no-such-option", restartable], "the job's command line"),
        (["run", "--drill", "kill-rank=1s", restartable], "--drill needs restarts"),
        (["run", "--max-restarts", "1", "--drill", "kill-cat=1s", restartable], "is not one of kill-rank, kill-node"),
    ):
        result = run(instep, *words).expect(1)
        assert message in result.stderr
        assert "hint: " in result.stderr
