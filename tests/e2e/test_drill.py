"""`instep drill` and `instep run --drill`: ranks are killed on purpose, and the report says how the job came back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Runner

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
FORGETFUL = """
import os, sys, time
for step in range(int(sys.argv[1])):
    print(f"step {step}", flush=True)
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
    assert len(report["blows"]) == 3, result
    assert report["came_back"] == 3
    for blow in report["blows"]:
        assert blow["kind"] == "kill-rank"
        assert len(blow["ranks"]) == 1
        assert 0 <= blow["restarted_after_seconds"] <= blow["first_line_after_seconds"]
        # A blow may fall again before there are enough lines to tell.
        assert blow["began"] in ("elsewhere", None)
    assert 0 < report["share_at_work"] < 1
    assert "came back 3 of 3 times" in result.stderr
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
        chosen.append([blow["ranks"] for blow in json.loads(found.read_text())["blows"]])
    assert len(chosen[0]) == 3
    assert chosen[0] == chosen[1]


def test_a_script_that_begins_again_is_told_so(run: Runner, instep: Path, python: Path, tmp_path: Path) -> None:
    script = tmp_path / "forgetful.py"
    script.write_text(FORGETFUL)
    job = [instep, "run", "--python", python, script, "60"]
    result = run(instep, "drill", "--kill-rank", "400ms", "--times", "1", "--", *job).expect(0)
    assert "at the beginning again" in result.stderr, result
    assert "does the script load its snapshot?" in result.stderr


def test_a_whole_node_is_lost(run: Runner, instep: Path, python: Path, tmp_path: Path, restartable: Path) -> None:
    found = tmp_path / "found.json"
    job = [instep, "run", "--python", python, "--nproc-per-node", "2", restartable, "100", tmp_path / "snapshot"]
    result = run(instep, "drill", "--kill-node", "500ms", "--times", "1", "--json", found, "--", *job).expect(0)
    [blow] = json.loads(found.read_text())["blows"]
    assert (blow["kind"], blow["ranks"]) == ("kill-node", [0, 1]), result


def test_a_job_that_ends_before_the_first_blow_is_told_so(
    run: Runner, instep: Path, python: Path, tmp_path: Path, restartable: Path
) -> None:
    job = [instep, "run", "--python", python, restartable, "2", tmp_path / "snapshot"]
    result = run(instep, "drill", "--kill-rank", "5h", "--", *job).expect(0)
    assert "the job ended before the first blow" in result.stderr


def test_the_exit_code_is_the_jobs(run: Runner, instep: Path, python: Path, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit(7)\n")
    job = [instep, "run", "--python", python, "--propagate-exit-code", script]
    result = run(instep, "drill", "--kill-rank", "5h", "--", *job).expect(7)
    assert "fails.py FAILED" in result.stderr


def test_bad_input(run: Runner, instep: Path, restartable: Path) -> None:
    for words, message in (
        (["drill", "--", "torchrun", "x.py"], "`torchrun x.py` is not a job of `instep run`"),
        (["drill", "--kill-rank", "soon", "--", "instep", "run", restartable], "soon is not a time such as 30s or 5m"),
        (["drill", "--", "instep", "run", "--no-such-option", restartable], "the job's command line"),
        (["run", "--drill", "kill-rank=1s", restartable], "--drill needs restarts"),
        (["run", "--max-restarts", "1", "--drill", "kill-cat=1s", restartable], "is none of kill-rank, kill-node"),
    ):
        result = run(instep, *words).expect(1)
        assert message in result.stderr
        assert "hint: " in result.stderr
