"""Kubernetes in place of agents: `instep experiment create` on a pool whose work runs as Jobs."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Runner
from detached.conftest import Master
from managed.conftest import Cluster, rows

from .cluster import NAMESPACE, KubernetesCluster

COUNTING = Path(__file__).parents[1] / "slurm" / "scripts" / "counting"
Json = dict[str, Any]


class KubernetesMaster(Master):
    """A master with one pool, `kubernetes`, of nodes with a slot each, and the rights of the shipped Role."""

    def __init__(
        self,
        kubernetes: KubernetesCluster,
        python: Path,
        start: Callable[..., Any],
        instep: Path,
        database: Path,
        **engine: object,
    ) -> None:
        super().__init__(start, instep, database)
        agent = [f"--python={python}", "--default-user=root", "--task-memory=none", "--task-processes=none"]
        self.engine = {
            "type": "kubernetes",
            "kubeconfig": str(kubernetes.service_account()),
            "image": "instep",
            "instep": str(instep),
            "slots_per_node": 1,
            "slot_type": "cpu",
            "incomplete_timeout": 3,
            "notice": 20,
            "agent_options": agent,
            **engine,
        }

    @property
    def environment(self) -> dict[str, str]:
        """With the pool."""
        pools = [{"pool_name": "kubernetes", "engine": self.engine}]
        return {**super().environment, "INSTEP_MASTER_RESOURCE_POOLS": json.dumps(pools)}


class Site:
    """A Kubernetes cluster and a master that runs its work there."""

    def __init__(self, kubernetes: KubernetesCluster, cluster: Cluster, run: Runner) -> None:
        self.kubernetes, self.cluster, self._run = kubernetes, cluster, run
        self.go = cluster.folder / "go"

    def create(self, slots: int = 2, environment: Json | None = None, **more: object) -> int:
        """Submit an experiment with our own command; its number."""
        config = self.cluster.config(
            "counting.py",
            environment={"environment_variables": [f"GO={self.go}"], **(environment or {})},
            resources={"slots_per_trial": slots, "resource_pool": "kubernetes"},
            **more,
        )
        variables = {"INSTEP_MASTER": self.cluster.master.address, "HOME": str(self.cluster.folder)}
        words = (self.cluster.instep, "experiment", "create", self.cluster.written(config), COUNTING)
        said = self._run(*words, env=variables).expect(0).stdout
        number = re.search(r"\d+", said)
        assert number, said
        return int(number[0])

    def trial(self, experiment: int) -> int:
        """The first trial of an experiment, once there is one."""
        self.cluster.wait_until(lambda: self.cluster.trials(experiment), 30, "a trial")
        number: int = self.cluster.trials(experiment)[0]["id"]
        return number

    def steps(self, trial: int, steps: int) -> None:
        """Wait until a trial has reported so many steps, or show why it does not."""
        path = f"/api/v1/trials/{trial}"
        self.cluster.wait_until(
            lambda: self.cluster.api("GET", path)["trial"]["totalBatchesProcessed"] >= steps, 60, self.said
        )

    def jobs(self) -> list[tuple[str, str]]:
        """The name and the state of each Job, the oldest first."""
        found = []
        for job in self.kubernetes.objects("jobs"):
            holding = [one["type"] for one in job["status"].get("conditions", []) if one["status"] == "True"]
            state = next((one for one in ("Complete", "Failed", "Suspended") if one in holding), "Active")
            found.append((job["metadata"]["name"], state))
        return found

    def pods(self) -> list[Json]:
        """The pods that have not ended."""
        return [pod for pod in self.kubernetes.objects("pods") if pod["status"]["phase"] in ("Pending", "Running")]

    def queue(self) -> list[Json]:
        """The queue of the pool."""
        found: list[Json] = self.cluster.api("GET", "/api/v1/job-queues-v2?resourcePool=kubernetes")["jobs"]
        return [job.get("full", job) for job in found]

    def said(self) -> str:
        """What is known when a test has waited in vain."""
        texts = [self.cluster.text(trial["id"]) for number in range(1, 4) for trial in self._trials(number)]
        parts = [f"jobs {self.jobs()}", f"queue {self.queue()}", *texts, self.kubernetes.logs()]
        return "\n".join([*parts, self.cluster.master.process.stderr[-3000:]])

    def _trials(self, number: int) -> list[Json]:
        known = {one["id"] for one in self.cluster.api("GET", "/api/v1/experiments")["experiments"]}
        return self.cluster.trials(number) if number in known else []


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """Two nodes with a processor each, for one test after the other."""
    with KubernetesCluster(tmp_path_factory.mktemp("kubernetes") / "cluster") as cluster:
        for name in ("node-1", "node-2"):
            # One address: ranks of pods with loopback addresses of their own listen on 127.0.0.1 alone.
            cluster.start_node(name, "--cpu=1", "--ip=127.0.0.1")
        yield cluster


@pytest.fixture
def pool(
    kubernetes: KubernetesCluster,
    run: Runner,
    instep: Path,
    python: Path,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> Iterator[Site]:
    """A master for them; what it leaves there goes with it."""
    master = KubernetesMaster(kubernetes, python, run.start, instep, tmp_path / "master.db")
    master.start(wait_until, "--agent-reconnect-wait=3")
    site = Site(kubernetes, Cluster(run, instep, python, master, tmp_path, wait_until), run)
    yield site
    kubernetes.kubectl("delete", "jobs,pods", "--all", "--wait=false", "--namespace", NAMESPACE)
    wait_until(lambda: not kubernetes.objects("pods"), 60, "all pods to be gone")


def test_trial_in_two_pods_resumes_when_one_is_deleted(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    refused = {"pod_spec": {"spec": {"hostNetwork": True}}}
    with pytest.raises(pytest.fail.Exception, match=r"spec\.hostNetwork: users may not set this"):
        pool.create(environment=refused)
    labels = {"pod_spec": {"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}}}
    experiment = pool.create(environment=labels)
    trial = pool.trial(experiment)
    pool.steps(trial, 20)
    [pool_shown] = [
        one for one in cluster.api("GET", "/api/v1/resource-pools")["resourcePools"] if one["name"] == "kubernetes"
    ]
    assert pool_shown["schedulerType"] == "SCHEDULER_TYPE_KUBERNETES"
    one, other = pool.pods()
    assert {one["spec"]["nodeName"], other["spec"]["nodeName"]} == {"node-1", "node-2"}
    assert one["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert not one["spec"]["automountServiceAccountToken"]
    [(first, _)] = pool.jobs()
    # Who ends a pod gives notice: the trial saves what it has, and goes on in another Job.
    kubernetes.kubectl("delete", "pod", one["metadata"]["name"], "--namespace", NAMESPACE, "--wait=false")
    cluster.wait_until(lambda: len(pool.jobs()) == 2, 60, pool.said)
    pool.go.touch()
    cluster.wait_for(experiment, "STATE_COMPLETED")
    log = cluster.text(trial)
    assert "rank 1 resumed behind step 20" in log, log
    assert rows(cluster.api, trial, "training") == {step: {"x": 3 * step} for step in (10, 20, 30, 40)}
    cluster.wait_until(lambda: all(state in ("Complete", "Failed") for _, state in pool.jobs()), 60, pool.said)
    assert first in [name for name, _ in pool.jobs()]
    assert cluster.api("GET", "/api/v1/agents")["agents"] == []


def test_killed_master_finds_its_jobs_and_a_half_placed_gang_blocks_nobody(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    # Somebody else's pod leaves one of the two nodes.
    container = {"name": "c", "image": "i", "command": ["sleep", "1000"], "resources": {"requests": {"cpu": "1"}}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    kubernetes.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "blocker"}, "spec": spec})
    cluster.wait_until(lambda: any(pod["spec"].get("nodeName") for pod in pool.pods()), 30, "the other pod to run")
    gang = pool.create(name="gang")
    cluster.wait_until(lambda: any(pool.jobs()), 30, pool.said)
    alone = pool.create(slots=1, name="alone")
    pool.steps(pool.trial(alone), 20)
    cluster.wait_until(lambda: any("Kubernetes job instep-" in job["reason"] for job in pool.queue()), 30, pool.said)
    cluster.master.kill()
    cluster.master.start(cluster.wait_until, "--agent-reconnect-wait=3")
    pool.go.touch()
    cluster.wait_for(alone, "STATE_COMPLETED")
    assert cluster.experiment(gang)["state"] != "STATE_COMPLETED"
    kubernetes.kubectl("delete", "pod", "blocker", "--namespace", NAMESPACE, "--wait=false")
    cluster.wait_for(gang, "STATE_COMPLETED")
    cluster.wait_until(lambda: [state for _, state in pool.jobs()] == ["Complete"] * 2, 60, pool.said)
    assert all(trial["restarts"] == 0 for number in (gang, alone) for trial in cluster.trials(number))
    secrets = {secret["metadata"]["name"] for secret in kubernetes.objects("secrets")}
    assert secrets == {name for name, _ in pool.jobs()}, "each Job has its own, and no other is left"


@pytest.mark.soak
def test_pods_and_nodes_that_are_lost_are_replaced(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    kubernetes.start_node("node-3", "--cpu=1", "--ip=127.0.0.1", "--fail=crash")
    kubernetes.kubectl("cordon", "node-2")
    try:
        experiment = pool.create(max_restarts=5)
        trial = pool.trial(experiment)
        pool.steps(trial, 20)
        killed = next(pod["metadata"]["name"] for pod in pool.pods() if pod["spec"]["nodeName"] == "node-1")
        kubernetes.kubectl("delete", "pod", killed, "--namespace", NAMESPACE, "--grace-period=0", "--force")
        # As the rank said it, and not as a report quotes it.
        resumed = "|| rank 0 resumed behind step 20"
        cluster.wait_until(lambda: cluster.text(trial).count(resumed) == 1, 90, pool.said)
        # The machine is gone, with its pod.
        kubernetes.kubectl("uncordon", "node-2")
        kubernetes.nodes["node-3"].send_signal(signal.SIGUSR1)
        cluster.wait_until(lambda: cluster.text(trial).count(resumed) == 2, 120, pool.said)
        assert {pod["spec"]["nodeName"] for pod in pool.pods() if "deletionTimestamp" not in pod["metadata"]} == {
            "node-1",
            "node-2",
        }
        pool.go.touch()
        cluster.wait_for(experiment, "STATE_COMPLETED", 120)
    finally:
        kubernetes.kubectl("uncordon", "node-2")
        kubernetes.nodes.pop("node-3").kill_tree()
        kubernetes.kubectl("delete", "node", "node-3")
        # Nobody else ends what a lost node ran.
        kubernetes.kubectl("delete", "pods", "--all", "--namespace", NAMESPACE, "--grace-period=0", "--force")


@pytest.mark.soak
def test_quota_and_an_api_server_that_restarts_delay_and_break_nothing(pool: Site) -> None:
    cluster, kubernetes = pool.cluster, pool.kubernetes
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"}, "spec": {"hard": {"pods": "1"}}}
    kubernetes.create(quota)
    experiment = pool.create()
    trial = pool.trial(experiment)
    # What it holds it gives back.
    cluster.wait_until(lambda: any("were given back" in job["reason"] for job in pool.queue()), 60, pool.said)
    kubernetes.kubectl("delete", "resourcequota", "pods", "--namespace", NAMESPACE)
    pool.steps(trial, 20)
    kubernetes.restart_api_server()
    pool.go.touch()
    cluster.wait_for(experiment, "STATE_COMPLETED")
    second = pool.create(name="second")
    cluster.wait_for(second, "STATE_COMPLETED", 120)
    assert all(one["restarts"] == 0 for number in (experiment, second) for one in cluster.trials(number))


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
        cluster.wait_until(lambda: "cannot create resource" in cluster.text(trial), 60, pool.said)
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
