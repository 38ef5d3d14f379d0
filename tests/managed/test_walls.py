"""What a user tries against the agent and against other users, as a script would: nothing of it may work.

Two kinds of agent: one that root started, whose tasks run as the Unix users of their owners, and one of an ordinary user.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from conftest import Runner, Running
from detached.conftest import Client

from .conftest import TERMINAL, Cluster

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes tasks run as several users, which takes root")

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
        self._users: dict[str, Client] = {}
        for name, uid in (("alice", ALICE), ("bob", BOB), ("carol", None), ("dave", None)):
            group = {"agentUid": uid, "agentGid": uid, "agentUser": name, "agentGroup": name} if uid else None
            user = {"username": name, "active": True, **({"agentUserGroup": group} if group else {})}
            admin("POST", "/api/v1/users", {"user": user})
            self._users[name] = cluster.master.client.login(name)

    def start(self, *options: str, uid: int = 0, slots: int = 2) -> None:
        """Start an agent as a user of the machine."""
        program = shutil.copy(self._instep, self.folder / "instep")
        words = ["--master", self.cluster.master.address, "--name", "one", "--slots", str(slots), "--python", PYTHON]
        words += ["--state-folder", str(self.state), *options]
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
        environment = {
            "HOME": str(self.folder),
            "INSTEP_AGENT_TOKEN": self.token,
            "SECRET_OF_THE_AGENT": "swordfish",
            "OMP_NUM_THREADS": "3",
        }
        self.agent = self._run.start(*become, program, "agent", *words, env=environment)
        agent, api = self.agent, self.cluster.api

        def is_known() -> bool:
            assert agent.poll() is None, agent.stderr
            return any(found["enabled"] for found in api("GET", "/api/v1/agents")["agents"])

        self.cluster.wait_until(is_known, 30, "the agent to be known")

    def begin(self, user: str, script: str, variables: tuple[str, ...] = (), **more: object) -> int:
        """Start an experiment of a user; give the number of its trial."""
        config = self.cluster.config(script, **more)
        config["environment"] = {"environment_variables": [f"SHARES={self.state / 'shares'}", *variables]}
        config["checkpoint_storage"] = {"type": "shared_fs", "host_path": str(self.folder), "storage_path": user}
        storage = self.folder / user
        storage.mkdir(exist_ok=True)
        storage.chmod(0o1777)
        request = {"config": self.cluster.written(config).read_text(), "activate": True, "modelDefinition": []}
        number = int(self._users[user]("POST", "/api/v1/experiments", request)["experiment"]["id"])
        self.cluster.wait_until(lambda: self.cluster.trials(number), 20, "a trial")
        trial: int = self.cluster.trials(number)[0]["id"]
        return trial

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

    def log(self, user: str, script: str, variables: tuple[str, ...] = (), **more: object) -> str:
        """Run a user's script to its end; give its log."""
        return self.ended(self.begin(user, script, variables, **more))

    def wait_for(self, trial: int, text: str) -> None:
        """Wait until a trial has written something."""
        log = self.cluster.text
        self.cluster.wait_until(lambda: text in log(trial), 30, lambda: f"{text!r} in the log\n{log(trial)}")

    def kill(self, trial: int) -> None:
        """Kill a trial's experiment and wait for its end."""
        number = self.cluster.api("GET", f"/api/v1/trials/{trial}")["trial"]["experimentId"]
        self.cluster.api("POST", f"/api/v1/experiments/{number}/kill")
        self.cluster.wait_for(number, "STATE_CANCELED", 30)


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
    shutil.rmtree(folder, ignore_errors=True)


def test_a_forged_end_neither_ends_a_task_nor_blocks_the_agent(walls: Walls) -> None:
    # Issue 18, findings 4 and 5.
    walls.start()
    forge = """
        for place in "$SHARES/$DET_RESOURCES_ID" "$SHARES/$DET_RESOURCES_ID/task"; do
            echo '{"kind":"code","code":0}' > "$place/exit.json"
        done 2>/dev/null
        echo forged; sleep 600
    """
    trial = walls.begin("alice", forge)
    walls.wait_for(trial, "forged")
    assert "hello" in walls.log("bob", "echo hello"), "the agent serves others meanwhile"
    assert walls.state_of(trial) == "STATE_RUNNING"
    walls.kill(trial)


def test_an_agent_without_root_survives_a_forged_end(walls: Walls) -> None:
    # Issue 18, finding 5: here the files cannot be protected, and yet the end is not believed before it comes.
    walls.start(uid=CAROL)
    forge = """echo '{"kind":"code","code":0}' > "$SHARES/$DET_RESOURCES_ID/exit.json"; echo forged; sleep 600"""
    trial = walls.begin("carol", forge)
    walls.wait_for(trial, "forged")
    assert "hello" in walls.log("dave", "echo hello"), "the agent serves others meanwhile"
    assert walls.state_of(trial) == "STATE_RUNNING"
    walls.kill(trial)


def test_nothing_is_written_through_links_of_a_task(walls: Walls) -> None:
    # Issue 18, finding 3.
    walls.start()
    victim = walls.folder / "victim"
    victim.write_text("untouched")
    victim.chmod(0o600)
    assert walls.agent is not None
    names = " ".join(f"{name}.new{walls.agent.pid} {name}.json" for name in ("stop", "exit", "order", "pid"))
    links = f"""
        for folder in "$SHARES/$DET_RESOURCES_ID" "$SHARES/$DET_RESOURCES_ID"/*/; do
            for name in {names}; do ln -sfn {victim} "$folder/$name"; done
        done 2>/dev/null
        echo linked; sleep 600
    """
    trial = walls.begin("alice", links)
    walls.wait_for(trial, "linked")
    walls.kill(trial)
    assert victim.read_text() == "untouched"
    shares = walls.state / "shares"
    walls.cluster.wait_until(lambda: not any(shares.iterdir()), 20, "the folder to be removed")


def test_a_stopped_supervisor_does_not_keep_a_task_alive(walls: Walls) -> None:
    walls.start()
    trial = walls.begin("alice", "echo going; sleep 1; kill -STOP $PPID; sleep 600")
    walls.wait_for(trial, "going")
    walls.kill(trial)
