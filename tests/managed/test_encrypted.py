"""Tasks of a master that encrypts know its certificate, whoever runs them and whatever else they trust."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Runner
from detached.conftest import Client

from .conftest import remove_groups

STOCK = """
from determined import core

with core.init() as context:
    context.train.report_validation_metrics(1, {"x": 1.0})
"""


class Encrypted:
    """A master with a certificate that vouches for itself, and an agent."""

    def __init__(
        self, run: Runner, instep: Path, interpreter: Path, folder: Path, wait_until: Callable[..., None]
    ) -> None:
        self._run = run
        self._instep = instep
        self._interpreter = interpreter
        self._folder = folder
        self._wait_until = wait_until
        self.certificate = folder / "master.cert.pem"
        words = ("master", "--port", "0", "--db", folder / "master.db", "--tls-self-signed")
        serving = run.start(instep, *words, env={"HOME": str(folder)})
        found: list[str] = []

        def listens() -> bool:
            assert serving.poll() is None, serving.stderr
            found[:] = re.findall(r"https://127\.0\.0\.1:\d+", serving.stdout)
            return bool(found)

        wait_until(listens, 30, "the master to listen")
        self.api = Client(found[0], trusted=self.certificate).login()

    def agent(self, certificate: Path, user: str = "root", **variables: str) -> None:
        """Start an agent that trusts what is in a file."""
        words = ["--master", self.api.address, "--slots", "1", "--python", str(self._interpreter)]
        words += ["--state-folder", str(self._folder / "agent")]
        words += ["--default-user", user] if os.geteuid() == 0 else ["--shared-uid"]
        known = {"HOME": str(self._folder), "INSTEP_MASTER_CERT_FILE": str(certificate)}
        agent = self._run.start(self._instep, "agent", *words, env={**known, **variables})
        self._wait_until(lambda: "offers 1 slot" in agent.stderr + agent.stdout, 30, lambda: agent.stderr)

    def command(self, line: str) -> str:
        """Run a command to its end; give that and its output."""
        request = {"config": {"entrypoint": [line], "resources": {"slots": 0}}}
        task = self.api("POST", "/api/v1/commands", request)["command"]["id"]

        def found() -> Any:  # noqa: ANN401
            return self.api("GET", f"/api/v1/commands/{task}")["command"]

        def written() -> str:
            return "".join(line["message"] for line in self.api.lines(f"/api/v1/tasks/{task}/logs"))

        self._wait_until(lambda: found()["state"] == "STATE_TERMINATED", 60, written)
        return f"{found()['exitStatus']}\n{written()}"

    def trial(self, script: str) -> str:
        """Run an experiment with one trial to its end; give how that was."""
        content = base64.b64encode(script.encode()).decode()
        file = {"path": "stock.py", "type": 48, "content": content, "mtime": "0", "mode": 0o644, "uid": 0, "gid": 0}
        config = {
            "name": "stock",
            "entrypoint": "python3 stock.py",
            "searcher": {"name": "single", "metric": "x"},
            "max_restarts": 0,
            "checkpoint_storage": {"type": "shared_fs", "host_path": str(self._folder)},
        }
        request = {"config": json.dumps(config), "activate": True, "modelDefinition": [file]}
        number = self.api("POST", "/api/v1/experiments", request)["experiment"]["id"]

        def state() -> str:
            return str(self.api("GET", f"/api/v1/experiments/{number}")["experiment"]["state"])

        def told() -> str:
            trials = self.api("GET", f"/api/v1/experiments/{number}/trials")["trials"]
            lines = [line for trial in trials for line in self.api.lines(f"/api/v1/trials/{trial['id']}/logs")]
            return "".join(line["message"] for line in lines)

        self._wait_until(lambda: state() in ("STATE_COMPLETED", "STATE_ERROR"), 60, told)
        return state()


@pytest.fixture
def encrypted(
    run: Runner, instep: Path, determined: Path, tmp_path: Path, wait_until: Callable[..., None]
) -> Iterator[Encrypted]:
    yield Encrypted(run, instep, determined, tmp_path, wait_until)
    run.kill_all()
    remove_groups(tmp_path / "agent")


def test_a_script_of_determined_trusts_the_master_besides_what_the_agent_does(
    encrypted: Encrypted, determined: Path
) -> None:
    [others] = determined.parents[1].glob("lib/python3*/site-packages/certifi/cacert.pem")
    # Determined's HTTP library would have it win over the certificate that its client was given.
    encrypted.agent(encrypted.certificate, REQUESTS_CA_BUNDLE=str(others))
    assert encrypted.trial(STOCK) == "STATE_COMPLETED"
    count = 'grep -c "BEGIN CERTIFICATE" "$DET_MASTER_CERT_FILE" "$REQUESTS_CA_BUNDLE"'
    told = encrypted.command(count)
    assert re.search(r"ssl/master\.crt:1\n", told), told
    assert f"REQUESTS_CA_BUNDLE:{others.read_text().count('BEGIN CERTIFICATE') + 1}\n" in told


def test_a_certificate_that_only_the_agent_may_read_is_known_to_tasks(encrypted: Encrypted, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden.pem"
    hidden.write_text(encrypted.certificate.read_text())
    hidden.chmod(0o600)
    encrypted.agent(hidden, "nobody")
    told = encrypted.command('test -r "$DET_MASTER_CERT_FILE" && echo "as $(id -u)"')
    assert "it exited successfully" in told, told
    if os.geteuid() == 0:
        assert "as 65534" in told


def test_a_task_without_a_certificate_says_so(encrypted: Encrypted, tmp_path: Path) -> None:
    copied = tmp_path / "copied.pem"
    copied.write_text(encrypted.certificate.read_text())
    encrypted.agent(copied)
    copied.unlink()
    told = encrypted.command("true")
    assert f"cannot read the master's certificates in {copied}" in told, told
