"""Deleted checkpoints show as a task of their experiment, as with Determined: while it lasts, and in its log."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from detached.conftest import Failed
from detached.det import Commands

from .conftest import Cluster
from .test_det import create
from .test_roles import master

__all__ = ["master"]

# So many that deleting them takes long enough to be seen.
FILES = 20_000
SCRIPT = """
from determined import core
with core.init() as context:
    with context.checkpoint.store_path({"steps_completed": 1}) as (folder, uuid):
        (folder / "state").write_text("1")
"""


def test_a_collection_shows_as_a_task_and_says_what_it_deleted(cluster: Cluster, det: Commands, tmp_path: Path) -> None:
    admin = cluster.api = cluster.master.client.login("admin")
    det.settings |= {"DET_USER": "admin", "DET_PASS": ""}
    admin("POST", "/api/v1/users", {"user": {"username": "bob", "active": True}, "password": "bob"})
    bob = cluster.master.client.login("bob", "bob")
    cluster.agent("one", 1)
    number = create(cluster, cluster.config(["python3", "-c", SCRIPT]))
    cluster.wait_for(number, "STATE_COMPLETED")
    [checkpoint] = cluster.api("GET", f"/api/v1/experiments/{number}/checkpoints")["checkpoints"]
    uuid = checkpoint["uuid"]
    folder = tmp_path / "checkpoints" / uuid
    for each in range(FILES):
        (folder / str(each)).touch()
    name = f"Checkpoint GC (Experiment {number})"
    seen: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set() and not seen:
            tasks = cluster.api("GET", "/api/v1/tasks")["allocationIdToSummary"].values()
            seen.extend(task["taskId"] for task in tasks if task["name"] == name)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        cluster.api("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [uuid]})
        cluster.wait_until(lambda: not folder.exists(), 30, "the files to go")
    finally:
        over.set()
        watching.join()
    assert seen, "nobody saw the collection"
    [task] = seen
    cluster.wait_until(lambda: name not in str(cluster.api("GET", "/api/v1/tasks")), 10, "the collection to end")
    shown = cluster.api("GET", f"/api/v1/tasks/{task}")["task"]
    assert shown["taskType"] == "TASK_TYPE_CHECKPOINT_GC" and shown["endTime"]
    [log] = det(f"task logs {task}")
    assert f"deleted checkpoint {uuid}" in log
    # Who does not see the experiment does not see it.
    for path in (f"/api/v1/tasks/{task}", f"/api/v1/tasks/{task}/logs"):
        with pytest.raises(Failed, match="not found"):
            bob("GET", path)
    # It goes with its experiment.
    det(f"experiment delete {number} --yes")

    def is_gone() -> bool:
        try:
            cluster.api("GET", f"/api/v1/tasks/{task}")
        except Failed as failed:
            return failed.status == 404
        return False

    cluster.wait_until(is_gone, 30, "the task to go with its experiment")
