"""Log policies look for patterns of users in lines of users: they hold up nobody else, and act on no other trial."""

from __future__ import annotations

import json
import os

import pytest

from detached.conftest import Failed

from .walls import Walls, walls

__all__ = ["walls"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes tasks run as several users, which takes root")


def test_nobody_s_lines_act_on_another_s_trial(walls: Walls) -> None:
    walls.start()
    policy = {"name": "bad machine", "pattern": "forged or not", "action": "exclude_node"}
    victim = walls.begin("bob", "echo going; sleep 600", policies=(policy,))
    own = walls.begin("alice", "echo going; sleep 600")
    for trial in (victim, own):
        walls.wait_for(trial, "going")
    tasks = {trial: walls.cluster.api("GET", f"/api/v1/trials/{trial}")["trial"]["taskId"] for trial in (victim, own)}

    def send(user: str, task: int, allocation: int) -> None:
        line = {"task_id": tasks[task], "allocation_id": f"{tasks[allocation]}.1", "agent_id": "one"}
        walls.users[user]("POST", "/api/v1/task/logs", {"logs": [{**line, "log": "forged or not\n"}]})

    send("alice", own, victim)
    assert "will not schedule on" not in walls.cluster.text(victim)
    send("bob", victim, victim)
    walls.wait_for(victim, "will not schedule on one")
    for trial in (victim, own):
        walls.kill(trial)


def test_patterns_that_take_long_hold_up_nobody_else(walls: Walls) -> None:
    walls.start()
    # No line matches, and each takes long to find that out: a few once kept the whole master busy for minutes.
    policies = tuple({"name": f"slow {n}", "pattern": f"[ab]*a[ab]{{{3000 + n}}}[^ab]a"} for n in range(20))
    line = "print('ab' * 30000, flush=True)"
    slow = walls.begin("alice", f'python3 -c "for _ in range(5): {line}"; sleep 600', policies=policies)
    walls.wait_for(slow, "abab")
    assert "hello" in walls.log("bob", "echo hello"), "others are served meanwhile"
    walls.wait_for(slow, "not every line is looked at")
    walls.kill(slow)


def test_an_experiment_is_continued_with_no_more_policies_than_it_could_begin_with(walls: Walls) -> None:
    walls.start()
    trial = walls.begin("alice", "echo done")
    walls.ended(trial)
    number = walls.cluster.api("GET", f"/api/v1/trials/{trial}")["trial"]["experimentId"]
    for policies, expected in (
        ([{"name": f"p{n}", "pattern": "x"} for n in range(200)], "may have 100"),
        ([{"name": "p", "pattern": "("}], "is not a regular expression"),
    ):
        request = {"id": number, "overrideConfig": json.dumps({"log_policies": policies})}
        with pytest.raises(Failed, match=expected):
            walls.users["alice"]("POST", "/api/v1/experiments/continue", request)
