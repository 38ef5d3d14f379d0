"""DeepSpeed on two machines by Determined's own launcher, which starts OpenSSH's server on both (in soak, 50 s each).

The machines are network namespaces. The interpreter of the tasks has the packages of build/determined and of
build/frameworks. In CI runs only what a launcher lacks (about 8 s).
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from conftest import ROOT, Runner
from detached.conftest import Client
from e2e.namespaces import Network, network

from .conftest import CONTEXTS, TERMINAL, Cluster, rows
from .kinds import python_for_all
from .test_network import PASSWORD, Machines, enter, exact

__all__ = ["enter", "network"]

CONTEXT = CONTEXTS / "deepspeed"
# As whom tasks run: a Unix user that the machine does not know, and one that nobody logs in as.
ALICE, NOBODY = 41001, 65534
UIDS = {"root": 0, "linked": ALICE, "other": NOBODY}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user reaches."""
    made = Path(tempfile.mkdtemp(prefix="launchers-", dir="/var/tmp"))
    made.chmod(0o1777)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def interpreter(folder: Path) -> Path:
    """An interpreter with Determined's package and DeepSpeed, and the programs that they start."""
    frameworks = ROOT / "build" / "frameworks"
    if not frameworks.exists():
        pytest.fail(f"there is no {frameworks}\nhint: python3 scripts/build.py frameworks", pytrace=False)
    made = python_for_all(folder / "python", ROOT / "build" / "determined", frameworks)
    runner = made.with_name("deepspeed")
    runner.write_text(f"#!{made}\nfrom deepspeed.launcher.runner import main\nmain()\n")
    runner.chmod(0o755)
    made.with_name("ninja").symlink_to(frameworks / "bin" / "ninja")
    return made


@pytest.fixture
def extensions(interpreter: Path, folder: Path, run: Runner) -> Path:
    """What DeepSpeed compiles of itself when it is used first, which takes a minute: compiled once for all tests."""
    kept = ROOT / "build" / "torch_extensions"
    environment = {"DS_ACCELERATOR": "cpu", "PATH": f"{interpreter.parent}:{os.environ['PATH']}"}
    script = "from deepspeed.comm.torch import build_shm_op; build_shm_op()"
    if not kept.exists():
        new = kept.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        environment["TORCH_EXTENSIONS_DIR"] = str(new)
        run(interpreter, "-c", script, env=environment, timeout=600).expect(0)
        new.rename(kept)
    return Path(shutil.copytree(kept, folder / "extensions", ignore=shutil.ignore_patterns("lock")))


class Launchers:
    """Two machines with one slot each, and experiments over both."""

    def __init__(self, cluster: Cluster, user: Client, extensions: Path) -> None:
        self.cluster = cluster
        self.user = user
        self._extensions = extensions

    def begin(self, what: str) -> int:
        """Start an experiment; give the number of its trial."""
        config = self.cluster.config(
            f"python3 -m determined.launch.deepspeed python3 train.py {what}",
            searcher={"name": "single", "metric": "first"},
            resources={"slots_per_trial": 2},
            environment={"environment_variables": ["DS_ACCELERATOR=cpu", f"TORCH_EXTENSIONS_DIR={self._extensions}"]},
        )
        files = [{"path": path.name, "type": 0, "content": content(path)} for path in CONTEXT.iterdir()]
        request = {"config": self.cluster.written(config).read_text(), "activate": True, "modelDefinition": files}
        number = int(self.user("POST", "/api/v1/experiments", request)["experiment"]["id"])
        self.cluster.wait_until(lambda: self.cluster.trials(number), 20, "a trial")
        trial: int = self.cluster.trials(number)[0]["id"]
        return trial


def content(path: Path) -> str:
    """A file as requests carry it."""
    return base64.b64encode(path.read_bytes()).decode()


def tasks(folder: Path) -> list[psutil.Process]:
    """Everything that runs in tasks of this test's agents, known by what it sees: ssh's server has no environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if str(folder) in Path(f"/proc/{process.pid}/mountinfo").read_text():
                found.append(process)
    return found


@pytest.fixture
def start(
    enter: Network,
    run: Runner,
    instep: Path,
    interpreter: Path,
    extensions: Path,
    folder: Path,
    wait_until: Callable[..., None],
) -> Iterator[Callable[[str], Launchers]]:
    """Start the machines, with an agent of root or of somebody else on each."""
    if shutil.which("pdsh") is None or not Path("/usr/sbin/sshd").exists():
        pytest.fail("pdsh or /usr/sbin/sshd is missing\nhint: python3 scripts/system.py soak", pytrace=False)
    program = folder / "instep"
    shutil.copy(instep, program)
    made: list[Cluster] = []

    def started(kind: str) -> Launchers:
        machines = Machines(enter, run, program, interpreter, folder, slots=1)
        cluster = machines.start(enter.nodes[0].ipv4, wait_until, uid=UIDS[kind] if kind == "other" else 0)
        made.append(cluster)
        for path in (extensions, *extensions.rglob("*")):
            os.chown(path, UIDS[kind], UIDS[kind])
        if kind != "linked":
            return Launchers(cluster, cluster.api, extensions)
        admin = cluster.master.client.login("admin", PASSWORD)
        group = {"agentUid": ALICE, "agentGid": ALICE, "agentUser": "alice", "agentGroup": "alice"}
        account = {"username": "alice", "active": True, "agentUserGroup": group}
        admin("POST", "/api/v1/users", {"user": account, "password": PASSWORD})
        return Launchers(cluster, cluster.master.client.login("alice", PASSWORD), extensions)

    yield started
    for cluster in made:
        cluster.end()
    for process in tasks(folder):
        process.kill()


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", UIDS)
def test_deepspeed_trains_on_two_machines(start: Callable[[str], Launchers], kind: str) -> None:
    launchers = start(kind)
    trial = launchers.begin("train")
    cluster = launchers.cluster
    cluster.wait_until(lambda: cluster.experiment(1)["state"] in TERMINAL, 240, lambda: cluster.text(trial))
    # Determined's launcher gives DeepSpeed 5 s to end after the ranks have: too little for a machine with other work.
    completed = cluster.experiment(1)["state"] == "STATE_COMPLETED"
    assert completed or "container failed with non-zero exit code: 241" in cluster.text(trial), cluster.text(trial)
    expected = {step: row for step, row in exact().items() if step <= 4}
    assert {step: dict(row) for step, row in rows(cluster.api, trial, "training").items()} == expected
    lines = cluster.logs(trial)
    for rank in range(2):
        said = f"rank {rank} of 2 is done on agent{rank} as {UIDS[kind]}"
        [line] = [line for line in lines if said in line["log"]]
        assert (line["rankId"], line["agentId"]) == (rank, f"agent{rank}")
    cluster.wait_until(lambda: not tasks(cluster.folder), 20, lambda: f"their end: {tasks(cluster.folder)}")


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_rank_that_fails_on_the_second_machine_fails_the_trial(start: Callable[[str], Launchers]) -> None:
    launchers = start("linked")
    trial = launchers.begin("fail")
    cluster = launchers.cluster
    cluster.wait_for(1, "STATE_ERROR", 240)
    assert "RuntimeError: rank 1 gives up" in cluster.text(trial)
    cluster.wait_until(lambda: not tasks(cluster.folder), 20, lambda: f"their end: {tasks(cluster.folder)}")


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_killed_trial_leaves_nothing_on_either_machine(
    start: Callable[[str], Launchers], enter: Network, run: Runner
) -> None:
    launchers = start("linked")
    trial = launchers.begin("wait")
    cluster = launchers.cluster
    text = cluster.text
    waiting = [f"rank {rank} waits" for rank in range(2)]
    cluster.wait_until(lambda: all(said in text(trial) for said in waiting), 200, lambda: text(trial))
    # Whoever has not its key is not let in, on either machine.
    for node in enter.nodes:
        words = ["-p", "12350", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-l", "alice"]
        words += ["-o", "UserKnownHostsFile=/dev/null", node.ipv4, "true"]
        assert "Permission denied (publickey)" in run("ssh", *words, timeout=30).expect(255).stderr
    running = [process.name() for process in tasks(cluster.folder) if process.uids().real == ALICE]
    assert running.count("sshd") >= 4, running
    launchers.user("POST", "/api/v1/experiments/1/kill")
    cluster.wait_for(1, "STATE_CANCELED", 60)
    cluster.wait_until(lambda: not tasks(cluster.folder), 20, lambda: f"their end: {tasks(cluster.folder)}")


def test_a_launcher_says_what_is_not_installed(cluster: Cluster) -> None:
    cluster.agent("one", 2)
    config = cluster.config(
        "python3 -m determined.launch.horovod python3 -c 1 || exit 3", resources={"slots_per_trial": 2}
    )
    request = {"config": cluster.written(config).read_text(), "activate": True, "modelDefinition": []}
    cluster.api("POST", "/api/v1/experiments", request)
    cluster.wait_for(1, "STATE_ERROR", 60)
    [trial] = cluster.trials(1)
    text = cluster.text(trial["id"])
    assert (
        "determined.launch.horovod starts `horovodrun`, which the Python of tasks on this agent does not have" in text
    )
    assert "hint: pip install horovod there, or use determined.launch.torch_distributed or `instep run`" in text
