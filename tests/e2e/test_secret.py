"""The secret that the launcher makes for the workers of a round: on all nodes, for nobody else to see."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from namespaces import Network, network

from conftest import Runner, Running

__all__ = ["network"]

RANKS = Path(__file__).resolve().parent / "scripts" / "secret_ranks.py"
PORT = 29611


class Job:
    """Two nodes with a rank each."""

    def __init__(self, network: Network, instep: Path, python: Path, forked: Path, run: Runner, folder: Path) -> None:
        self._network = network
        self._python, self._forked = python, forked
        self._run = run
        self._folder = folder
        self._commands = {"instep": (instep, "run"), "torchrun": (forked, "-m", "torch.distributed.run")}

    def start(
        self,
        node: int,
        rendezvous: str,
        *,
        launcher: str = "instep",
        secret: str | None = None,
        encrypt: str | None = None,
    ) -> Running:
        """Start one of the nodes; `secret` is the user's own, `encrypt` says whether ranks encrypt what they send."""
        first = self._network.nodes[0].ipv4
        if rendezvous == "static":
            where = [f"--node-rank={node}", f"--master-addr={first}", f"--master-port={PORT}"]
        else:
            where = ["--rdzv-backend=c10d", f"--rdzv-endpoint={first}:{PORT}"]
        words = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-id=secret", *where]
        if launcher == "instep":
            words += [f"--log-dir={self._folder / 'logs'}", "--redirects=3", f"--events={self._folder / 'events'}"]
        environment = {
            "VIRTUAL_ENV": str(self._python.parent.parent),
            "PYTHON_EXEC": str(self._forked),
            "OMP_NUM_THREADS": "1",
            "INSTEP_SECRET": secret,
            "INSTEP_ENCRYPT": encrypt,
        }
        command = (*self._commands[launcher], *words, RANKS, self._folder, "5" if secret else "60")
        return self._network.nodes[node].start(self._run, *command, env=environment)

    def found(self) -> list[dict[str, Any]]:
        """What the ranks wrote."""
        return [json.loads((self._folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture
def job(network: Network, instep: Path, python: Path, forked: Path, run: Runner, tmp_path: Path) -> Job:
    return Job(network, instep, python, forked, run, tmp_path)


@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_all_workers_of_a_job_know_a_secret_that_nobody_sees(job: Job, tmp_path: Path, rendezvous: str) -> None:
    shown = [running.wait() for running in [job.start(node, rendezvous) for node in range(2)]]
    for result in shown:
        result.expect(0)
    [secret] = {found["secret"] for found in job.found()}
    assert re.fullmatch("[0-9a-f]{32}", secret)
    assert [found["error"] for found in job.found()] == [None] * 2
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".json"]
    assert not any(secret in text for text in [str(result) for result in shown] + written)


def test_ranks_with_another_secret_do_not_get_in(job: Job) -> None:
    for running in [job.start(0, "static", secret="one"), job.start(1, "static", secret="another")]:
        running.wait().expect(0)
    assert [found["secret"] for found in job.found()] == ["one", "another"]
    assert all(found["error"] for found in job.found())
    assert any("is INSTEP_SECRET the same" in found["error"] for found in job.found()), job.found()


def test_ranks_encrypt_what_they_send_under_the_secret_of_the_launcher(job: Job) -> None:
    for running in [job.start(node, "static", encrypt="1") for node in range(2)]:
        running.wait().expect(0)
    assert [found["error"] for found in job.found()] == [None] * 2


def test_ranks_of_which_one_encrypts_get_an_error_at_once(job: Job) -> None:
    for running in [job.start(0, "static", encrypt="1"), job.start(1, "static")]:
        running.wait().expect(0)
    for found in job.found():
        assert "rank 0 encrypts what it sends to other hosts, rank 1 does not" in found["error"], found
        assert "hint: set INSTEP_ENCRYPT=1 on all nodes" in found["error"], found


def test_workers_of_torchrun_are_met_without_one(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nodes of torchrun cannot have a token.
    monkeypatch.delenv("INSTEP_JOB_TOKEN_FILE", raising=False)
    for running in [job.start(0, "static"), job.start(1, "static", launcher="torchrun")]:
        running.wait(120).expect(0)
    assert job.found() == [{"secret": None, "error": None}] * 2
