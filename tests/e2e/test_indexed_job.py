"""Pods of an indexed Job as `instep run` sees them: the template's variables, host names, names that resolve late.

A pod is a process with a host name and a hosts file of its own (namespaces, which need root), and no other name server.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from conftest import ROOT, Runner, Running, WaitUntil

PUPPET = Path(__file__).resolve().parent / "scripts" / "puppet.py"
TEMPLATE = (ROOT / "examples" / "kubernetes" / "job.yaml").read_text()
ADDRESSES = {f"train-{index}.train": f"127.78.0.{index + 1}" for index in range(4)}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="host names of one's own need root")


def of_template(pattern: str) -> str:
    """A value of the template."""
    found = re.search(pattern, TEMPLATE)
    assert found, f"{pattern} is not in the template"
    return found[1]


class Pods:
    """The pods of one Job."""

    def __init__(self, run: Runner, instep: Path, python: Path, folder: Path) -> None:
        self._run, self._instep, self._python = run, instep, python
        self.folder = folder
        (folder / "hosts").write_text("127.0.0.1 localhost\n")
        (folder / "resolv.conf").touch()
        self._environment = {
            "PET_NNODES": of_template(r'name: PET_NNODES\n +value: "(.+?)"'),
            "PET_RDZV_ENDPOINT": of_template(r"name: PET_RDZV_ENDPOINT\n +value: (\S+)"),
            "PET_RDZV_ID": "0b2d9a5e-7a53-4f0e-9d1f-3f2b8f3a7c11",
            "PYTHON_EXEC": str(python),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, index: int, *steps: str, options: str = "") -> Running:
        """Start a pod."""
        places = [f"mount --bind {self.folder}/{name} /etc/{name}" for name in ("hosts", "resolv.conf")]
        launch = f"exec {self._instep} run --log-dir /dev/null {options} {PUPPET} {self.folder}"
        inside = " && ".join([f"hostname train-{index}", *places, f'{launch} "$@"'])
        environment = {**self._environment, "JOB_COMPLETION_INDEX": str(index)}
        return self._run.start("unshare", "--uts", "--mount", "sh", "-c", inside, "pod", *steps, env=environment)

    def resolve_names(self) -> None:
        """Have the cluster's name server know the pods."""
        with (self.folder / "hosts").open("a") as hosts:
            hosts.writelines(f"{address} {name}\n" for name, address in ADDRESSES.items())

    def group_ranks(self, size: int) -> list[str]:
        """Which node each rank was on."""
        seen = [json.loads((self.folder / f"0.{rank}.environment").read_text()) for rank in range(size)]
        assert {worker["WORLD_SIZE"] for worker in seen} == {str(size)}
        return [f"{worker['JOB_COMPLETION_INDEX']}: {worker['GROUP_RANK']}" for worker in seen]


@pytest.fixture
def pods(instep: Path, python: Path, run: Runner, tmp_path: Path) -> Pods:
    return Pods(run, instep, python, tmp_path)


def test_template_says_the_number_of_pods_three_times() -> None:
    nodes = of_template(r'name: PET_NNODES\n +value: "(.+?)"')
    assert [of_template(rf"\n  {name}: (\d+)") for name in ("completions", "parallelism")] == [nodes, nodes]
    assert nodes == str(len(ADDRESSES))


def test_pods_of_the_template_find_each_other_as_soon_as_their_names_resolve(pods: Pods, wait_until: WaitUntil) -> None:
    jobs = [pods.start(index, "environment") for index in (3, 1, 2, 0)]
    reason = 'waiting for the first node: the name "train-0.train" does not resolve'
    for job in jobs[:3]:
        wait_until(lambda job=job: reason in job.stderr, 20, lambda job=job: job.stderr)
    assert reason not in jobs[3].stderr, "the first pod serves, whether or not its own name resolves"
    pods.resolve_names()
    for job in jobs:
        job.wait(30).expect(0)
    assert pods.group_ranks(4) == ["0: 0", "1: 1", "2: 2", "3: 3"]


def test_elastic_job_takes_in_the_pod_that_replaces_a_lost_one(pods: Pods, wait_until: WaitUntil) -> None:
    pods.resolve_names()
    jobs = [pods.start(index, "ready", "see go", "environment", options="--nnodes 2:4") for index in range(4)]

    def in_round(number: int) -> bool:
        return all(f"round {number}" in job.stderr for job in jobs if job.poll() is None)

    wait_until(lambda: in_round(0), 30, lambda: "\n".join(job.stderr for job in jobs))
    jobs[2].send_signal(signal.SIGKILL)
    wait_until(lambda: in_round(1), 30, lambda: "\n".join(job.stderr for job in jobs))
    jobs[2] = pods.start(2, "ready", "see go", "environment", options="--nnodes 2:4")
    wait_until(lambda: in_round(2), 30, lambda: "\n".join(job.stderr for job in jobs))
    (pods.folder / "go").touch()
    for job in jobs:
        job.wait(30).expect(0)
    # Those that stayed keep their order; the one that came back is the last.
    assert pods.group_ranks(4) == ["0: 0", "1: 1", "3: 2", "2: 3"]
