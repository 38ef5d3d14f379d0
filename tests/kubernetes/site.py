"""A master whose pool is a Kubernetes cluster, and what tests ask of both."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conftest import Runner
from detached.conftest import Master
from managed.conftest import Cluster

from .cluster import NAMESPACE, KubernetesCluster

COUNTING = Path(__file__).parents[1] / "slurm" / "scripts" / "counting"
NOTICING = Path(__file__).parent / "scripts" / "noticing"
SEARCHING = Path(__file__).parent / "scripts" / "searching"
# What an agent that was killed ran is given up soon.
OPTIONS = ("--agent-reconnect-wait=3",)
POOL = "kubernetes"
Json = dict[str, Any]


class KubernetesMaster(Master):
    """A master with one pool of nodes with a slot each, and the rights of the shipped Role."""

    def __init__(
        self,
        kubernetes: KubernetesCluster,
        python: Path,
        start: Callable[..., Any],
        instep: Path,
        database: Path,
        *,
        pool: str = POOL,
        beside: Json | None = None,
        **engine: object,
    ) -> None:
        super().__init__(start, instep, database)
        self.pool, self.beside = pool, beside
        # Tasks run as the user of the pod, by default.
        agent = [f"--python={python}", "--task-memory=none", "--task-processes=none"]
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
        """With the pool, and perhaps with one called `beside` whose settings differ."""
        pools = [{"pool_name": self.pool, "engine": self.engine}]
        if self.beside is not None:
            pools.append({"pool_name": "beside", "engine": {**self.engine, **self.beside}})
        return {**super().environment, "INSTEP_MASTER_RESOURCE_POOLS": json.dumps(pools)}


class Site:
    """A Kubernetes cluster and a master that runs its work there."""

    def __init__(self, kubernetes: KubernetesCluster, cluster: Cluster, run: Runner) -> None:
        self.kubernetes, self.cluster, self._run = kubernetes, cluster, run
        self.go = cluster.folder / "go"

    def create(
        self,
        slots: int = 2,
        environment: Json | None = None,
        context: Path = COUNTING,
        pool: str = POOL,
        **more: object,
    ) -> int:
        """Submit an experiment with our own command; its number."""
        config = self.cluster.config(
            f"{context.name}.py",
            environment={"environment_variables": [f"GO={self.go}"], **(environment or {})},
            resources={"slots_per_trial": slots, "resource_pool": pool},
            **more,
        )
        variables = {"INSTEP_MASTER": self.cluster.master.address, "HOME": str(self.cluster.folder)}
        words = (self.cluster.instep, "experiment", "create", self.cluster.written(config), context)
        said = self._run(*words, env=variables).expect(0).stdout
        number = re.search(r"\d+", said)
        assert number, said
        return int(number[0])

    def restart_master(self) -> None:
        """Kill the master, and start it again."""
        self.cluster.master.kill()
        self.cluster.master.start(self.cluster.wait_until, *OPTIONS)

    def trial(self, experiment: int) -> int:
        """The first trial of an experiment, once there is one."""
        self.cluster.wait_until(lambda: self.cluster.trials(experiment), 30, "a trial")
        number: int = self.cluster.trials(experiment)[0]["id"]
        return number

    def steps(self, trial: int, steps: int) -> None:
        """Wait until a trial has reported so many steps, or show why it does not."""
        path = f"/api/v1/trials/{trial}"
        self.wait_until(lambda: self.cluster.api("GET", path)["trial"]["totalBatchesProcessed"] >= steps)

    def wait_until(self, condition: Callable[[], object], seconds: float = 120) -> None:
        """Wait for a condition, or show everything."""
        __tracebackhide__ = True
        self.cluster.wait_until(condition, seconds, self.said)

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

    def nodes(self) -> set[str]:
        """The nodes of pods that run, and are to."""
        return {pod["spec"].get("nodeName", "") for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]}

    def queue(self) -> list[Json]:
        """The queue of the pool."""
        found: list[Json] = self.cluster.api("GET", f"/api/v1/job-queues-v2?resourcePool={POOL}")["jobs"]
        return [job.get("full", job) for job in found]

    def restarts(self, *experiments: int) -> list[int]:
        """How often each trial was restarted at its own cost."""
        return [trial["restarts"] for number in experiments for trial in self.cluster.trials(number)]

    def said(self) -> str:
        """What is known when a test has waited in vain."""
        texts = [self.cluster.text(trial["id"]) for number in range(1, 4) for trial in self._trials(number)]
        parts = [f"jobs {self.jobs()}", f"queue {self.queue()}", *texts, self.kubernetes.logs()]
        return "\n".join([*parts, self.cluster.master.process.stderr[-3000:]])

    def _trials(self, number: int) -> list[Json]:
        known = {one["id"] for one in self.cluster.api("GET", "/api/v1/experiments")["experiments"]}
        return self.cluster.trials(number) if number in known else []


def pod(name: str, **spec: object) -> Json:
    """A pod of somebody else, which needs a whole node and does nothing."""
    container = {"name": "c", "image": "i", "command": ["sleep", "1000"], "resources": {"requests": {"cpu": "1"}}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@contextlib.contextmanager
def site(
    kubernetes: KubernetesCluster,
    run: Runner,
    instep: Path,
    python: Path,
    folder: Path,
    wait_until: Callable[..., None],
    **engine: object,
) -> Iterator[Site]:
    """A master for a cluster; what it leaves there goes with it."""
    master = KubernetesMaster(kubernetes, python, run.start, instep, folder / "master.db", **engine)
    master.start(wait_until, *OPTIONS)
    try:
        yield Site(kubernetes, Cluster(run, instep, python, master, folder, wait_until), run)
    finally:
        if master.process.poll() is None:
            master.kill()
        empty(kubernetes, wait_until)


def empty(kubernetes: KubernetesCluster, wait_until: Callable[..., None]) -> None:
    """Remove all Jobs and pods."""
    kubernetes.kubectl("delete", "jobs,pods", "--all", "--wait=false", "--namespace", NAMESPACE)
    wait_until(lambda: not kubernetes.objects("pods"), 60, "all pods to be gone")
