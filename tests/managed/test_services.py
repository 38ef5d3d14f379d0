"""What tasks serve, when something goes wrong: agents that are lost or drained, servers that hang, bodies without end.

In soak: about 2 minutes.
"""

from __future__ import annotations

import contextlib
import http.client
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from conftest import Runner
from detached.conftest import Client, Failed, Master
from ports import free_port

from .conftest import Cluster

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

# How much the master's memory may grow while a body passes through it.
GROWTH = 64 << 20
BODY = 1 << 30

# Takes any body, gives 1 GiB, gives bytes for ever, or does not answer.
SERVER = """
import http.server, sys, time
block = bytes(1 << 20)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        kind = self.path.rsplit("/", 1)[1]
        while kind == "hang":
            time.sleep(1)
        self.send_response(200)
        count = {"large": 1024, "plain": 1}.get(kind)
        if count:
            self.send_header("Content-Length", str(count * len(block)))
        self.end_headers()
        while count is None or count > 0:
            self.wfile.write(block)
            if count is None:
                time.sleep(0.02)
            else:
                count -= 1
        self.close_connection = True
    def do_POST(self):
        taken = 0
        while True:
            size = int(self.rfile.readline(), 16)
            left = size
            while left:
                left -= len(self.rfile.read(min(left, 1 << 20)))
            self.rfile.readline()
            taken += size
            if not size:
                break
        text = str(taken).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def master(run: Runner, instep: Path, tmp_path: Path, wait_until: Callable[..., None]) -> Iterator[Master]:
    """A master that waits 3 s for agents that it lost."""
    server = Master(run.start, instep, tmp_path / "master.db")
    server.start(wait_until, "--agent-reconnect-wait", "3")
    yield server
    if server.process.poll() is None:
        server.stop()


def state_of(api: Client, kind: str, task: str) -> str:
    """How a task stands."""
    found: str = api("GET", f"/api/v1/{kind}s/{task}")[kind]["state"]
    return found


def log_of(api: Client, task: str) -> str:
    """What a task's log says."""
    return "".join(line["message"] for line in api.lines(f"/api/v1/tasks/{task}/logs"))


def notebook(cluster: Cluster) -> str:
    """Start a notebook without slots, and wait until it can be used."""
    config = {"resources": {"slots": 0}}
    task: str = cluster.api("POST", "/api/v1/notebooks", {"config": config})["notebook"]["id"]
    wait_for_notebook(cluster, task)
    return task


def wait_for_notebook(cluster: Cluster, task: str) -> None:
    """Wait until it answers."""
    path = f"/proxy/{task}/api/kernels"
    cluster.wait_until(
        lambda: cluster.api.raw("GET", path)[0] == 200, 60, lambda: f"the notebook\n{log_of(cluster.api, task)}"
    )


def test_a_notebook_on_a_lost_agent_ends_and_says_so(cluster: Cluster) -> None:
    agent = cluster.agent("one", 1, "--address", "127.0.0.1")
    task = notebook(cluster)
    # As a machine is lost: everything on it at once.
    everything = [psutil.Process(agent.pid), *agent.left_behind()]
    for process in everything:
        process.suspend()
    for process in everything:
        process.kill()
    cluster.wait_until(lambda: state_of(cluster.api, "notebook", task) == "STATE_TERMINATED", 60, "its end")
    assert "it was lost and is not restarted" in log_of(cluster.api, task), log_of(cluster.api, task)
    with pytest.raises(Failed, match="has ended"):
        cluster.api("GET", f"/proxy/{task}/api/kernels")


def test_a_notebook_on_a_drained_agent_stays_and_a_disabled_agent_ends_it(cluster: Cluster) -> None:
    cluster.agent("one", 1, "--address", "127.0.0.1")
    task = notebook(cluster)
    admin = cluster.master.client.login("admin")
    admin("POST", "/api/v1/agents/one/disable", {"drain": True})
    later: str = cluster.api("POST", "/api/v1/notebooks", {"config": {"resources": {"slots": 0}}})["notebook"]["id"]
    wait_for_notebook(cluster, task)
    assert state_of(cluster.api, "notebook", later) == "STATE_QUEUED", "nothing new starts there"
    cluster.api("POST", f"/api/v1/notebooks/{later}/kill", {})
    admin("POST", "/api/v1/agents/one/disable", {})
    cluster.wait_until(lambda: state_of(cluster.api, "notebook", task) == "STATE_TERMINATED", 60, "its end")
    assert "agent one was disabled" in log_of(cluster.api, task), log_of(cluster.api, task)


class Served:
    """A task with a port, and connections to it through the master."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.port = free_port()
        (folder / "server.py").write_text(SERVER)
        config = {
            "entrypoint": f"python3 {folder}/server.py {self.port}",
            "resources": {"slots": 0},
            "environment": {"proxy_ports": [{"proxy_port": self.port}]},
        }
        self.task: str = cluster.api("POST", "/api/v1/commands", {"config": config})["command"]["id"]
        self.base = f"/proxy/{self.task}:{self.port}"
        self._connections: list[http.client.HTTPConnection] = []
        self._answers: list[http.client.HTTPResponse] = []
        cluster.wait_until(lambda: cluster.api.raw("GET", f"{self.base}/plain")[0] == 200, 60, "the server")

    def connect(self) -> http.client.HTTPConnection:
        """A connection to the master, until the test is over."""
        self._connections.append(http.client.HTTPConnection("127.0.0.1", self.cluster.master.port, timeout=60))
        return self._connections[-1]

    def ask(self, connection: http.client.HTTPConnection, what: str) -> http.client.HTTPResponse:
        """Ask for something; give what is answered, to be read."""
        connection.request("GET", f"{self.base}/{what}", headers=self.headers)
        self._answers.append(connection.getresponse())
        return self._answers[-1]

    def close(self) -> None:
        """Leave all connections; an answer that is not read holds one open."""
        for opened in [*self._answers, *self._connections]:
            opened.close()

    @property
    def headers(self) -> dict[str, str]:
        """Who asks."""
        return {"Authorization": f"Bearer {self.cluster.api.token}"}


@contextlib.contextmanager
def bounded(process: psutil.Process) -> Iterator[None]:
    """Watch a process' memory meanwhile: it must not grow by much."""
    before, most, ended = process.memory_info().rss, [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            most[0] = max(most[0], process.memory_info().rss)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()
    print(f"the master's memory grew by {(most[0] - before) >> 20} MiB from {before >> 20} MiB")
    assert most[0] - before < GROWTH, f"it grew by {(most[0] - before) >> 20} MiB"


@pytest.fixture
def served(cluster: Cluster, tmp_path: Path) -> Iterator[Served]:
    """The task."""
    cluster.agent("one", 1, "--address", "127.0.0.1")
    made = Served(cluster, tmp_path)
    yield made
    made.close()


def test_bodies_of_a_gibibyte_pass_as_streams(served: Served) -> None:
    block = bytes(1 << 20)
    with bounded(psutil.Process(served.cluster.master.process.pid)):
        connection = served.connect()
        began = time.monotonic()
        parts = (block for _ in range(BODY >> 20))
        connection.request("POST", f"{served.base}/x", parts, headers=served.headers, encode_chunked=True)
        assert int(connection.getresponse().read()) == BODY
        sent = time.monotonic()
        answer = served.ask(served.connect(), "large")
        assert sum(len(part) for part in iter(lambda: answer.read(1 << 20), b"")) == BODY
    print(f"sent in {sent - began:.1f} s, received in {time.monotonic() - sent:.1f} s")


def test_a_reader_that_stops_reading_holds_back_the_task_and_not_the_master(served: Served) -> None:
    with bounded(psutil.Process(served.cluster.master.process.pid)):
        for _ in range(4):
            assert served.ask(served.connect(), "large").status == 200
        # 4 GiB want to come, and nobody takes them.
        time.sleep(5)
        assert served.cluster.api("GET", "/api/v1/me")


def test_a_server_that_hangs_or_never_ends_harms_nobody(served: Served) -> None:
    process = psutil.Process(served.cluster.master.process.pid)
    before = len(process.net_connections("tcp"))
    hanging = [served.connect() for _ in range(20)]
    with bounded(process):
        for connection in hanging:
            connection.request("GET", f"{served.base}/hang", headers=served.headers)
        for _ in range(5):
            assert len(served.ask(served.connect(), "endless").read(4 << 20)) == 4 << 20
        assert served.cluster.api.raw("GET", f"{served.base}/plain")[0] == 200, "others are served meanwhile"
        served.close()
        # Whoever leaves takes the connection to the task along.
        served.cluster.wait_until(
            lambda: len(process.net_connections("tcp")) <= before + 2,
            30,
            lambda: f"connections to end: {process.net_connections('tcp')}",
        )
        # And a task that ends takes along whoever waits for it.
        connection = served.connect()
        connection.request("GET", f"{served.base}/hang", headers=served.headers)
        time.sleep(1)
        served.cluster.api("POST", f"/api/v1/commands/{served.task}/kill", {})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
    assert answer.status == 503 and "cannot be reached" in text, (answer.status, text)


def test_a_master_stops_in_time_though_a_stream_is_open(served: Served) -> None:
    assert served.ask(served.connect(), "endless").read(1 << 20)
    began = time.monotonic()
    served.cluster.master.process.send_signal(signal.SIGTERM)
    served.cluster.wait_until(lambda: served.cluster.master.process.poll() is not None, 20, "the master to end")
    assert time.monotonic() - began < 15
