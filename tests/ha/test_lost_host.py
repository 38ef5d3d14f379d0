"""The host of the leader is lost: scripts of Determined on another host go on, and so does `det` by a load balancer.

Over http and over https, with certificates that are trusted by nobody else.

The hosts are network namespaces: two with a master each, the second one with an agent, and one for people and the
load balancer.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from conftest import Runner, Running
from detached.conftest import Client, determined
from detached.det import Commands
from detached.postgres import Postgres
from detached.test_scripts import rows
from e2e.namespaces import Network, network
from managed.test_network import PASSWORD, give_passwords

from .conftest import TAKEOVER_S, Masters

__all__ = ["determined", "network"]

PORT, TASKS, BALANCER = 8080, 8081, 9090
# What programs trust that were told nothing else. Determined's HTTP library would have it win over the certificate that
# its client was given.
NO_OTHERS = {"REQUESTS_CA_BUNDLE": "", "CURL_CA_BUNDLE": ""}
SCRIPT = """
import logging, os, pathlib, sys, time
import determined as det
from determined import core

watch = pathlib.Path(os.environ["WATCH"])
logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
with (watch / "runs").open("a") as file:
    file.write("run\\n")
with core.init() as context:
    step = 0
    while not (watch / "enough").exists():
        step += 1
        context.train.report_training_metrics(step, {"x": float(step)})
        (watch / "step").write_text(str(step))
        if context.preempt.should_preempt():
            sys.exit("asked to stop")
        time.sleep(0.2)
    context.train.report_validation_metrics(step, {"x": float(step)})
"""


class Balancer:
    """Carries each connection to the first master that says it is well, as load balancers do."""

    def __init__(self, address: str, masters: list[Client]) -> None:
        self._masters = masters
        self._listener = socket.create_server((address, BALANCER))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        # Whoever waits for one is woken by this alone.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _is_well(self, master: Client) -> bool:
        connection = master.connection(1)
        try:
            connection.request("GET", "/health", headers={"Host": "localhost"})
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                theirs, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(theirs,), daemon=True).start()

    def _connect(self, theirs: socket.socket) -> None:
        with theirs:
            master = next((master for master in self._masters if self._is_well(master)), None)
            if master is None:
                return
            host = urlsplit(master.address).hostname
            with contextlib.suppress(OSError), socket.create_connection((host, PORT), timeout=2) as ours:
                ours.settimeout(None)
                inward = threading.Thread(target=self._copy, args=(ours, theirs), daemon=True)
                inward.start()
                self._copy(theirs, ours)
                inward.join()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Hosts:
    """Two hosts with a master each, and an agent on the second one."""

    def __init__(
        self, network: Network, run: Runner, instep: Path, folder: Path, place: str, wait_until: Callable[..., None]
    ) -> None:
        self._network = network
        self._run = run
        self._instep = instep
        self._folder = folder
        self._place = place
        self._wait_until = wait_until
        self.hosts = network.nodes[:2]
        self.here = network.nodes[2]
        self.running: list[Running] = []
        # The masters' certificates, if they encrypt.
        self.trusted: Path | None = None

    def start(self, scheme: str) -> list[str]:
        """Start the masters; give their addresses, the leader's first."""
        alone = Masters(self._run, self._instep, self._folder, self._place, self._wait_until)
        first = alone.start()
        give_passwords(first.client)
        first.signal(signal.SIGTERM)
        first.process.wait().expect(0)
        addresses = []
        for number, node in enumerate(self.hosts):
            address = f"{scheme}://{node.ipv4}:{PORT}"
            words = ["--host", node.ipv4, "--port", str(PORT), "--proxy-port", str(TASKS), "--advertise", address]
            words += ["--db", self._place, "--allow-host", self.here.ipv4, "--checkpoints", str(self._folder)]
            words += ["--tls-self-signed"] if scheme == "https" else []
            environment = {"XDG_DATA_HOME": str(self._folder / f"host{number}"), "HOME": str(self._folder)}
            started = node.start(self._run, self._instep, "master", *words, env=environment)
            said = "leading" if number == 0 else "standing by"
            self._wait_until(lambda run=started, said=said: said in run.stderr, 60, lambda run=started: run.stderr)
            self.running.append(started)
            addresses.append(address)
        if scheme == "https":
            self.trusted = self._folder / "trusted.pem"
            made = sorted(self._folder.glob("host*/instep/*.cert.pem"))
            self.trusted.write_text("".join(path.read_text() for path in made))
        return addresses

    @property
    def certificates(self) -> dict[str, str]:
        """The variables of clients that trust the masters."""
        return {**NO_OTHERS, "DET_MASTER_CERT_FILE": str(self.trusted)} if self.trusted else {}

    def start_agent(self, addresses: list[str], python: Path, token: str) -> None:
        """Start an agent on the second host, which asks the masters in this order."""
        words = ["--master", ",".join(addresses), "--name", "two", "--slots", "1", "--python", str(python)]
        words += ["--state-folder", str(self._folder / "agent"), "--token", token, "--default-user", "root"]
        environment = {"HOME": str(self._folder), **self.certificates}
        agent = self.hosts[1].start(self._run, self._instep, "agent", *words, env=environment)
        self._wait_until(lambda: "offers 1 slot" in agent.stderr + agent.stdout, 30, lambda: agent.stderr)

    def lose_the_leader(self) -> None:
        """Cut off the first host with everything on it: nobody is told, neither the others nor PostgreSQL."""
        self.running[0].send_signal(signal.SIGSTOP)
        self._network.cut_link(self.hosts[0])


@pytest.fixture
def hosts(
    network: Network,
    run: Runner,
    instep: Path,
    tmp_path: Path,
    server: Postgres,
    wait_until: Callable[..., None],
) -> Iterator[Hosts]:
    place = f"{server.socket_address}?schema={tmp_path.name}"
    with network.nodes[2].entered():
        made = Hosts(network, run, instep, tmp_path, place, wait_until)
        yield made
        for process in made.running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)


@pytest.mark.soak
@pytest.mark.parametrize("network", [3], indirect=True)
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("agents", ["lost", "other"])
def test_a_script_of_determined_and_det_do_not_notice_that_the_leader_s_host_is_lost(
    hosts: Hosts,
    scheme: str,
    agents: str,
    run: Runner,
    determined: Path,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> None:
    addresses = hosts.start(scheme)
    masters = [Client(address, trusted=hosts.trusted) for address in addresses]
    second = masters[1]
    admin = second.login("admin", PASSWORD)
    # The agent's master is on the host that is lost, or on its own.
    asked = addresses if agents == "lost" else addresses[::-1]
    hosts.start_agent(asked, determined, admin("POST", "/api/v1/agents/tokens", {"name": "all"})["token"])
    api = second.login(password=PASSWORD)
    watch = tmp_path / "watch"
    watch.mkdir()
    config = {
        "name": "stock",
        "entrypoint": "python3 stock.py",
        "searcher": {"name": "single", "metric": "x"},
        "max_restarts": 0,
        "environment": {"environment_variables": [f"WATCH={watch}"]},
        "checkpoint_storage": {"type": "shared_fs", "host_path": str(tmp_path)},
    }
    content = base64.b64encode(SCRIPT.encode()).decode()
    file = {"path": "stock.py", "type": 48, "content": content, "mtime": "0", "mode": 0o644, "uid": 0, "gid": 0}
    request = {"config": json.dumps(config), "activate": True, "modelDefinition": [file]}
    number = api("POST", "/api/v1/experiments", request)["experiment"]["id"]

    def told() -> str:
        [trial] = api("GET", f"/api/v1/experiments/{number}/trials")["trials"]
        return "".join(line["message"] for line in api.lines(f"/api/v1/trials/{trial['id']}/logs"))

    def step() -> int:
        path = watch / "step"
        return int(path.read_text() or 0) if path.exists() else 0

    balancer = Balancer(hosts.here.ipv4, masters)
    settings = {
        "DET_MASTER": f"{scheme}://{hosts.here.ipv4}:{BALANCER}",
        "DET_USER": "determined",
        "DET_PASS": PASSWORD,
        "DET_DEBUG_CONFIG_PATH": str(tmp_path / "client"),
        "HOME": str(tmp_path),
        **hosts.certificates,
    }
    det = Commands(run, determined, settings)
    wait_until(lambda: step() > 3, 60, told)
    assert "stock" in det(["experiment", "list"])[0]
    hosts.lose_the_leader()
    lost, before = time.monotonic(), step()

    def leads() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return bool(json.loads(second.raw("GET", "/health")[2]).get("role") == "leader")
        return False

    wait_until(leads, TAKEOVER_S, "the second master to lead")
    print(f"the second host's master leads {time.monotonic() - lost:.1f} s after the loss")
    # A request in flight may have to be repeated; the next one is not.
    assert "stock" in det(["experiment", "list"])[0]
    print(f"`det` is answered {time.monotonic() - lost:.1f} s after the loss")
    wait_until(lambda: step() > before + 10, 60, told)
    print(f"the script is ten steps further {time.monotonic() - lost:.1f} s after the loss")
    (watch / "enough").touch()

    def is_done() -> bool:
        return bool(api("GET", f"/api/v1/experiments/{number}")["experiment"]["state"] == "STATE_COMPLETED")

    wait_until(is_done, 60, told)
    balancer.close()
    [trial] = api("GET", f"/api/v1/experiments/{number}/trials")["trials"]
    assert trial["restarts"] == 0
    assert (watch / "runs").read_text() == "run\n"
    assert "Traceback" not in told()
    reported = {at: row["x"] for at, row in rows(api, trial["id"], "training").items()}
    assert reported == {at: float(at) for at in range(1, step() + 1)}, "each once"
