"""Generic tasks with the real `det`: made from a file, forked with their files, killed with what they started."""

from __future__ import annotations

import json
from pathlib import Path

from detached.det import Commands

from .conftest import Cluster, det

__all__ = ["det"]


def created(output: str) -> str:
    """The task that `det task create` or `fork` made."""
    [line] = [line for line in output.splitlines() if line.startswith("Created task ")]
    return line.removeprefix("Created task ")


def test_generic_tasks_are_made_forked_and_killed_with_what_they_started(
    cluster: Cluster, det: Commands, tmp_path: Path
) -> None:
    cluster.agent("one", 1)
    context = tmp_path / "code"
    context.mkdir()
    (context / "words.txt").write_text("words of its own\n")
    short, long = tmp_path / "short.yaml", tmp_path / "long.yaml"
    short.write_text(json.dumps({"entrypoint": ["cat", "words.txt"], "resources": {"slots": 0}}))
    long.write_text(json.dumps({"entrypoint": ["sleep", "600"], "resources": {"slots": 0}}))

    [made] = det(["task", "create", str(short), "--context", str(context), "--follow"])
    assert "words of its own" in made
    [forked] = det(["task", "fork", created(made), "--follow"])
    assert "words of its own" in forked
    [config] = det(["task", "config", created(made), "--json"])
    assert json.loads(config) == json.loads(short.read_text()), "what was given, without defaults"

    [parent] = det(["task", "create", str(long)])
    [child] = det(["task", "create", str(long), "--parent", created(parent)])
    [other] = det(["task", "create", str(long)])
    assert created(child) in det("task list")[0]
    det(["task", "kill", created(child), "--root"])
    for task in (created(parent), created(child)):
        path = f"/api/v1/tasks/{task}"
        cluster.wait_until(lambda path=path: cluster.api("GET", path)["task"]["endTime"], 30, "the task to end")
    assert cluster.api("GET", f"/api/v1/tasks/{created(other)}")["task"]["endTime"] is None
    det(["task", "kill", created(other)])
    missing, empty = det.outcomes("task kill none", ["task", "fork", "none"])
    assert missing.status != 0
    assert empty.status != 0
