"""Commands and TensorBoards: with the real `det`, with our own command line, and through a restart of the master."""

from __future__ import annotations

import json
import shlex
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Result, Runner
from detached.conftest import Failed
from detached.det import Commands

from .conftest import CONTEXTS, Cluster

TUTORIAL = CONTEXTS / "tutorial"


@pytest.fixture
def ours(run: Runner, instep: Path, cluster: Cluster, tmp_path: Path) -> Callable[..., Result]:
    """Our own command line, in a home of its own."""
    environment = {"INSTEP_MASTER": cluster.master.address, "HOME": str(tmp_path)}

    def call(words: str, status: int = 0) -> Result:
        return run(instep, *shlex.split(words), env=environment, cwd=tmp_path).expect(status)

    return call


def command(cluster: Cluster, task: str) -> dict[str, Any]:
    """Give a command as the API shows it."""
    found: dict[str, Any] = cluster.api("GET", f"/api/v1/commands/{task}")["command"]
    return found


def written(cluster: Cluster, task: str) -> str:
    """Give a task's log as people read it."""
    return "".join(line["message"] for line in cluster.api.lines(f"/api/v1/tasks/{task}/logs"))


def wait_for(cluster: Cluster, task: str, state: str) -> None:
    """Wait until a command is in a state."""
    cluster.wait_until(lambda: command(cluster, task)["state"] == state, 60, f"command {task} to be {state}")


def test_commands_with_det(cluster: Cluster, det: Commands, tmp_path: Path) -> None:
    cluster.agent("one", 2)
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "hello.txt").write_text("from the context\n")
    # Words are a program with its arguments, one word alone is a line for the shell.
    [printed] = det(["cmd", "run", "--context", str(folder), "--config", "resources.slots=2", "cat", "hello.txt"])
    assert "from the context" in printed
    [printed] = det(
        ["cmd", "run", "--config", "environment.environment_variables=[A=7]", "echo $A$DET_TASK_TYPE; exit 3"]
    )
    assert "7COMMAND" in printed and "exit code 3" in printed
    [listed] = det("cmd list --json")
    first, second = json.loads(listed)
    assert (first["state"], first["exitStatus"]) == (
        "TERMINATED",
        "it exited successfully: all of it ended with exit code 0",
    )
    assert second["exitStatus"] == "it failed with exit code 3"
    [config] = det(f"cmd config {first['id']}")
    assert "slots: 2" in config
    # Logs stay, and partial identifiers do.
    [logs] = det(f"cmd logs {first['id'][:8]}")
    assert "from the context" in logs
    task = det("cmd run --detach --config resources.slots=0 sleep 600")[0].strip()
    wait_for(cluster, task, "STATE_RUNNING")
    [described] = det(f"cmd describe {task}")
    assert "RUNNING" in described
    det(f"cmd kill {task}")
    wait_for(cluster, task, "STATE_TERMINATED")
    assert command(cluster, task)["exitStatus"] == "it was stopped: user determined wants it to end"
    assert "determined wants it to end" in written(cluster, task)


def test_commands_wait_in_the_queue_with_their_priorities(
    cluster: Cluster, det: Commands, ours: Callable[..., Result]
) -> None:
    cluster.agent("one", 1)
    first = ours("command run -d sleep 600").stdout.strip()
    wait_for(cluster, first, "STATE_RUNNING")
    second, third = (ours(f"command run -d 'echo {name}'").stdout.strip() for name in ("second", "third"))
    jobs = cluster.api("GET", "/api/v1/job-queues-v2")["jobs"]
    assert [job["full"]["entityId"] for job in jobs] == [first, second, third]
    assert {job["full"]["type"] for job in jobs} == {"TYPE_COMMAND"}
    det(f"cmd set priority {third} 7")
    jobs = cluster.api("GET", "/api/v1/job-queues-v2")["jobs"]
    assert [job["full"]["entityId"] for job in jobs] == [third, first, second]
    assert "waiting" in ours("command list").stdout
    assert "resources" in ours(f"command config {third}").stdout
    # As much of an id as no other has is enough.
    assert ours(f"command describe {first[:8]}").stdout == ours(f"command describe {first}").stdout
    assert "command 'z' not found" in ours("command kill z", 1).stderr
    ours(f"command kill {first[:13]}")
    for task in (second, third):
        wait_for(cluster, task, "STATE_TERMINATED")
    started = {task: cluster.api("GET", f"/api/v1/tasks/{task}")["task"] for task in (second, third)}
    begun = {task: found["allocations"][0]["startTime"] for task, found in started.items()}
    assert begun[third] < begun[second]
    # What waits is withdrawn, what fails is a failure, what is wrong is refused.
    holder = ours("command run -d sleep 600").stdout.strip()
    wait_for(cluster, holder, "STATE_RUNNING")
    held = ours("command run -d true").stdout.strip()
    assert "needs 1 slot" in ours(f"command describe {held}").stdout
    assert "has ended" in ours(f"command kill {held}").stderr
    ours(f"command kill {holder}")
    assert "exit code 5" in ours("command run 'exit 5'", 1).stderr
    assert "resource: unknown key" in ours("command run --config resource.slots=1 true", 1).stderr
    lost = ours("command run nosuchprogram x", 1)
    assert "was not found" in lost.stdout and "exit code 127" in lost.stderr
    with pytest.raises(Failed, match="command 'nothing' not found"):
        cluster.api("GET", "/api/v1/commands/nothing")


def test_a_command_outlives_its_master_and_runs_once(cluster: Cluster, tmp_path: Path) -> None:
    cluster.agent("one", 1)
    trace = tmp_path / "trace"
    script = f"echo begun >> {trace}; while [ ! -e {trace}.go ]; do sleep 0.1; done; echo over"
    request = {"config": {"entrypoint": [script]}}
    task = cluster.api("POST", "/api/v1/commands", request)["command"]["id"]
    waiting = cluster.api("POST", "/api/v1/commands", {"config": {"entrypoint": ["echo later"]}})["command"]["id"]
    cluster.wait_until(trace.exists, 60, "the command to run")
    wait_for(cluster, task, "STATE_RUNNING")
    cluster.master.kill()
    cluster.master.start(cluster.wait_until)
    assert command(cluster, task)["state"] == "STATE_RUNNING"
    assert command(cluster, waiting)["state"] == "STATE_QUEUED"
    Path(f"{trace}.go").touch()
    for each in (task, waiting):
        wait_for(cluster, each, "STATE_TERMINATED")
        assert command(cluster, each)["exitStatus"] == "it exited successfully: all of it ended with exit code 0"
    assert trace.read_text() == "begun\n"
    assert "over" in written(cluster, task)


def get(address: str, headers: dict[str, str]) -> tuple[int, str]:
    """Ask as a browser does."""
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_tensorboard_shows_what_trials_wrote(cluster: Cluster, det: Commands, ours: Callable[..., Result]) -> None:
    cluster.agent("one", 1)
    config = cluster.config("python3 metrics.py", hyperparameters={"increment_by": 1})
    det(["e", "create", str(cluster.written(config)), str(TUTORIAL)])
    cluster.wait_for(1, "STATE_COMPLETED")
    [printed] = det("tensorboard start 1 --no-browser")
    assert "Tensorboard is running at" in printed
    [task] = json.loads(det("tensorboard list --json")[0])
    assert (task["state"], task["experimentIds"]) == ("RUNNING", [1])
    address = f"{cluster.master.address}/proxy/{task['id']}/"
    assert get(address, {})[0] == 401, "nobody looks without a token"
    bearer = {"Authorization": f"Bearer {cluster.api.token}"}
    assert "TensorBoard" in get(address, bearer)[1]

    def runs() -> list[str]:
        found: list[str] = json.loads(get(f"{address}data/runs", bearer)[1])
        return found

    cluster.wait_until(lambda: any("experiment-1-trial-1" in each for each in runs()), 30, "the trial to be shown")
    assert task["id"] in ours("tensorboard list").stdout
    assert ours(f"tensorboard open {task['id']}").stdout.strip().endswith(f"/det/interactive/{task['id']}/tensorboard")
    det(f"tensorboard kill {task['id']}")
    cluster.wait_until(lambda: get(address, bearer)[0] == 404, 60, "the TensorBoard to end")
    # One that nobody looks at ends by itself.
    other = ours("tensorboard start --trial-ids 1 --config idle_timeout=1s -d").stdout.strip()

    def over() -> bool:
        return bool(cluster.api("GET", f"/api/v1/tensorboards/{other}")["tensorboard"]["state"] == "STATE_TERMINATED")

    cluster.wait_until(over, 60, "the other to end")
    assert "it was idle for 1 s" in written(cluster, other)
    with pytest.raises(Failed, match="experiment '9' not found"):
        cluster.api("POST", "/api/v1/tensorboards", {"experimentIds": [9]})


def test_a_task_gets_its_secrets_and_its_log_does_not_show_them(
    cluster: Cluster, det: Commands, ours: Callable[..., Result], run: Runner, instep: Path, tmp_path: Path
) -> None:
    cluster.agent("one", 1)
    environment = {"INSTEP_MASTER": cluster.master.address, "HOME": str(tmp_path)}
    for name, value in (("token", "hunter2hunter2\n"), ("key", "first line of a key\nsecond line of a key\n")):
        (tmp_path / name).write_text(value)
    run("sh", "-c", f"exec {instep} secret set token < token", env=environment, cwd=tmp_path).expect(0)
    ours("secret set key --from-file key")
    assert [each["name"] for each in json.loads(ours("secret list --json").stdout)] == ["key", "token"]
    settings = ["environment.secrets={TOKEN: token}", "environment.secret_files={key.pem: key}"]
    script = (
        "import os; f = os.environ['INSTEP_SECRETS_DIR'] + '/key.pem'; s = os.stat(f); k = open(f).read(); "
        "t = os.environ['TOKEN']; print(len(t), len(k), oct(s.st_mode & 0o777), s.st_uid == os.getuid()); "
        "print('it is', t, 'and', k)"
    )
    [printed] = det(
        ["cmd", "run", *[word for each in settings for word in ("--config", each)], "python3", "-c", script]
    )
    # A file as it is, with the end of its last line.
    assert "14 41 0o400 True" in printed
    assert "it is ******** and ********" in printed
    assert "hunter2" not in printed
    assert "second line" not in printed
    refused = ours("command run --config 'environment.secrets={X: none}' true", status=1)
    assert "secret 'none' does not exist" in refused.stderr
    assert "hint:" in refused.stderr
    ours("secret delete token --yes")
    assert "no secrets" in ours("secret list --workspace Uncategorized").stderr
    audit = ours("master audit --action secret").stdout
    assert [words[3] for words in (line.split() for line in audit.splitlines()[1:])] == [
        "secret.set",
        "secret.set",
        "secret.delete",
    ]


def test_a_notebook_says_what_it_lacks(cluster: Cluster, det: Commands, ours: Callable[..., Result]) -> None:
    # The verbs, for one that waits for an agent.
    other = ours("notebook start --detach --config resources.slots=0").stdout.strip()
    det(f"notebook set priority {other} 7")
    assert '"slots": 0' in ours(f"notebook config {other}").stdout
    det(f"notebook kill {other}")
    # This Python has no JupyterLab; that it runs where it is installed shows tests/pages/test_notebooks.py.
    cluster.agent("one", 1, python=Path(sys.executable))
    task = det("notebook start --detach")[0].split()[-1]
    path = f"/api/v1/notebooks/{task}"
    ended = "STATE_TERMINATED"
    cluster.wait_until(lambda: cluster.api("GET", path)["notebook"]["state"] == ended, 60, "the notebook to end")
    missing = "JupyterLab is not installed for this task's Python: pip install jupyterlab"
    assert missing in det(f"notebook logs {task}")[0] and missing in ours(f"notebook logs {task}").stdout
    assert "idle_timeout: 60" in det("notebook start --preview --config idle_timeout=1m")[0]
    assert [found["id"] for found in json.loads(det("notebook list --json")[0])] == [other, task]
    refused = ours("notebook start --config notebook_idle_type=never", 1).stderr
    assert "notebook_idle_type: must be one of kernels_or_terminals, kernel_connections, activity" in refused
