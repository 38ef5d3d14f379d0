"""Generic tasks with the real `det`: made from a file, forked with their files, paused, killed with their children."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from conftest import Result, Runner
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


def test_a_paused_task_rests_over_a_restart_of_the_master_and_runs_again(
    cluster: Cluster, det: Commands, tmp_path: Path
) -> None:
    cluster.agent("one", 1)
    counted, ready = tmp_path / "runs", tmp_path / "go-on"
    line = f"echo run >> {counted}; until [ -e {ready} ]; do sleep 0.1; done; echo it went on"
    config = tmp_path / "task.yaml"
    config.write_text(json.dumps({"entrypoint": line, "resources": {"slots": 1}}))

    def state(task: str) -> str:
        return str(cluster.api("GET", f"/api/v1/tasks/{task}")["task"]["taskState"]).removeprefix("GENERIC_TASK_STATE_")

    def wait_for(task: str, wanted: str) -> None:
        cluster.wait_until(lambda: state(task) == wanted, 30, f"the task to be {wanted}")

    def runs() -> int:
        return len(counted.read_text().split()) if counted.exists() else 0

    [made] = det(["task", "create", str(config)])
    task = created(made)
    cluster.wait_until(lambda: runs() == 1, 30, "the task to run")
    det(["task", "pause", task])
    wait_for(task, "PAUSED")
    again, unknown = det.outcomes(["task", "pause", task], "task pause none")
    assert "paused already" in again.output and "not found" in unknown.output
    # Its slot is free for others.
    [other] = det(["task", "create", str(config)])
    cluster.wait_until(lambda: runs() == 2, 30, "the other task to run")
    det(["task", "kill", created(other)])
    wait_for(created(other), "CANCELED")

    cluster.master.kill()
    cluster.master.start(cluster.wait_until)
    assert state(task) == "PAUSED"
    det(["task", "unpause", task])
    cluster.wait_until(lambda: runs() == 3, 30, "the task to run again")
    assert state(task) == "ACTIVE"
    assert [each["allocationId"] for each in cluster.api("GET", f"/api/v1/tasks/{task}")["task"]["allocations"]] == [
        f"{task}.2",
        f"{task}.1",
    ]
    [running] = det.outcomes(["task", "unpause", task])
    assert "is not paused" in running.output
    ready.touch()
    wait_for(task, "COMPLETED")
    assert "it went on" in det(["task", "logs", task])[0]
    [over] = det.outcomes(["task", "pause", task])
    assert "has ended" in over.output


def test_our_own_command_line_makes_pauses_and_kills_generic_tasks(
    run: Runner, instep: Path, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.agent("one", 1)
    environment = {"INSTEP_MASTER": cluster.master.address, "HOME": str(tmp_path)}

    def ours(words: str, status: int = 0) -> Result:
        return run(instep, *shlex.split(words), env=environment, cwd=tmp_path).expect(status)

    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "words.txt").write_text("words of its own\n")
    (tmp_path / "short.yaml").write_text("entrypoint: [cat, words.txt]\n")
    (tmp_path / "long.yaml").write_text("entrypoint: [sleep, '600']\n")
    said = ours("task create short.yaml --context code --config resources.slots=1 --follow")
    assert "words of its own" in said.stdout
    first = said.stderr.split()[1]
    assert "words of its own" in ours(f"task fork {first} --follow").stdout
    assert json.loads(ours(f"task config {first}").stdout)["resources"] == {"slots": 1}

    parent = ours("task create long.yaml --config resources.slots=0").stdout.strip()
    child = ours(f"task create long.yaml --config resources.slots=0 --parent {parent} --json").stdout
    child = json.loads(child)["taskId"]
    ours(f"task pause {parent}")

    def state(task: str) -> str:
        found: str = cluster.api("GET", f"/api/v1/tasks/{task}")["task"]["taskState"]
        return found

    cluster.wait_until(lambda: state(parent) == "GENERIC_TASK_STATE_PAUSED", 30, "the task to pause")
    assert "it is paused already" in ours(f"task pause {parent}", 1).stderr
    ours(f"task unpause {parent}")
    ours(f"task kill {child} --root")
    for task in (parent, child):
        cluster.wait_until(lambda task=task: state(task) == "GENERIC_TASK_STATE_CANCELED", 30, "the task to end")
    assert "it has ended" in ours(f"task kill {parent}", 1).stderr
    assert "verbs of their own" in ours("task config none", 1).stderr
    assert "missing `/`" in ours("task create long.yaml --project lab", 1).stderr
    ours("task create", 2)

    rows = json.loads(ours("resources raw 2026-01-01 --json").stdout)
    assert {row["kind"] for row in rows} == {"generic"}
    assert "generic" in ours("resources raw 2026-01-01").stdout
    assert "determined" in ours("resources aggregated 2026-01-01 --monthly").stdout
