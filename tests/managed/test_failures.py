"""A failed trial says which rank failed and how: on the command line, in the API, and with paths that exist."""

from __future__ import annotations

import signal
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


def test_ctrl_c_leaves_what_is_followed_running_and_says_so(
    run: Runner, instep: Path, python: Path, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.agent("one", 1, python=python)
    context = tmp_path / "context"
    context.mkdir()
    (context / "train.py").write_text("import time\nprint('working', flush=True)\ntime.sleep(60)\n")
    config = cluster.written(cluster.config("python3 train.py"))
    environment = {"INSTEP_MASTER": cluster.master.address, "HOME": str(cluster.master.database.parent)}
    following = run.start(instep, "experiment", "create", config, context, "-f", env=environment)
    cluster.wait_until(lambda: "working" in following.stdout, 60, "output of the trial")
    following.send_signal(signal.SIGINT)
    said = following.wait(30).expect(130)
    assert "experiment 1 keeps running\nhint: follow it again with `instep experiment logs -f 1`" in said.stderr, said
    assert cluster.experiment(1)["state"] == "STATE_RUNNING"

    command = ("command", "run", "--config", "resources.slots=0", "echo working; sleep 60")
    following = run.start(instep, *command, env=environment)
    cluster.wait_until(lambda: "working" in following.stdout, 60, "output of the command")
    following.send_signal(signal.SIGINT)
    assert "keeps running\nhint: follow it again with `instep command logs -f " in following.wait(30).expect(130).stderr


def test_words_that_cannot_be_meant_are_noticed_before_anything_runs(
    run: Runner, instep: Path, cluster: Cluster, tmp_path: Path
) -> None:
    environment = {"INSTEP_MASTER": cluster.master.address, "HOME": str(cluster.master.database.parent)}
    shown = run(instep, "command", "run", "--contxt", ".", "ls", env=environment).expect(1)
    assert "error: `instep command run` has no option `--contxt`\n" in shown.stderr and "hint: " in shown.stderr, shown
    (tmp_path / "train.py").write_text("")
    config = cluster.written(cluster.config("python3 trian.py"))
    shown = run(instep, "experiment", "create", config, tmp_path, "--paused", env=environment).expect(0)
    assert f"warning: {tmp_path} has no trian.py, which the entrypoint runs\n" in shown.stderr, shown
    shown = run(instep, "experiment", "create", config, "--paused", env=environment).expect(0)
    assert "warning: no code is sent, and the entrypoint runs trian.py\nhint: " in shown.stderr, shown
