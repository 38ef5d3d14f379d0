"""A master that may not lead any more steps down: the tasks that it led go on."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from conftest import Runner
from detached.conftest import Client
from detached.postgres import Postgres
from managed.conftest import Cluster
from managed.faults import Work
from ports import free_ports

from .conftest import TAKEOVER_S, Masters
from .test_search import cluster, start_agent

__all__ = ["cluster"]


def depose(server: Postgres, schema: str) -> None:
    """Raise the epoch, as a master does that takes over: whoever leads may not any more."""
    raised = "".join(f'UPDATE "{schema}".{table} SET epoch = epoch + 1;' for table in ("lease", "leader"))
    server.psql(f"BEGIN; {raised} COMMIT;")


def is_asked_to_stop(address: str, token: str, allocation: str, answers: list[Any]) -> None:
    """Ask as a task does, until there is an answer or the master is gone."""
    parts = urlsplit(address)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    path = f"/api/v1/allocations/{allocation}/signals/preemption?timeout_seconds=60"
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answers.append(json.loads(connection.getresponse().read()).get("preempt", False))
    except (OSError, http.client.HTTPException):
        answers.append(False)
    finally:
        connection.close()


def test_a_leader_that_steps_down_asks_no_task_to_stop(
    cluster: Cluster, masters: Masters, server: Postgres, python: Path, tmp_path: Path
) -> None:
    start_agent(cluster, "one")
    work = Work(cluster, tmp_path, python)
    work.begin("training")
    work.wait_for("training")
    start_agent(cluster, "idle")
    leader = masters.leader()
    assert cluster.api.token is not None
    [trial] = cluster.trials(work.number)
    answers: list[Any] = []
    asking = (leader.address, cluster.api.token, f"{trial['taskId']}.1", answers)
    thread = threading.Thread(target=is_asked_to_stop, args=asking, daemon=True)
    thread.start()
    depose(server, tmp_path.name)
    # It is about to write down that an agent has gone, and finds that it may not.
    cluster.agents["idle"].kill_tree()
    masters.wait_until(lambda: "stepping down" in leader.process.stderr, 30, masters.told)
    thread.join(60)
    assert answers == [False]
    masters.leader()
    work.release("training")
    work.check()


def test_a_task_of_the_agent_beside_a_master_outlives_that_it_steps_down(
    run: Runner,
    instep: Path,
    python: Path,
    server: Postgres,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> None:
    port, tasks = free_ports(2)
    address, schema = f"http://127.0.0.1:{port}", tmp_path.name
    words = ["--port", str(port), "--proxy-port", str(tasks), "--advertise", address, "--slots", "2"]
    words += ["--db", f"{server.address}?schema={schema}", "--checkpoints", str(tmp_path)]
    environment = {
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "HOME": str(tmp_path),
        "PATH": f"{python.parent}:/usr/bin:/bin",
    }
    process = run.start(instep, "up", "--foreground", *words, env=environment)
    wait_until(lambda: "offers 2 slots" in process.stderr + process.stdout, 60, lambda: process.stderr)
    known: Any = Client(address)
    known.client = known
    made = Cluster(run, instep, python, known, tmp_path, wait_until, known.login())
    work = Work(made, tmp_path, python)
    work.begin("training")
    work.wait_for("training")
    pid = process.pid
    depose(server, schema)
    wait_until(lambda: "stepping down" in process.stderr, 30, lambda: process.stderr)

    def leads_again() -> bool:
        try:
            return bool(json.loads(Client(address).raw("GET", "/health")[2]).get("role") == "leader")
        except (OSError, http.client.HTTPException):
            return False

    wait_until(leads_again, TAKEOVER_S, lambda: process.stderr[-3000:])
    assert (process.pid, process.poll()) == (pid, None)
    assert Path(f"/proc/{pid}/comm").read_text() == "instep\n", "the list of processes calls it what it is"
    work.release("training")
    work.check()
    process.send_signal(signal.SIGTERM)
    process.wait().expect(0)
