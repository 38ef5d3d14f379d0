"""Kubernetes in place of agents: `instep experiment create` on a pool whose work runs as Jobs."""

from __future__ import annotations

import json

import pytest

from managed.conftest import SEARCH, rows

from .cluster import NAMESPACE
from .conftest import NODES
from .site import NOTICING, SEARCHING, Site, pod


def test_trial_in_four_pods_resumes_when_one_is_deleted(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    refused = {"pod_spec": {"spec": {"hostNetwork": True}}}
    with pytest.raises(pytest.fail.Exception, match=r"spec\.hostNetwork: users may not set this"):
        pool.create(environment=refused)
    labels = {"pod_spec": {"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}}}
    experiment = pool.create(slots=4, environment=labels)
    trial = pool.trial(experiment)
    pool.steps(trial, 20)
    [pool_shown] = [
        one for one in cluster.api("GET", "/api/v1/resource-pools")["resourcePools"] if one["name"] == "kubernetes"
    ]
    assert (pool_shown["schedulerType"], pool_shown["slotsUsed"]) == ("SCHEDULER_TYPE_KUBERNETES", 4)
    assert pool.nodes() == set(NODES)
    one = pool.pods()[1]
    assert one["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert not one["spec"]["automountServiceAccountToken"]
    [(first, _)] = pool.jobs()
    # Who ends a pod gives notice: the trial saves what it has, and goes on in another Job.
    kubernetes.kubectl("delete", "pod", one["metadata"]["name"], "--namespace", NAMESPACE, "--wait=false")
    pool.wait_until(lambda: len(pool.jobs()) == 2)
    pool.go.touch()
    cluster.wait_for(experiment, "STATE_COMPLETED")
    log = cluster.text(trial)
    assert all(f"rank {rank} resumed behind step 20" in log for rank in range(4)), log
    assert rows(cluster.api, trial, "training") == {step: {"x": 10 * step} for step in (10, 20, 30, 40)}
    assert pool.restarts(experiment) == [0]
    pool.wait_until(lambda: all(state in ("Complete", "Failed") for _, state in pool.jobs()))
    assert first in [name for name, _ in pool.jobs()]
    assert cluster.api("GET", "/api/v1/agents")["agents"] == []


@pytest.mark.soak
def test_killed_master_finds_its_jobs_and_a_half_placed_gang_blocks_nobody(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    # Somebody else's pods leave one of the nodes.
    for number in range(3):
        kubernetes.create(pod(f"blocker-{number}"))
    pool.wait_until(lambda: len(pool.nodes() - {""}) == 3)
    gang = pool.create(name="gang")
    pool.wait_until(pool.jobs)
    alone = pool.create(slots=1, name="alone")
    pool.steps(pool.trial(alone), 20)
    pool.wait_until(lambda: any("Kubernetes job instep-" in job["reason"] for job in pool.queue()))
    pool.restart_master()
    pool.go.touch()
    cluster.wait_for(alone, "STATE_COMPLETED")
    assert cluster.experiment(gang)["state"] != "STATE_COMPLETED"
    kubernetes.kubectl("delete", "pod", "blocker-1", "--namespace", NAMESPACE, "--wait=false")
    cluster.wait_for(gang, "STATE_COMPLETED")
    pool.wait_until(lambda: [state for _, state in pool.jobs()] == ["Complete"] * 2)
    assert pool.restarts(gang, alone) == [0, 0]
    secrets = {secret["metadata"]["name"] for secret in kubernetes.objects("secrets")}
    assert secrets == {name for name, _ in pool.jobs()}, "each Job has its own, and no other is left"


@pytest.mark.soak
def test_two_gangs_with_half_of_the_nodes_each_do_not_wait_for_each_other(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    for name in NODES:
        kubernetes.kubectl("cordon", name)
    try:
        first, second = pool.create(slots=4, name="first"), pool.create(slots=4, name="second")
        pool.wait_until(lambda: len(pool.pods()) == 8)
        # As a scheduler might that takes one pod after the other.
        for number, (job, _) in enumerate(pool.jobs()):
            mine = [one for one in pool.pods() if one["metadata"]["labels"]["job-name"] == job]
            for one, node in zip(mine, NODES[2 * number : 2 * number + 2], strict=False):
                kubernetes.bind(one["metadata"]["name"], node)
    finally:
        for name in NODES:
            kubernetes.kubectl("uncordon", name)

    def released() -> list[str | None]:
        return [job["metadata"]["annotations"].get("instep.released") for job in kubernetes.objects("jobs")]

    pool.wait_until(lambda: released() == [None, "1"])
    pool.go.touch()
    cluster.wait_for(first, "STATE_COMPLETED", 180)
    cluster.wait_for(second, "STATE_COMPLETED", 180)
    assert pool.restarts(first, second) == [0, 0]
    assert released()[0] is None, "the older one has kept what it had"


@pytest.mark.soak
def test_preempted_trial_saves_within_its_grace_period_and_resumes(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    experiment = pool.create(slots=4, context=NOTICING)
    trial = pool.trial(experiment)
    pool.steps(trial, 5)
    kubernetes.create_urgent_class()
    kubernetes.create(pod("urgent", priorityClassName="urgent"))
    pool.wait_until(lambda: "preempted by pods of a higher priority" in cluster.text(trial))

    def running() -> bool:
        return any(one["metadata"]["name"] == "urgent" and one["spec"].get("nodeName") for one in pool.pods())

    pool.wait_until(running)
    [saved] = cluster.api("GET", f"/api/v1/trials/{trial}/checkpoints")["checkpoints"]
    step = saved["metadata"]["steps_completed"]
    assert saved["state"] == "STATE_COMPLETED"
    assert step > 5
    pool.wait_until(lambda: any("of 4 pods have nodes" in job["reason"] for job in pool.queue()))
    kubernetes.kubectl("delete", "pod", "urgent", "--namespace", NAMESPACE, "--wait=false")
    pool.wait_until(lambda: f"rank 3 resumed behind step {step}" in cluster.text(trial), 180)
    pool.go.touch()
    cluster.wait_for(experiment, "STATE_COMPLETED")
    assert pool.restarts(experiment) == [0]


@pytest.mark.soak
def test_search_goes_on_while_jobs_and_pods_are_killed(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    experiment = pool.create(slots=1, context=SEARCHING, max_restarts=5, **SEARCH)
    for kind in ("pod", "job", "pod"):
        pool.wait_until(lambda: len(pool.nodes() - {""}) == len(NODES))
        name = pool.pods()[-1]["metadata"]["name"] if kind == "pod" else pool.jobs()[-1][0]
        kubernetes.kubectl("delete", kind, name, "--namespace", NAMESPACE, "--grace-period=0", "--force")
        pool.wait_until(lambda name=name: name not in {one["metadata"]["name"] for one in pool.pods()})
    cluster.wait_for(experiment, "STATE_COMPLETED", 300)
    trials = cluster.trials(experiment)
    assert [trial["state"] for trial in trials] == ["STATE_COMPLETED"] * 10
    steps = [trial["totalBatchesProcessed"] for trial in trials]
    assert max(steps) == 100
    assert min(steps) < 100, "the worse ones are stopped early"
    pool.wait_until(lambda: not {"Active", "Suspended"} & {state for _, state in pool.jobs()})


@pytest.mark.soak
def test_rights_that_are_missing_are_said(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    rule = "secrets"
    role = json.loads(kubernetes.kubectl("get", "role", "instep-master", "--namespace", NAMESPACE, "--output=json"))
    less = {**role, "rules": [one for one in role["rules"] if rule not in one["resources"]]}
    kubernetes.kubectl("replace", "--filename=-", stdin=json.dumps(less))
    experiment = pool.create()
    trial = pool.trial(experiment)
    try:
        pool.wait_until(lambda: "cannot create resource" in cluster.text(trial))
        assert (
            "Kubernetes did not take the job, which is submitted again: the API server refused to create secrets"
            in (cluster.text(trial))
        )
        assert pool.jobs() == []
    finally:
        del role["metadata"]["resourceVersion"]
        kubernetes.kubectl("replace", "--filename=-", stdin=json.dumps(role))
    cluster.api("POST", f"/api/v1/experiments/{experiment}/kill")
    cluster.wait_for(experiment, "STATE_CANCELED")
