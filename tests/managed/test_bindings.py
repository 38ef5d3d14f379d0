"""Determined's bindings for what runs on an agent, and every public method and function of its SDK."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Runner
from detached.conftest import SCRIPTS, settings
from detached.test_bindings import WITH_AGENT, called

from .conftest import Cluster

__all__ = ["settings"]


def test_answers_about_running_tasks_are_read_and_changes_read_back(
    run: Runner, determined: Path, cluster: Cluster, settings: dict[str, str]
) -> None:
    cluster.agent("one", 2, "--pool", "fast")
    found = called(run, determined, "tasks.py", cluster.master.address, settings)
    print(f"{len(found)} functions called with an agent, {len(WITH_AGENT)} of them only so")
    assert found >= WITH_AGENT, WITH_AGENT - found


def test_every_public_method_and_function_of_the_sdk_does_what_it_says(
    run: Runner, determined: Path, cluster: Cluster, settings: dict[str, str]
) -> None:
    cluster.agent("one", 2, "--pool", "fast")
    script = SCRIPTS / "bindings" / "sdk.py"
    done = run(determined, script, cluster.master.address, env=settings, timeout=120).expect(0)
    outcome = json.loads(done.stdout.splitlines()[-1])
    print(f"{outcome['all']} methods and functions, {outcome['all'] - len(outcome['missing'])} called")
    assert outcome["all"] > 130
    assert outcome["missing"] == []
