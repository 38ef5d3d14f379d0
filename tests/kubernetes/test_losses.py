"""What a master may lose that runs its work in Kubernetes: pods, nodes, Jobs, answers, parts of the control plane."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import NAMESPACE, KubernetesCluster
from .conftest import NODES, MakeSite
from .gateway import Gateway
from .site import Site

pytestmark = pytest.mark.soak


@pytest.fixture
def gateway(kubernetes: KubernetesCluster) -> Iterator[Gateway]:
    """What stands between the master and the API server."""
    with Gateway(kubernetes.folder) as made:
        yield made


@pytest.fixture
def behind_gateway(kubernetes: KubernetesCluster, gateway: Gateway, make_site: MakeSite) -> Iterator[Site]:
    """A master that reaches the API server through it."""
    with make_site(kubeconfig=str(gateway.kubeconfig(kubernetes.service_account()))) as made:
        yield made


def test_pods_and_nodes_that_are_lost_are_replaced(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    kubernetes.start_node("lost", "--cpu=1", "--ip=127.0.0.1", "--fail=crash")
    try:
        for name in NODES[1:]:
            kubernetes.kubectl("cordon", name)
        experiment = pool.create(max_restarts=5)
        trial = pool.trial(experiment)
        pool.steps(trial, 20)
        killed = next(pod["metadata"]["name"] for pod in pool.pods() if pod["spec"]["nodeName"] == NODES[0])
        kubernetes.kubectl("delete", "pod", killed, "--namespace", NAMESPACE, "--grace-period=0", "--force")
        # As the rank said it, and not as a report quotes it.
        resumed = "|| rank 0 resumed behind step 20"
        pool.wait_until(lambda: cluster.text(trial).count(resumed) == 1)
        assert pool.nodes() == {NODES[0], "lost"}
        # The machine is gone, with its pod.
        kubernetes.kubectl("uncordon", NODES[1])
        kubernetes.nodes["lost"].send_signal(signal.SIGUSR1)
        pool.wait_until(lambda: cluster.text(trial).count(resumed) == 2, 180)
        assert pool.nodes() == {NODES[0], NODES[1]}
        pool.go.touch()
        cluster.wait_for(experiment, "STATE_COMPLETED", 120)
    finally:
        for name in NODES[1:]:
            kubernetes.kubectl("uncordon", name)
        kubernetes.forget("lost")


def test_drained_node_is_notice(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    experiment = pool.create()
    trial = pool.trial(experiment)
    pool.steps(trial, 20)
    drained = sorted(pool.nodes())[0]
    try:
        kubernetes.kubectl("drain", drained, "--force")
        pool.go.touch()
        cluster.wait_for(experiment, "STATE_COMPLETED")
        assert "rank 1 resumed behind step 20" in cluster.text(trial)
        pool.wait_until(lambda: "evicted, as when a node is drained" in cluster.text(trial))
        assert pool.restarts(experiment) == [0]
        assert drained not in {one["spec"].get("nodeName") for one in kubernetes.objects("pods")[-2:]}
    finally:
        kubernetes.kubectl("uncordon", drained)


def test_job_that_somebody_deletes_or_ends_is_made_again(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    experiment = pool.create()
    trial = pool.trial(experiment)
    pool.steps(trial, 20)
    [(first, _)] = pool.jobs()
    kubernetes.kubectl("delete", "job", first, "--namespace", NAMESPACE, "--wait=false")
    # Step 20, or one that it took in between.
    resumed = "|| rank 0 resumed behind step 2"
    pool.wait_until(lambda: cluster.text(trial).count(resumed) == 1)
    # And one whose time is over.
    second = pool.jobs()[-1][0]
    assert second != first
    deadline = json.dumps({"spec": {"activeDeadlineSeconds": 1}})
    kubernetes.kubectl("patch", "job", second, "--namespace", NAMESPACE, "--patch", deadline)
    pool.wait_until(lambda: cluster.text(trial).count(resumed) == 2)
    why = f"Kubernetes job {second} has ended: its time is over (DeadlineExceeded)"
    pool.wait_until(lambda: why in cluster.text(trial))
    pool.go.touch()
    cluster.wait_for(experiment, "STATE_COMPLETED")
    assert pool.restarts(experiment) == [0]


def test_waiting_job_that_somebody_deletes_is_made_again(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    for name in NODES:
        kubernetes.kubectl("cordon", name)
    try:
        experiment = pool.create()
        pool.wait_until(lambda: any("0 of 2 pods have nodes: Unschedulable" in one["reason"] for one in pool.queue()))
        [(first, _)] = pool.jobs()
        kubernetes.kubectl("delete", "job", first, "--namespace", NAMESPACE, "--wait=false")
        pool.wait_until(lambda: [name for name, _ in pool.jobs() if name != first])
    finally:
        for name in NODES:
            kubernetes.kubectl("uncordon", name)
    pool.go.touch()
    cluster.wait_for(experiment, "STATE_COMPLETED")
    assert pool.restarts(experiment) == [0]


@pytest.mark.parametrize(("method", "end"), [("POST", "/jobs"), ("POST", "/secrets"), ("PATCH", "")])
def test_master_that_is_killed_before_it_hears_the_answer_makes_no_second_job(
    behind_gateway: Site, gateway: Gateway, method: str, end: str
) -> None:
    pool, kubernetes = behind_gateway, behind_gateway.kubernetes
    gateway.hold(method, end)
    experiment = pool.create()
    pool.wait_until(gateway.held.is_set)
    [held] = kubernetes.objects("jobs")
    pool.restart_master()
    pool.go.touch()
    pool.cluster.wait_for(experiment, "STATE_COMPLETED")
    assert [job["metadata"]["uid"] for job in kubernetes.objects("jobs")] == [held["metadata"]["uid"]]
    assert pool.restarts(experiment) == [0]
    assert len(kubernetes.objects("secrets")) == 1


def test_watches_that_have_expired_begin_with_a_list(behind_gateway: Site, gateway: Gateway) -> None:
    pool, kubernetes = behind_gateway, behind_gateway.kubernetes
    running = pool.create(slots=1, name="running")
    trial = pool.trial(running)
    pool.steps(trial, 20)
    waiting = pool.create(slots=4, name="waiting")
    pool.wait_until(lambda: any("3 of 4 pods have nodes" in job["reason"] for job in pool.queue()))
    gateway.cut()
    # What the master has not heard is in no server's memory any more.
    [_, (second, _)] = pool.jobs()
    kubernetes.kubectl("delete", "job", second, "--namespace", NAMESPACE, "--wait=false")
    kubernetes.restart_api_server()
    pool.wait_until(kubernetes.answers)
    kubernetes.compact()
    before = len(gateway.calls)
    gateway.mend()
    pool.wait_until(lambda: gateway.expired)
    pool.wait_until(lambda: any("limit=" in call.path for call in gateway.calls[before:]))
    pool.wait_until(lambda: second not in {name for name, _ in pool.jobs()[:-1]})
    pool.go.touch()
    for experiment in (running, waiting):
        pool.cluster.wait_for(experiment, "STATE_COMPLETED", 180)
    assert pool.restarts(running, waiting) == [0, 0]


def test_control_plane_that_is_killed_delays_and_breaks_nothing(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    first = pool.create(name="first")
    trial = pool.trial(first)
    pool.steps(trial, 20)
    commands = [kubernetes.kill(name) for name in ("kube-controller-manager", "kube-scheduler")]
    second = pool.create(name="second")
    pool.wait_until(lambda: any("0 of 2 pods have been created" in job["reason"] for job in pool.queue()))
    for command in commands:
        kubernetes.start(command)
    pool.steps(pool.trial(second), 20)
    command = kubernetes.kill("kube-apiserver")
    third = pool.create(name="third")
    pool.wait_until(
        lambda: any("does not answer: cannot reach the API server" in job["reason"] for job in pool.queue())
    )
    assert not any("127.0.0.1" in job["reason"] for job in pool.queue()), "users have no business with its address"
    pool.go.touch()
    # What runs needs no API server.
    cluster.wait_for(first, "STATE_COMPLETED")
    cluster.wait_for(second, "STATE_COMPLETED")
    kubernetes.start(command)
    cluster.wait_for(third, "STATE_COMPLETED", 180)
    assert pool.restarts(first, second, third) == [0, 0, 0]


def test_quota_delays(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"}, "spec": {"hard": {"pods": "1"}}}
    kubernetes.create(quota)
    try:
        experiment = pool.create()
        # What it holds it gives back.
        pool.wait_until(lambda: any("were given back" in job["reason"] for job in pool.queue()))
    finally:
        kubernetes.kubectl("delete", "resourcequota", "pods", "--namespace", NAMESPACE)
    pool.go.touch()
    cluster.wait_for(experiment, "STATE_COMPLETED", 180)
    assert pool.restarts(experiment) == [0]


def test_api_server_that_never_answers_delays_no_other_pool(
    kubernetes: KubernetesCluster, make_site: MakeSite, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=256) as silent:
        config = json.loads((kubernetes.folder / "kubeconfig").read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "silent").write_text(json.dumps(config))
        beside = {"kubeconfig": str(tmp_path / "silent"), "namespace": NAMESPACE}
        with make_site(beside=beside) as pool:
            stuck = [pool.create(slots=1, pool="beside", name=f"stuck {number}") for number in range(3)]
            path = "/api/v1/job-queues-v2?resourcePool=beside"

            def reasons() -> list[str]:
                found = pool.cluster.api("GET", path)["jobs"]
                return [str(job.get("full", job)["reason"]) for job in found]

            pool.wait_until(lambda: any("cannot reach the API server: no answer within" in one for one in reasons()))
            pool.go.touch()
            # Three submissions beside it take a minute each, and begin anew.
            pool.cluster.wait_for(pool.create(slots=1), "STATE_COMPLETED", 60)
            for number in stuck:
                pool.cluster.api("POST", f"/api/v1/experiments/{number}/kill")
                pool.cluster.wait_for(number, "STATE_CANCELED")
