"""What goes wrong, and what people are told."""

from __future__ import annotations

import pytest

from detached.conftest import Failed
from detached.det import Commands

from .conftest import CONTEXTS, Cluster

TUTORIAL = CONTEXTS / "tutorial"


def create(cluster: Cluster, config: dict[str, object], files: list[dict[str, object]] | None = None) -> int:
    """Create an experiment without `det`."""
    request = {"config": cluster.written(config).read_text(), "activate": True, "modelDefinition": files or []}
    return int(cluster.api("POST", "/api/v1/experiments", request)["experiment"]["id"])


def test_misspelled_keys_are_named(cluster: Cluster) -> None:
    with pytest.raises(Failed) as refused:
        create(cluster, cluster.config("true", resources={"slots_per_trail": 2}))
    assert "resources.slots_per_trail" in refused.value.message
    assert "slots_per_trial" in refused.value.message


def test_paths_that_leave_the_context_are_refused(cluster: Cluster) -> None:
    for path in ("../escape", "/etc/escape", "a/../../escape"):
        file: dict[str, object] = {
            "path": path,
            "type": 48,
            "content": "",
            "mtime": "0",
            "mode": 33188,
            "uid": 0,
            "gid": 0,
        }
        with pytest.raises(Failed) as refused:
            create(cluster, cluster.config("true"), [file])
        assert path in refused.value.message


def test_program_that_is_not_there(cluster: Cluster) -> None:
    cluster.agent("one", 1)
    number = create(cluster, cluster.config(["no-such-program"]))
    cluster.wait_for(number, "STATE_ERROR")
    assert "no-such-program" in cluster.text(1)


def test_slots_that_nobody_has_stay_queued_with_a_reason(cluster: Cluster, det: Commands) -> None:
    cluster.agent("one", 2)
    number = create(cluster, cluster.config("true", resources={"slots_per_trial": 64}))
    assert cluster.experiment(number)["state"] == "STATE_QUEUED"
    [printed] = det("job list")
    assert "STATE_QUEUED" in printed
    det(f"e kill {number}")
    cluster.wait_for(number, "STATE_CANCELED")


def test_what_can_never_be_had_is_refused_at_once(cluster: Cluster, det: Commands) -> None:
    cluster.agent("one", 2)
    [refused, elsewhere] = det.outcomes(
        ["cmd", "run", "--config", "resources.slots=10485", "sleep infinity"],
        ["cmd", "run", "--config", "resources.resource_pool=nowhere", "true"],
    )
    assert (refused.status, elsewhere.status) == (1, 1)
    assert "request unfulfillable" in refused.output and "the largest of the pool has 2" in refused.output
    assert "resource pool 'nowhere' not found" in elsewhere.output
    resources = {"slots_per_trial": 3, "is_single_node": True}
    with pytest.raises(Failed, match="request unfulfillable"):
        create(cluster, cluster.config("true", resources=resources))
    with pytest.raises(Failed, match="nowhere"):
        create(cluster, cluster.config("true", resources={"resource_pool": "nowhere"}))


def test_failing_script_is_restarted_as_often_as_it_may(cluster: Cluster) -> None:
    cluster.agent("one", 1)
    number = create(cluster, cluster.config("exit 3", max_restarts=2))
    cluster.wait_for(number, "STATE_ERROR")
    [trial] = cluster.trials(number)
    assert (trial["state"], trial["restarts"]) == ("STATE_ERROR", 2)
    log = cluster.text(trial["id"])
    assert log.count("container failed with non-zero exit code: 3") == 3
    assert log.count("New trial runner in") == 3


def test_task_that_ignores_sigterm_is_killed(cluster: Cluster) -> None:
    cluster.agent("one", 1)
    number = create(cluster, cluster.config("trap '' TERM; echo ready; while :; do sleep 1; done"))
    cluster.wait_until(lambda: cluster.trials(number) and "ready" in cluster.text(1), 30, "the task to run")
    cluster.api("POST", f"/api/v1/experiments/{number}/kill")
    cluster.wait_for(number, "STATE_CANCELED", 60)
