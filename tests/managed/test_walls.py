"""What a user tries against the agent and against other users, as a script would: nothing of it may work.

Two kinds of agent: one that root started, whose tasks run as the Unix users of their owners, and one of an ordinary
user.
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
        self.users: dict[str, Client] = {}
        for name, uid in (("alice", ALICE), ("bob", BOB), ("carol", None), ("dave", None)):
            group = {"agentUid": uid, "agentGid": uid, "agentUser": name, "agentGroup": name} if uid else None
            user = {"username": name, "active": True, **({"agentUserGroup": group} if group else {})}
            admin("POST", "/api/v1/users", {"user": user})
            self.users[name] = cluster.master.client.login(name)

    def start(self, *options: str, uid: int = 0, slots: int = 2, token: bool = True) -> None:
        """Start an agent as a user of the machine."""
        program = self.folder / "instep"
        if not program.exists():
            shutil.copy(self._instep, program)
        words = ["--master", self.cluster.master.address, "--name", "one", "--slots", str(slots), "--python", PYTHON]
        words += ["--state-folder", str(self.state), *options]
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
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
    ) -> int:
        """Start an experiment of a user; give the number of its trial."""
        config = self.cluster.config(script, bind_mounts=list(mounts))
        config["environment"] = {"environment_variables": [f"SHARES={self.state / 'shares'}", *variables]}
        # The folder is open to all users.
        config["checkpoint_storage"] = {"type": "shared_fs", "host_path": str(storage or self.folder)}
        request = {"config": self.cluster.written(config).read_text(), "activate": True, "modelDefinition": []}
        number = int(self.users[user]("POST", "/api/v1/experiments", request)["experiment"]["id"])
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

    def kill(self, trial: int) -> None:
        """Kill a trial's experiment, as its owner, and wait for its end."""
        number = self.cluster.api("GET", f"/api/v1/trials/{trial}")["trial"]["experimentId"]
        owner = self.users[self.cluster.experiment(number)["username"]]
        owner("POST", f"/api/v1/experiments/{number}/kill")
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
    walls.start("--shared-uid", uid=CAROL)
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


def test_tasks_take_from_the_agent_only_what_is_allowed(walls: Walls) -> None:
    # Issue 18, finding 1.
    walls.start()
    names = ("INSTEP_AGENT_TOKEN", "SECRET_OF_THE_AGENT", "OMP_NUM_THREADS")
    trial = walls.begin("alice", "env | sort; echo done", names)
    log = walls.ended(trial)
    assert walls.token not in log
    assert "swordfish" not in log
    assert "OMP_NUM_THREADS=3" in log
    assert "done" in log


def test_an_agent_without_root_keeps_its_token_to_itself(walls: Walls) -> None:
    # Issue 18, findings 1 and 8: the same user could read /proc/PID/environ and the orders of other tasks.
    walls.start("--shared-uid", uid=CAROL)
    assert walls.agent is not None
    trial = walls.begin("carol", "echo going; sleep 600")
    walls.wait_for(trial, "going")
    steal = """
        for file in /proc/[0-9]*/environ /proc/[0-9]*/cmdline "$SHARES"/*/*.json; do tr '\\0' '\\n' < "$file"; done 2>&1
        grep -c . "$SHARES"/*/order.json; echo done
    """
    log = walls.log("dave", steal)
    assert walls.token not in log
    assert "order.json" not in log.replace("*/order.json", "")
    assert "done" in log
    walls.kill(trial)


def test_an_agent_without_root_serves_one_user(walls: Walls) -> None:
    # Issue 18, finding 8.
    walls.start(uid=CAROL)
    assert "uid=41003" in walls.log("carol", "id")
    log = walls.refused("dave", "id")
    assert "uid=" not in log
    assert "carol" in log
    assert "--shared-uid" in log
    assert "uid=41003" in walls.log("carol", "id")


def test_users_without_a_unix_user_are_nobody(walls: Walls) -> None:
    # Issue 18, finding 13.
    walls.start()
    secret = walls.folder / "secret"
    secret.write_text("swordfish")
    secret.chmod(0o600)
    log = walls.log("carol", f"id; cat {secret}; cat /proc/self/status")
    assert "uid=65534(nobody)" in log
    assert "NoNewPrivs:\t1" in log
    assert "swordfish" not in log


def test_a_folder_of_ones_own_is_not_mounted_over_the_system(walls: Walls) -> None:
    # Issue 18, finding 2.
    allowed, own = walls.folder / "allowed", walls.folder / "own"
    for folder in (allowed, own):
        folder.mkdir()
        (folder / "passwd").write_text("forged")
        os.chown(folder, ALICE, ALICE)
    walls.start("--allow-mount", str(allowed))
    (own / "link").symlink_to("/root")
    cases = [(own, "data"), (own, "/etc"), (allowed, "/etc"), (own / "link", "data"), (allowed / "..", "data")]
    for host, inside in cases:
        mount = {"host_path": str(host), "container_path": str(inside)}
        log = walls.refused("alice", "cat /etc/passwd; ls -la data", mounts=(mount,))
        assert "forged" not in log, mount
        assert "hint: " in log, mount
    mount = {"host_path": str(allowed), "container_path": "data"}
    log = walls.log("alice", "cat data/passwd; touch data/new || echo refused", mounts=(mount,))
    assert "forged" in log
    assert "refused" in log
    assert not (allowed / "new").exists()


def test_an_administrator_chooses_root_for_users_without_a_unix_user(walls: Walls) -> None:
    walls.start("--default-user", "root")
    assert "uid=0(root)" in walls.log("carol", "id")
    assert f"uid={ALICE}" in walls.log("alice", "id")


def test_a_token_is_not_seen_in_the_command_line(walls: Walls) -> None:
    # Issue 18, finding 8.
    file = walls.folder / "token"
    file.write_text(walls.token + "\n")
    for options in (("--token", walls.token), ("--token-file", str(file))):
        walls.start(*options, token=False)
        assert walls.agent is not None
        words = psutil.Process(walls.agent.pid).cmdline()
        assert "agent" in words
        assert walls.token not in " ".join(words)
        walls.agent.kill_tree()


def test_what_an_administrator_allows_to_be_written_is(walls: Walls) -> None:
    allowed = walls.folder / "allowed"
    allowed.mkdir()
    os.chown(allowed, ALICE, ALICE)
    walls.start("--allow-mount", f"{allowed}:rw")
    mount = {"host_path": str(allowed), "container_path": "/tmp/data"}
    walls.log("alice", "touch /tmp/data/new; grep ' /tmp/data ' /proc/self/mountinfo", mounts=(mount,))
    assert (allowed / "new").stat().st_uid == ALICE


def test_storage_is_made_with_the_rights_of_the_task(walls: Walls) -> None:
    # A root agent once made any folder that a configuration named, open to all.
    walls.start()
    forbidden = walls.folder / "forbidden"
    forbidden.mkdir(mode=0o755)
    log = walls.log("alice", "echo started", storage=forbidden / "new")
    assert "Checkpoint storage validation failed" in log
    assert "started" not in log
    assert not (forbidden / "new").exists()
    walls.log("alice", "echo started", storage=walls.folder / "mine" / "new")
    assert (walls.folder / "mine").stat().st_uid == ALICE
