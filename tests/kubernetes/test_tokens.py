"""What somebody can do with the token of an allocation, which whoever runs a trial can read in its pod."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Runner, Running

from .cluster import KubernetesCluster
from .conftest import NODES, MakeSite

pytestmark = pytest.mark.soak


def test_agents_of_an_allocation_are_few_and_take_no_names_of_machines(
    kubernetes: KubernetesCluster,
    make_site: MakeSite,
    run: Runner,
    instep: Path,
    forked: Path,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> None:
    for name in NODES[1:]:
        kubernetes.kubectl("cordon", name)
    try:
        with make_site(incomplete_timeout=600) as pool:
            cluster = pool.cluster
            experiment = pool.create()

            def agents() -> set[str]:
                return {agent["id"] for agent in cluster.api("GET", "/api/v1/agents")["agents"]}

            # The other pod finds no node.
            pool.wait_until(lambda: len(agents()) == 1)
            [secret] = kubernetes.objects("secrets")
            [(job, _)] = pool.jobs()
            [allocation] = {pod["metadata"]["annotations"]["instep.allocation-name"] for pod in pool.pods()}
            (tmp_path / "token").write_bytes(base64.b64decode(secret["data"]["token"]))
            (tmp_path / "token").chmod(0o600)

            def agent(uid: str, index: int = 1, number: int = 0) -> Running:
                pod = {
                    "INSTEP_MASTER": cluster.master.address,
                    "INSTEP_AGENT_TOKEN_FILE": str(tmp_path / "token"),
                    "INSTEP_POD_JOB": job,
                    "INSTEP_POD_COUNT": "2",
                    "INSTEP_POD_UID": uid,
                    "INSTEP_POD_NODE": "machine",
                    "JOB_COMPLETION_INDEX": str(index),
                    "HOME": str(tmp_path / f"home-{number}"),
                }
                words = ("--address=127.0.0.1", "--slots=1", f"--python={forked}", "--default-user=root")
                return run.start(instep, "agent", f"--for={allocation}", *words, env=pod)

            [first] = agents()
            # The name of a machine that lends its slots, say.
            refused = agent("7")
            wait_until(lambda: refused.poll() is not None, 30, lambda: refused.stderr)
            assert "an agent of job" in refused.stderr
            assert "cannot be called machine-7" in refused.stderr
            # A node that the gang does not have.
            refused = agent("f" * 32, index=2)
            wait_until(lambda: refused.poll() is not None, 30, lambda: refused.stderr)
            assert agents() == {first}
            # Any number of them for the node that is there: the newest counts, and the others are sent away.
            others = [agent(f"{number:032x}", index=0, number=number) for number in range(4)]
            wait_until(lambda: sum(other.poll() is None for other in others) <= 1, 60, lambda: others[0].stderr)
            wait_until(lambda: len(agents()) <= 1, 30, lambda: str(agents()))
            assert any(f"runs on node 0 of job {job}" in other.stderr for other in others)
            cluster.api("POST", f"/api/v1/experiments/{experiment}/kill")
            cluster.wait_for(experiment, "STATE_CANCELED")
            # Of an allocation that has ended there are none.
            wait_until(lambda: not agents(), 60, lambda: str(agents()))
            late = agent("e" * 32, number=9)
            wait_until(lambda: late.poll() is not None, 30, lambda: late.stderr)
            assert not agents()
    finally:
        for name in NODES[1:]:
            kubernetes.kubectl("uncordon", name)
