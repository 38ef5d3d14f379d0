"""A rank that ends because of another one is never called the cause, whichever of them is seen to end first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Result, Runner

SCRIPTS = Path(__file__).parent / "scripts"


def fail(
    backend: str, way: str, ranks: int, instep: Path, forked: Path, tmp_path: Path, run: Runner
) -> tuple[Result, dict[str, Any], dict[str, Any]]:
    """Let rank 1 end this way: what was shown, the summary, and the event that says who failed."""
    summary, events = tmp_path / "summary.json", tmp_path / "events.jsonl"
    options = ["--standalone", "--python", str(forked), "--nproc-per-node", str(ranks), "--log-dir", "/dev/null"]
    options += ["--summary-json", str(summary), "--events", str(events)]
    environment = {"INSTEP_RUN_DIR": str(tmp_path / "run")}
    script = [str(SCRIPTS / "consequences.py"), str(tmp_path), backend, way]
    shown = run(str(instep), "run", *options, *script, env=environment).expect(1)
    told = [
        event for line in events.read_text().splitlines() if (event := json.loads(line))["event"] == "worker_failed"
    ]
    assert len(told) == 1, told
    return shown, json.loads(summary.read_text()), told[0]


@pytest.mark.parametrize("backend", ["instep", "gloo"])
def test_a_rank_that_raises_is_the_cause_although_its_peer_ends_first(
    backend: str, instep: Path, forked: Path, tmp_path: Path, run: Runner
) -> None:
    shown, summary, event = fail(backend, "raises", 2, instep, forked, tmp_path, run)
    cause = summary["root_cause"]
    assert (cause["rank"], cause["message"], cause["exit_code"]) == (1, "ValueError: boom", 1), shown
    assert (event["rank"], event["exit"]) == (1, 1) and "ValueError: boom" in event["cause"], event
    assert "exited with code 1 (ValueError: boom)" in summary["reason"], summary["reason"]
    report = shown.stderr.partition("Root cause (first failure):\n")[2]
    assert report.startswith("  rank      : 1 ") and "    | ValueError: boom" in report.replace("[rank1]: ", ""), shown
    (consequence,) = [failure for failure in summary["failures"] if failure["rank"] == 0]
    assert consequence["because_of_others"] and not consequence["stopped_by_launcher"], consequence
    assert consequence["because_of_ranks"] == ([1] if backend == "instep" else []), consequence


@pytest.mark.parametrize("backend", ["instep", "gloo"])
def test_a_rank_that_leaves_with_0_while_another_waits_is_named_as_that(
    backend: str, instep: Path, forked: Path, tmp_path: Path, run: Runner
) -> None:
    shown, summary, event = fail(backend, "leaves", 2, instep, forked, tmp_path, run)
    place = "in all_reduce" if backend == "instep" else "for it"
    assert f"ended with exit code 0 while rank 0 waited {place}" in summary["cause"], shown
    assert (summary["root_cause"]["rank"], event["rank"], event["exit"]) == (1, 1, 0), shown
    assert f"Root cause:\n  {summary['cause']}\n" in shown.stderr, shown


def test_a_rank_that_never_comes_is_the_cause_although_it_is_alive(
    instep: Path, forked: Path, tmp_path: Path, run: Runner
) -> None:
    shown, summary, event = fail("instep", "late", 3, instep, forked, tmp_path, run)
    cause = summary["root_cause"]
    assert (cause["rank"], cause["stopped_by_launcher"], event["rank"], event["exit"]) == (1, True, 1, None), shown
    assert "did not arrive" in summary["cause"] and "in all_reduce" in summary["cause"], summary["cause"]
