"""`instep run train.py` in an indexed Job that is made from the shipped template, on a real control plane.

There is no name server: names of pods are in a hosts file, which is kept as the headless Service would.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT

from .cluster import NAMESPACE, KubernetesCluster
from .site import empty

pytestmark = pytest.mark.soak

TEMPLATE = ROOT / "examples" / "kubernetes" / "job.yaml"
SCRIPTS = Path(__file__).parent / "scripts"
# A container runtime gives a pod its host name.
CONTAINER = """#!/bin/sh
exec unshare --uts sh -c 'hostname "$HOSTNAME" && exec {instep} "$@"' container "$@"
"""
LINE = re.compile(r"^rank (\d+) of (\d+): (.*); (.*)$", re.MULTILINE)
Json = dict[str, Any]


class Training:
    """The template's Job on four nodes of eight GPUs."""

    def __init__(self, kubernetes: KubernetesCluster, folder: Path, wait_until: Callable[..., None]) -> None:
        self.kubernetes, self.folder = kubernetes, folder
        self._wait = wait_until
        (folder / "hosts").write_text("127.0.0.1 localhost\n")
        (folder / "resolv.conf").touch()

    def start_nodes(self, instep: Path, python: Path) -> None:
        """Start the nodes; their pods have one processor, and no other names than those of the hosts file."""
        image = self.folder / "image"
        image.mkdir()
        (image / "instep").write_text(CONTAINER.format(instep=instep))
        (image / "instep").chmod(0o755)
        mounts = [f"mount --bind {self.folder}/{name} /etc/{name}" for name in ("hosts", "resolv.conf")]
        inside = " && ".join([*mounts, 'exec taskset --cpu-list 0 "$@"'])
        variables = {"PATH": f"{image}:{python.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        for number in range(4):
            self.kubernetes.start_node(
                f"gpu-{number}", "--gpus=8", within=("unshare", "--mount", "sh", "-c", inside, "node"), env=variables
            )

    def create(self, change: Callable[[Json], None] = lambda _: None) -> None:
        """Create what the template says, with the folder of its script, and with what a user changes besides."""
        shown = self.kubernetes.kubectl("create", f"--filename={TEMPLATE}", "--dry-run=client", "--output=json")
        decoder, objects = json.JSONDecoder(), []
        while shown := shown.strip():
            found, end = decoder.raw_decode(shown)
            objects.append(found)
            shown = shown[end:]
        service, job = objects
        job["spec"]["template"]["spec"]["containers"][0]["workingDir"] = str(SCRIPTS)
        change(job)
        for one in (service, job):
            one["metadata"]["namespace"] = NAMESPACE
            self.kubernetes.create(one)

    def resolve_names(self) -> list[Json]:
        """Write the hosts file anew; the pods that run."""
        pods = [pod for pod in self.kubernetes.objects("pods") if pod["status"]["phase"] == "Running"]
        lines = [
            f"{pod['status']['podIP']} {pod['spec']['hostname']}.{pod['spec']['subdomain']}\n"
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"]
        ]
        # In its place: it is mounted.
        (self.folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))
        return pods

    def wait_until(self, condition: Callable[[], object], seconds: float = 120) -> None:
        """Wait for a condition, and keep the names."""
        __tracebackhide__ = True

        def holds() -> object:
            self.resolve_names()
            return condition()

        def said() -> str:
            return f"{self.kubernetes.objects('pods')}\n{self.kubernetes.logs('train-')}"

        self._wait(holds, seconds, said)

    def wait_for_completion(self) -> list[dict[str, str]]:
        """What the ranks have said, in their order, when the Job is complete."""
        self.wait_until(lambda: "Complete" in self._conditions())
        lines = sorted(LINE.findall(self.kubernetes.logs("train-")), key=lambda line: int(line[0]))
        return [
            {"rank": rank, "of": size, "said": said} | dict(pair.split("=", 1) for pair in pairs.split())
            for rank, size, said, pairs in lines
        ]

    def _conditions(self) -> set[str]:
        [job] = self.kubernetes.objects("jobs")
        return {one["type"] for one in job["status"].get("conditions", []) if one["status"] == "True"}


@pytest.fixture
def training(
    kubernetes: KubernetesCluster, instep: Path, python: Path, tmp_path: Path, wait_until: Callable[..., None]
) -> Iterator[Training]:
    """Nodes for it, which go with it."""
    made = Training(kubernetes, tmp_path, wait_until)
    try:
        made.start_nodes(instep, python)
        yield made
    finally:
        empty(kubernetes, wait_until)
        kubernetes.kubectl("delete", "services", "--all", "--namespace", NAMESPACE)
        for number in range(4):
            kubernetes.forget(f"gpu-{number}")
        for log in (kubernetes.folder / "nodes").glob(f"gpu-*/logs/{NAMESPACE}/*.log"):
            log.unlink()


def test_pods_of_the_template_need_no_rendezvous_option(training: Training) -> None:
    training.create()
    said = training.wait_for_completion()
    shown = training.kubernetes.logs("train-")
    assert [rank["JOB_COMPLETION_INDEX"] for rank in said] == ["0", "1", "2", "3"], shown
    assert [rank["GROUP_RANK"] for rank in said] == ["0", "1", "2", "3"], shown
    assert {(rank["of"], rank["said"], rank["MASTER_ADDR"]) for rank in said} == {("4", "sum 10", "train-0.train")}, (
        shown
    )
    [job] = training.kubernetes.objects("jobs")
    assert {rank["TORCHELASTIC_RUN_ID"] for rank in said} == {job["metadata"]["uid"]}


@pytest.mark.parametrize("lost", ["2", "0"])
def test_pod_that_replaces_a_killed_one_joins_the_elastic_job(training: Training, lost: str) -> None:
    go = training.folder / "go"

    def elastic(job: Json) -> None:
        job["spec"]["backoffLimit"] = 4
        environment = job["spec"]["template"]["spec"]["containers"][0]["env"]
        [nodes] = [variable for variable in environment if variable["name"] == "PET_NNODES"]
        nodes["value"] = "2:4"
        environment.append({"name": "PATIENT", "value": str(go)})

    def index(pod: Json) -> str:
        return str(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])

    def all_run_in_a_round() -> bool:
        """Whether the newest round of each pod that runs is one of four ranks."""
        pods = training.resolve_names()
        names = {pod["metadata"]["name"] for pod in pods}
        rounds = [re.findall(r"of (\d) runs in round (\d+)", training.kubernetes.logs(name))[-1:] for name in names]
        return len(pods) == 4 and all(rounds) and len({found[0] for found in rounds}) == 1 and rounds[0][0][0] == "4"

    training.create(elastic)
    training.wait_until(all_run_in_a_round)
    [killed] = [pod["metadata"]["name"] for pod in training.resolve_names() if index(pod) == lost]
    training.kubernetes.kubectl(
        "delete", "pod", killed, "--namespace", NAMESPACE, "--grace-period=0", "--force", "--wait=false"
    )
    training.wait_until(lambda: killed not in {pod["metadata"]["name"] for pod in training.resolve_names()})
    training.wait_until(all_run_in_a_round)
    go.touch()
    said = training.wait_for_completion()
    assert [rank["rank"] for rank in said] == ["0", "1", "2", "3"]
    assert {rank["of"] for rank in said} == {"4"}
    assert {rank["JOB_COMPLETION_INDEX"] for rank in said} == {"0", "1", "2", "3"}
    assert len({rank["MASTER_ADDR"] for rank in said}) == 1
