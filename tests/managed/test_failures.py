"""A failed trial says which rank failed and how: on the command line, in the API, and with paths that exist."""

from __future__ import annotations

from pathlib import Path

from conftest import Runner

from .conftest import Cluster

# No torch: the rank that fails is what matters.
SCRIPT = """
import os, time
if os.environ["RANK"] == "1":
    raise RuntimeError("shape mismatch")
time.sleep(60)
"""


def test_a_failed_trial_names_the_rank_and_its_exception(
    run: Runner, instep: Path, python: Path, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.agent("one", 2, python=python)
    context = tmp_path / "context"
    context.mkdir()
    (context / "train.py").write_text(SCRIPT)
    config = cluster.written(cluster.config("train.py", resources={"slots_per_trial": 2}))
    environment = {"INSTEP_MASTER": cluster.master.address, "HOME": str(cluster.master.database.parent)}
    why = "rank 1: RuntimeError: shape mismatch (exit code 1)"

    shown = run(instep, "experiment", "create", config, context, "-f", env=environment, timeout=150).expect(1)
    assert f"error: experiment 1 failed: trial 1, {why}\n" in shown.stderr, shown
    assert "hint: see its logs with `instep trial logs 1`" in shown.stderr, shown
    assert "logs: instep trial logs 1\n" in shown.stdout and "instep-logs" not in shown.stdout, shown

    waited = run(instep, "experiment", "wait", "1", env=environment).expect(1)
    assert f"error: experiment 1 failed: trial 1, {why}\n" in waited.stderr, waited
    assert "    | RuntimeError: shape mismatch\n" in waited.stderr, waited
    described = run(instep, "trial", "describe", "1", env=environment).expect(0)
    assert why in described.stdout, described

    task = cluster.trials(1)[0]["taskId"]
    (allocation,) = cluster.api("GET", f"/api/v1/tasks/{task}")["task"]["allocations"]
    assert (allocation["exitReason"], allocation["statusCode"]) == (why, 1)


def test_a_program_that_is_no_job_of_ours_is_explained_by_its_last_exception(
    run: Runner, instep: Path, python: Path, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.agent("one", 1, python=python)
    context = tmp_path / "context"
    context.mkdir()
    (context / "fails.py").write_text("{}['lr']\n")
    config = cluster.written(cluster.config("python3 fails.py"))
    environment = {"INSTEP_MASTER": cluster.master.address, "HOME": str(cluster.master.database.parent)}
    shown = run(instep, "experiment", "create", config, context, "-f", env=environment, timeout=150).expect(1)
    assert "experiment 1 failed: trial 1, KeyError: 'lr' (exit code 1)" in shown.stderr, shown
