"""A cluster whose users do not trust each other: one master, an agent of root or of somebody else, and four users."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from conftest import Runner, Running
from detached.conftest import Client

from .conftest import TERMINAL, Cluster, remove_groups

# Of nobody on this machine.
ALICE, BOB, CAROL = 41001, 41002, 41003
# Reachable by every user, as the interpreter of these tests need not be.
PYTHON = "/usr/bin/python3"


class Walls:
    """A master with users alice and bob, who have Unix users of their own, and carol and dave, who have none."""

    def __init__(self, cluster: Cluster, run: Runner, instep: Path, folder: Path) -> None:
        self.cluster = cluster
        self._run = run
        self._instep = instep
        self.folder = folder
        self.state = folder / "agent"
        self.agent: Running | None = None
        admin = cluster.master.client.login("admin")
        self.token: str = admin("POST", "/api/v1/agents/tokens", {"name": "one"})["token"]
        self.users: dict[str, Client] = {}
        for name, uid in (("alice", ALICE), ("bob", BOB), ("carol", None), ("dave", None)):
            group = {"agentUid": uid, "agentGid": uid, "agentUser": name, "agentGroup": name} if uid else None
            user = {"username": name, "active": True, **({"agentUserGroup": group} if group else {})}
            admin("POST", "/api/v1/users", {"user": user})
            self.users[name] = cluster.master.client.login(name)

    def start(self, *options: str, uid: int = 0, slots: int = 2, token: bool = True, without: str = "") -> None:
        """Start an agent as a user of the machine, or as root without a capability."""
        program = self.folder / "instep"
        if not program.exists():
            shutil.copy(self._instep, program)
        words = ["--master", self.cluster.master.address, "--name", "one", "--slots", str(slots), "--python", PYTHON]
        words += ["--state-folder", str(self.state), *options]
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
        become += ["setpriv", f"--bounding-set=-{without}", f"--inh-caps=-{without}"] if without else []
        environment = {
            "HOME": str(self.folder),
            "INSTEP_AGENT_TOKEN": self.token if token else None,
            "SECRET_OF_THE_AGENT": "swordfish",
            "OMP_NUM_THREADS": "3",
        }
        self.agent = self._run.start(*become, program, "agent", *words, env=environment)
        agent, api = self.agent, self.cluster.api

        def is_known() -> bool:
            assert agent.poll() is None, agent.stderr
            return any(found["enabled"] for found in api("GET", "/api/v1/agents")["agents"])

        self.cluster.wait_until(is_known, 30, "the agent to be known")

    def begin(
        self,
        user: str,
        script: str,
        variables: tuple[str, ...] = (),
        storage: Path | None = None,
        mounts: tuple[dict[str, str], ...] = (),
        policies: tuple[dict[str, str], ...] = (),
    ) -> int:
        """Start an experiment of a user; give the number of its trial."""
        config = self.cluster.config(script, bind_mounts=list(mounts), log_policies=list(policies))
        config["environment"] = {"environment_variables": [f"SHARES={self.state / 'shares'}", *variables]}
        # The folder is open to all users.
        config["checkpoint_storage"] = {"type": "shared_fs", "host_path": str(storage or self.folder)}
        request = {"config": self.cluster.written(config).read_text(), "activate": True, "modelDefinition": []}
        number = int(self.users[user]("POST", "/api/v1/experiments", request)["experiment"]["id"])
        self.cluster.wait_until(lambda: self.cluster.trials(number), 20, "a trial")
        trial: int = self.cluster.trials(number)[0]["id"]
        return trial

    def waiting(self) -> str:
        """Give the reasons why jobs wait."""
        jobs = self.cluster.api("GET", "/api/v1/job-queues?resourcePool=default&limit=100")["jobs"]
        return "\n".join(job.get("reason", "") for job in jobs)

    def state_of(self, trial: int) -> str:
        """Give the state of a trial's experiment."""
        number = self.cluster.api("GET", f"/api/v1/trials/{trial}")["trial"]["experimentId"]
        return str(self.cluster.experiment(number)["state"])

    def ended(self, trial: int, seconds: float = 30) -> str:
        """Wait for a trial's end; give its log."""
        text = self.cluster.text
        self.cluster.wait_until(
            lambda: self.state_of(trial) in TERMINAL, seconds, lambda: f"trial {trial} to end\n{text(trial)}"
        )
        return text(trial)

    def log(self, user: str, script: str, storage: Path | None = None, mounts: tuple[dict[str, str], ...] = ()) -> str:
        """Run a user's script to its end; give its log."""
        return self.ended(self.begin(user, script, storage=storage, mounts=mounts))

    def refused(self, user: str, script: str, mounts: tuple[dict[str, str], ...] = ()) -> str:
        """Try something that an agent refuses, which is tried again and again; give the log up to the reason."""
        trial = self.begin(user, script, mounts=mounts)
        self.wait_for(trial, "it could not be started")
        self.kill(trial)
        return self.cluster.text(trial)

    def wait_for(self, trial: int, text: str) -> None:
        """Wait until a trial has written something."""
        log = self.cluster.text
        self.cluster.wait_until(lambda: text in log(trial), 30, lambda: f"{text!r} in the log\n{log(trial)}")

    def kill(self, trial: int, seconds: float = 30) -> None:
        """Kill a trial's experiment, as its owner, and wait for its end."""
        number = self.cluster.api("GET", f"/api/v1/trials/{trial}")["trial"]["experimentId"]
        owner = self.users[self.cluster.experiment(number)["username"]]
        owner("POST", f"/api/v1/experiments/{number}/kill")
        self.cluster.wait_for(number, "STATE_CANCELED", seconds)


@pytest.fixture
def walls(cluster: Cluster, run: Runner, instep: Path) -> Iterator[Walls]:
    """The cluster, with a folder that every user reaches."""
    folder = Path(tempfile.mkdtemp(prefix="walls-", dir="/var/tmp"))
    folder.chmod(0o1777)
    made = Walls(cluster, run, instep, folder)
    yield made
    if made.agent:
        left = made.agent.left_behind()
        made.agent.kill_tree()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
    remove_groups(made.state)
    shutil.rmtree(folder, ignore_errors=True)
