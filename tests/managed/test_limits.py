"""What a task may take of its machine: memory, processes; and that nothing of it outlives it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from .walls import Walls, walls

__all__ = ["walls"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="limits tasks of several users, which takes root")

# Every process makes more of its kind; the first says when it cannot.
FORK_BOMB = """python3 -c '
import os, time
first, said = os.getpid(), False
while True:
    try:
        os.fork()
    except BlockingIOError:
        if os.getpid() == first and not said:
            said = True
            print("no more processes", flush=True)
        time.sleep(0.1)
'"""


def start_limited(walls: Walls, *options: str) -> list[Path]:
    """Start an agent with limits; give the folders of the group of all its tasks."""
    walls.start(*options)
    assert walls.agent is not None
    if "tasks run here without limits" in walls.agent.stderr:
        pytest.skip("this system lets nobody make control groups")
    return [Path(folder) for folder in json.loads((walls.state / "cgroups").read_text())["folders"].values()]


def groups(folders: list[Path]) -> list[Path]:
    """Give the groups of tasks."""
    return [group for folder in folders for group in folder.glob("*/")]


def test_a_task_beyond_its_memory_is_said_to_be(walls: Walls) -> None:
    folders = start_limited(walls, "--task-memory", "256MiB")
    log = walls.log("alice", "python3 -c 'print(len(bytearray(1 << 30)))'; echo still here; exit 3")
    why = "out of memory: 1 process killed at the task's 256 MiB limit"
    assert why in log
    assert "hint: use less memory" in log
    assert "still here" in log, "what was not killed goes on"
    api = walls.cluster.api
    task = walls.cluster.trials(1)[0]["taskId"]
    (allocation,) = api("GET", f"/api/v1/tasks/{task}")["task"]["allocations"]
    assert allocation["exitReason"].startswith(why), allocation
    assert "hello" in walls.log("bob", "echo hello"), "the agent serves on"
    walls.cluster.wait_until(lambda: not groups(folders), 20, "the groups to be removed")


def test_a_fork_bomb_stops_neither_the_agent_nor_other_tasks(walls: Walls) -> None:
    folders = start_limited(walls, "--task-processes", "64")
    trial = walls.begin("alice", FORK_BOMB)
    walls.wait_for(trial, "no more processes")
    assert "hello" in walls.log("bob", "echo hello"), "the agent serves others meanwhile"
    assert walls.state_of(trial) == "STATE_RUNNING"
    walls.kill(trial)
    walls.cluster.wait_until(lambda: not groups(folders), 20, "every process to end and the groups to be removed")


def test_what_a_killed_agent_and_its_guardian_left_ends_with_the_next_start(walls: Walls) -> None:
    folders = start_limited(walls)
    # Without the mark in its environment, and in a session of its own; nobody else sleeps for as long.
    seconds = str(1_000_000 + os.getpid())
    trial = walls.begin("alice", f"env -i setsid sleep {seconds} & echo going; wait")
    walls.wait_for(trial, "going")

    def sleepers() -> list[psutil.Process]:
        return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", seconds]]

    walls.cluster.wait_until(lambda: len(sleepers()) == 1, 20, "the program to run")
    assert walls.agent is not None
    looking_after = [one for one in walls.agent.left_behind() if "task" in one.cmdline()[1:2]]
    assert len(looking_after) == 2, "guardian and supervisor"
    os.kill(walls.agent.pid, signal.SIGKILL)
    for process in looking_after:
        process.suspend()
    for process in looking_after:
        process.kill()
    walls.agent.wait(20)
    assert sleepers(), "nobody is left who could have ended it"
    walls.start()
    walls.cluster.wait_until(lambda: not sleepers(), 20, "the program to be ended")
    walls.kill(trial)
    walls.cluster.wait_until(lambda: not groups(folders), 20, "the groups to be removed")
