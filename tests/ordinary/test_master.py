"""The same failures in a trial of a master's: its record of the trial says which rank failed, and why."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from conftest import Runner
from managed.conftest import Cluster, cluster, determined, master, settings

from .test_failures import FAILURES, LONG_S, SHORT_S, TRAIN, Failure

__all__ = ["cluster", "determined", "master", "settings"]

WORLD, VICTIM = 2, 1


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["instep", "gloo"])
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name)
def test_the_master_knows_which_rank_failed(
    failure: Failure,
    backend: str,
    cluster: Cluster,
    run: Runner,
    instep: Path,
    python: Path,
    settings: dict[str, str],
    tmp_path: Path,
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    shutil.copy(TRAIN, context)
    timeout_s = SHORT_S if failure.silent or failure.name == "mismatch" else LONG_S
    ranks = ["run", "--standalone", "--nproc-per-node", str(WORLD), "--python", str(python)]
    entrypoint = [str(instep), *ranks, TRAIN.name, "ddp", backend, failure.name, str(timeout_s)]
    cluster.agent("one", WORLD)
    config = cluster.config(entrypoint, resources={"slots_per_trial": WORLD})
    run(instep, "experiment", "create", cluster.written(config), context, env=settings).expect(0)
    cluster.wait_for(1, "STATE_ERROR")
    [trial] = cluster.trials(1)
    [allocation] = cluster.api("GET", f"/api/v1/tasks/{trial['taskId']}")["task"]["allocations"]
    reason = allocation["exitReason"]
    if backend == "gloo" and ("not known" in reason or "do not call the same" in reason):
        return
    named = re.search(r"rank (\d+)", reason)
    assert named is not None, f"{reason}\n{cluster.text(trial['id'])}"
    if failure.name != "mismatch":
        assert int(named[1]) == VICTIM, f"{reason}\n{cluster.text(trial['id'])}"
        # Of what a data loader's worker raised, the first line says only where; of an interrupt, the signal says all.
        also = ("in DataLoader worker", "killed by SIGINT")
        assert any(text in reason for text in (failure.says, *also)), f"{reason}\n{cluster.text(trial['id'])}"
