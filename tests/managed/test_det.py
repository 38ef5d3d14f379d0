"""The commands of `det` that are about work which the master runs, and the same with our own command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Result, Runner
from detached.conftest import Failed
from detached.det import Commands

from .conftest import CONTEXTS, Cluster

TUTORIAL = CONTEXTS / "tutorial"
SLEEPER = "echo ready; sleep 600"


@pytest.fixture
def ours(run: Runner, instep: Path, cluster: Cluster, tmp_path: Path) -> Callable[..., Result]:
    """Our own command line, in a home of its own."""
    environment = {"INSTEP_MASTER": cluster.master.address, "HOME": str(tmp_path)}

    def call(words: str, status: int = 0) -> Result:
        return run(instep, *shlex.split(words), env=environment, cwd=tmp_path).expect(status)

    return call


def create(cluster: Cluster, config: dict[str, Any], **more: object) -> int:
    """Create an experiment without files."""
    request = {"config": json.dumps(config), "activate": True, "modelDefinition": [], **more}
    return int(cluster.api("POST", "/api/v1/experiments", request)["experiment"]["id"])


def is_running(cluster: Cluster, number: int) -> bool:
    """Whether an experiment's first trial has begun to write."""
    return bool(cluster.trials(number)) and "ready" in cluster.text(cluster.trials(number)[0]["id"])


def test_agents_and_slots(cluster: Cluster, det: Commands, ours: Callable[..., Result]) -> None:
    assert "no agents" in ours("agent list").stderr
    cluster.agent("one", 2)
    cluster.agent("two", 2)
    [agents] = det("agent list")
    # Clients compare the version of agents with the master's.
    assert "one" in agents and "two" in agents and "0.38.1" in agents
    shown = cluster.api("GET", "/api/v1/agents")["agents"]
    assert {(agent["version"], agent["instepVersion"] != "0.38.1") for agent in shown} == {("0.38.1", True)}
    [slots] = det("slot list")
    assert slots.count("default") == 4
    number = create(cluster, cluster.config(SLEEPER, resources={"slots_per_trial": 2}))
    cluster.wait_until(lambda: is_running(cluster, number), 60, "the task to run")
    [busy] = [agent for agent in cluster.api("GET", "/api/v1/agents")["agents"] if agent["containers"]]
    [slots] = det("slot list")
    assert slots.count("Trial 1 (Experiment 1)") == 2
    assert ours("slot list").stdout.count("Trial 1 (Experiment 1)") == 2
    assert "Trial 1 (Experiment 1)" in ours("task list").stdout
    [tasks] = det("task list")
    assert "Trial 1 (Experiment 1)" in tasks
    # Agents and slots are the administrators'.
    [refused] = det.outcomes(f"agent disable {busy['id']}")
    assert refused.status != 0 and "not an administrator" in refused.output
    # What runs on an agent that is drained goes on; on one that is disabled it moves elsewhere, and that is no failure.
    ours(f"agent disable --drain {busy['id']}")
    assert cluster.experiment(number)["state"] == "STATE_RUNNING"
    assert "draining" in ours("agent list").stdout
    ours(f"agent disable {busy['id']}")
    other = {"one": "two", "two": "one"}[busy["id"]]

    def moved() -> bool:
        agents = cluster.api("GET", "/api/v1/agents")["agents"]
        return any(agent["id"] == other and agent["containers"] for agent in agents)

    cluster.wait_until(moved, 60, "the trial to move")
    [trial] = cluster.trials(number)
    assert trial["restarts"] == 0
    ours(f"agent enable {busy['id']}")
    ours(f"slot disable {busy['id']} 0")
    found = cluster.api("GET", f"/api/v1/agents/{busy['id']}/slots/0")["slot"]
    assert found["enabled"] is False
    ours(f"slot enable {busy['id']} 0")
    assert "hint" in ours("agent enable nobody", 1).stderr
    ours(f"experiment kill {number}")
    cluster.wait_for(number, "STATE_CANCELED")


def test_the_queue_is_shown_and_changed(cluster: Cluster, det: Commands, ours: Callable[..., Result]) -> None:
    cluster.agent("one", 1)
    first, second, third = (create(cluster, cluster.config(SLEEPER)) for _ in range(3))
    cluster.wait_until(lambda: is_running(cluster, first), 60, "the first to run")
    jobs = {number: cluster.experiment(number)["jobId"] for number in (first, second, third)}

    def order() -> list[str]:
        found = cluster.api("GET", "/api/v1/job-queues-v2")["jobs"]
        return [job["full"]["entityId"] for job in found]

    assert order() == [str(first), str(second), str(third)]
    [printed] = det("job list")
    assert printed.index(jobs[second]) < printed.index(jobs[third])
    ours(f"e set name {second} renamed")
    listed = ours("job list").stdout
    assert "waiting" in listed and f"renamed ({second})" in listed, listed
    ours(f"e set name {second} test")
    det(f"job update {jobs[third]} --priority 10")
    assert order()[0] == str(third)
    ours(f"job update {jobs[third]} --priority 42")
    ours(f"job update {jobs[third]} --ahead-of {jobs[second]}")
    assert order().index(str(third)) < order().index(str(second))
    det(f"e set priority {second} 7")
    assert cluster.experiment(second)["config"]["resources"]["priority"] == 7
    assert order()[0] == str(second)
    ours(f"e set max-slots {second} 3")
    ours(f"e set weight {second} 2")
    resources = cluster.experiment(second)["config"]["resources"]
    assert (resources["max_slots"], resources["weight"]) == (3, 2)
    assert "default" in ours("resource-pool list").stdout
    with pytest.raises(Failed, match="between 1 and 99"):
        cluster.api("POST", "/api/v1/job-queues", {"updates": [{"jobId": jobs[second], "priority": 100}]})
    results = cluster.api(
        "POST", "/api/v1/projects/1/experiments/kill", {"experimentIds": [], "filters": {"name": "test"}}
    )["results"]
    assert [result["error"] for result in results] == ["", "", ""]
    for number in jobs:
        cluster.wait_for(number, "STATE_CANCELED")


def test_templates_and_previews(cluster: Cluster, det: Commands, ours: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text("max_restarts: 3\nresources: {slots_per_trial: 2}\n")
    det(["template", "create", "mine", str(tmp_path / "template.yaml")])
    [listed] = det("template list")
    assert "mine" in listed and "mine" in ours("template list").stdout
    config = {key: value for key, value in cluster.config("true").items() if key != "max_restarts"}
    number = create(cluster, config, template="mine", activate=False)
    made = cluster.experiment(number)["config"]
    assert (made["max_restarts"], made["resources"]["slots_per_trial"]) == (3, 2)
    # One template serves experiments and commands, and need not say where checkpoints lie to say how many are kept.
    shared = "resources: {slots: 0, slots_per_trial: 2}\nidle_timeout: 1h\ncheckpoint_storage: {save_trial_best: 7}\n"
    (tmp_path / "shared.yaml").write_text(shared)
    det(["template", "set", "shared", str(tmp_path / "shared.yaml")])
    number = create(cluster, config, template="shared", activate=False)
    made = cluster.experiment(number)["config"]
    assert (made["resources"]["slots_per_trial"], made["checkpoint_storage"]["save_trial_best"]) == (2, 7)
    assert (made["checkpoint_storage"]["type"], "slots" in made["resources"]) == ("shared_fs", False)
    [task] = det(["cmd", "run", "--template", "shared", "--detach", "true"])
    command = cluster.api("GET", f"/api/v1/commands/{task.split()[-1]}")["config"]
    # Slots are what the command itself asks for, as with Determined.
    assert (command["resources"]["slots"], command["idle_timeout"]) == (1, 3600)
    (tmp_path / "template.yaml").write_text("max_restart: 3\n")
    assert "max_restart" in ours("template set mine template.yaml", 1).stderr
    ours("template remove mine --yes")
    ours("template remove shared --yes")
    assert "no templates" in ours("template list").stderr
    search = {"name": "random", "metric": "x", "max_trials": 7}
    path = cluster.written(cluster.config("true", searcher=search))
    [printed] = det(["preview-search", str(path)])
    assert "7" in printed
    assert "to their end" in ours(f"preview-search {path}").stdout
    halving = {"name": "adaptive_asha", "metric": "x", "max_trials": 10, "time_metric": "batches", "max_time": 100}
    path = cluster.written(cluster.config("true", searcher=halving))
    assert "100 batches" in ours(f"preview-search {path}").stdout
    [printed] = det(["preview-search", str(path)])
    assert "100" in printed


def test_experiments_are_created_forked_and_continued_with_our_own_command(
    cluster: Cluster, ours: Callable[..., Result], tmp_path: Path
) -> None:
    cluster.agent("one", 1)
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "hello.py").write_text("print('hello from', __file__.rsplit('/')[-1])\n")
    (folder / "secret.txt").write_text("x")
    (folder / ".detignore").write_text("secret.txt\n")
    config = cluster.written(cluster.config("python3 hello.py; ls"))
    done = ours(f"e create {config} code -f --config max_restarts=1")
    assert "hello from hello.py" in done.stdout and "secret.txt" not in done.stdout
    assert "experiment 1 completed" in done.stderr
    assert cluster.experiment(1)["config"]["max_restarts"] == 1
    ours("e fork 1 --paused --config name=second")
    forked = cluster.experiment(2)
    assert (forked["forkedFrom"], forked["name"], forked["state"]) == (1, "second", "STATE_PAUSED")
    assert "paused" in ours("e wait 2", 1).stderr
    ours("e activate 2")
    ours("e wait 2")
    ours("e continue 1 -f")
    assert [trial["id"] for trial in cluster.trials(1)] == [1]
    [trial] = cluster.trials(1)
    assert (trial["state"], trial["restarts"]) == ("STATE_COMPLETED", 0)
    assert trial["taskId"].endswith("-1"), "what continues has a task of its own"
    assert "hello from hello.py" in cluster.text(1)
    assert "cannot open the folder nowhere" in ours(f"e create {config} nowhere", 1).stderr


def test_what_a_policy_would_delete_is_shown_first(cluster: Cluster, det: Commands) -> None:
    cluster.agent("one", 1)
    config = cluster.config("python3 checkpoints.py 0", hyperparameters={"increment_by": 1})
    config["checkpoint_storage"] |= {"save_trial_latest": 100}
    det(["e", "create", str(cluster.written(config)), str(TUTORIAL)])
    cluster.wait_for(1, "STATE_COMPLETED")
    checkpoints = cluster.api("GET", "/api/v1/experiments/1/checkpoints")["checkpoints"]
    kept = [each for each in checkpoints if each["state"] == "STATE_COMPLETED"]
    assert len(kept) > 1
    query = "save_experiment_best=0&save_trial_best=0&save_trial_latest=1"
    preview = cluster.api("GET", f"/experiments/1/preview_gc?{query}")
    assert len(preview["checkpoints"]) == len(kept) - 1
    words = "--save-experiment-best 0 --save-trial-best 0 --save-trial-latest 1 --yes"
    det(f"e set gc-policy 1 {words}")

    def left() -> int:
        found = cluster.api("GET", "/api/v1/experiments/1/checkpoints")["checkpoints"]
        return sum(each["state"] == "STATE_COMPLETED" for each in found)

    cluster.wait_until(lambda: left() == 1, 30, "the others to be deleted")
