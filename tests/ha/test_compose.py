"""What `deploy/compose` says of masters makes masters that take over from each other; Docker itself is not needed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import ROOT, Runner, Running
from detached.conftest import Client, determined
from detached.postgres import Postgres
from managed.test_network import PASSWORD, give_passwords
from ports import free_ports

__all__ = ["determined"]

COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
AS_JSON = "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)"


def test_the_masters_of_the_compose_file_take_over(
    run: Runner,
    instep: Path,
    determined: Path,
    server: Postgres,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> None:
    services = json.loads(run(determined, "-c", AS_JSON, COMPOSE).expect(0).stdout)["services"]
    ports = dict(zip(("one", "two"), zip(*[iter(free_ports(4))] * 2, strict=True), strict=True))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "password").write_text("not asked for\n")
    (tmp_path / "password").chmod(0o600)

    def start(name: str, **changes: str) -> Running:
        service: dict[str, Any] = services[name]
        command, *words = service["command"]
        assert command == "instep"
        port, tasks = ports[name]
        there = {
            "XDG_DATA_HOME": str(tmp_path / name),
            "INSTEP_MASTER_DB": f"{server.socket_address}?schema={tmp_path.name}",
            "INSTEP_MASTER_DB_PASSWORD_FILE": str(tmp_path / "password"),
            "INSTEP_MASTER_CHECKPOINTS": str(tmp_path / "checkpoints"),
            "INSTEP_MASTER_ADVERTISE": f"http://127.0.0.1:{port}",
        }
        assert there.keys() <= service["environment"].keys()
        assert service["environment"]["INSTEP_MASTER_ADVERTISE"] == f"http://{name}:8080"
        environment = {**service["environment"], **there, **changes, "HOME": str(tmp_path)}
        return run.start(instep, *words, "--port", str(port), "--proxy-port", str(tasks), env=environment)

    first = start("one", INSTEP_MASTER_HOST="127.0.0.1")
    wait_until(lambda: "leading" in first.stderr, 60, lambda: first.stderr)
    one, two = (Client(f"http://127.0.0.1:{ports[name][0]}") for name in ports)
    give_passwords(one)
    first.send_signal(signal.SIGTERM)
    first.wait().expect(0)

    running = []
    for name, says in (("one", "leading"), ("two", "standing by")):
        master = start(name)
        running.append(master)
        wait_until(lambda said=says, of=master: said in of.stderr, 60, lambda of=master: of.stderr)
    assert two.login(password=PASSWORD)("GET", "/api/v1/me")["user"]["username"] == "determined"
    running[0].send_signal(signal.SIGKILL)
    wait_until(lambda: "leading" in running[1].stderr, 60, lambda: running[1].stderr)
    assert two.login(password=PASSWORD)("GET", "/api/v1/me")["user"]["username"] == "determined"
