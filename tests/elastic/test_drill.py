"""`instep drill` on jobs whose ranks are replaced: storms, places in a step, and steps done twice (about 20 s)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Result, Runner

from .conftest import TRAIN, Train, read

SCRIPTS = TRAIN.parent


def drill(
    run: Runner, instep: Path, job: list[Any], folder: Path, *options: str, **environment: str
) -> tuple[Result, dict[str, Any]]:
    """Drill a job of three ranks; give how it ended, and the report."""
    report = folder / "report"
    result = run(
        instep,
        *("drill", "--json", report, *options, "--", "instep", "run", "--standalone", "--nproc-per-node", "3"),
        *("--recover", "step", "--no-python", *job),
        env={"OMP_NUM_THREADS": "1", "RESULTS": str(folder), "PACE": "0.01", **environment},
        timeout=60,
    )
    return result, json.loads(report.read_text())


@pytest.mark.parametrize("place", ["forward", "backward", "vote", "optimizer", "transfer"])
def test_ranks_end_where_they_are_told_to_and_the_bits_stay(
    place: str, run: Runner, instep: Path, forked: Path, started: Train, tmp_path: Path
) -> None:
    job = [forked, TRAIN, "adam-dropout"]
    result, report = drill(run, instep, job, tmp_path, "--every", "200ms", "--at", place, "--times", "2", EPOCHS="30")
    result.expect(0)
    assert [kill["place"] for kill in report["kills"]] == [place, place], str(result)
    assert all(kill["recovered_after_seconds"] for kill in report["kills"]), f"{report}\n{result}"
    assert report["recoveries"]["count"] == 2, str(result)
    assert "recovered after 2 of 2 kills without a restart: p50" in result.stderr, str(result)
    if place == "transfer":
        assert result.stderr.count("; replacing ") > 2, str(result)
    calm = started(run, tmp_path / "calm", 3, "adam-dropout", env={"EPOCHS": "30"})
    assert read(result, tmp_path).digests == calm.digests, str(result)


def test_a_script_without_a_session_never_comes_to_a_place(
    run: Runner, instep: Path, python: Path, tmp_path: Path
) -> None:
    script = tmp_path / "plain.py"
    script.write_text("import time\nprint('step 1')\ntime.sleep(1.5)\n")
    result, report = drill(run, instep, [python, script], tmp_path, "--every", "100ms", "--at", "vote")
    result.expect(1)
    assert report["without_sessions"] and not report["kills"], str(result)
    assert "some rank never came to a step of an instep.elastic.Session" in result.stderr, str(result)
    assert "hint: the guide keep-the-step says how a script gets one" in result.stderr, str(result)


def test_steps_done_twice_come_to_the_same_bits(run: Runner, instep: Path, forked: Path, tmp_path: Path) -> None:
    job = [forked, TRAIN, "scaler-accumulate-norm-dropout"]
    result, report = drill(run, instep, job, tmp_path, "--replay", PACE="0")
    result.expect(0)
    assert report["steps_replayed"] == 6, str(result)
    assert "6 steps done twice, all with the same bits" in result.stderr, str(result)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [("loss = loss * time.perf_counter()", "the gradient of module."), ("draws()", "random numbers drawn from random")],
)
def test_a_step_that_depends_on_more_is_named(
    wrong: str, named: str, run: Runner, instep: Path, forked: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text((SCRIPTS / "forgetful.py").read_text().replace("# WRONG", wrong))
    result, report = drill(run, instep, [forked, script], tmp_path, "--replay")
    result.expect(1)
    assert report["steps_replayed"] == 0, str(result)
    [line] = [line for line in result.stderr.splitlines() if "error     :" in line]
    assert named in line, str(result)


def test_nothing_is_done_twice_without_a_session(run: Runner, instep: Path, python: Path, tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text("print('step 1')\n")
    result, _ = drill(run, instep, [python, script], tmp_path, "--replay")
    result.expect(1)
    assert "no step was done twice" in result.stderr, str(result)
