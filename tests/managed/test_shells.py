"""Shells and ports of tasks with the real `det` and the real `ssh` (about 35 s, in soak 30 s more)."""

from __future__ import annotations

import json
import os
import shlex
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Runner, Running
from detached.conftest import Client, Failed
from detached.det import Commands
from ports import free_port, free_ports

from .conftest import Cluster, det
from .kinds import KINDS, USERS, StartAgent, start_agent

__all__ = ["det", "start_agent"]

# A server for one port: says what it was asked, and how much it was sent.
SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        text = f"{self.path} {self.headers.get('Authorization')}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def do_POST(self):
        left = length = int(self.headers["Content-Length"])
        while left:
            left -= len(self.rfile.read(min(left, 1 << 20)))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(length).encode())
        self.close_connection = True
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def user(cluster: Cluster, name: str) -> Client:
    """Make a user, and log in."""
    account = {"user": {"username": name, "active": True}, "password": "Abcdefg1"}
    cluster.master.client.login("admin")("POST", "/api/v1/users", account)
    return cluster.master.client.login(name, "Abcdefg1")


class Ssh:
    """OpenSSH's clients with the words that `det shell show_ssh_command` prints."""

    def __init__(self, run: Runner, det: Commands, task: str) -> None:
        self._run = run
        [printed] = det(f"shell show-ssh-command {task}")
        [line] = [line for line in printed.splitlines() if "ProxyCommand" in line]
        words = shlex.split(line[line.index("ssh ") :].replace("\x1b[0m", ""))
        self.host = next(word for word in words if word.endswith(f"@{task}"))
        # Terminals are for people.
        self.options = [word for word in words[1 : words.index(self.host)] if word != "-tt"]
        self.options += ["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
        self.environment = {**os.environ, **det.settings}

    def __call__(self, *words: str, status: int = 0, options: tuple[str, ...] = ()) -> str:
        """Run a program in the shell; give its output."""
        done = self._run("ssh", *self.options, *options, self.host, *words, env=self.environment, timeout=60)
        return done.expect(status).stdout

    def copy(self, *words: str | Path) -> None:
        """Copy files with `scp`."""
        self._run("scp", *self.options, *words, env=self.environment, timeout=60).expect(0)


@KINDS
def test_a_shell_is_opened_by_its_owner(
    cluster: Cluster,
    start_agent: StartAgent,
    det: Commands,
    run: Runner,
    determined: Path,
    tmp_path: Path,
    kind: str,
) -> None:
    start_agent(cluster, kind)
    context = tmp_path / "code"
    context.mkdir()
    (context / "hello.txt").write_text("from the context\n")
    words = ["shell", "start", "--context", str(context), "--config", "environment.environment_variables=[A=7]"]
    task = det([*words, "--detach"])[0].split()[-1]
    # As people do it: with a terminal, in one line.
    line = "cat hello.txt; echo $A $DET_TASK_TYPE $DET_TASK_ID; tty; exit 7"
    words = ["shell", "open", task, "--", "-o", "UserKnownHostsFile=/dev/null", line]
    opened = run(determined, "-m", "determined.cli", *words, env=det.settings, timeout=60).expect(0)
    assert f"from the context\n7 SHELL {task}\n/dev/pts/" in opened.stdout, opened
    assert f"det shell open {task}" in opened.stdout
    listed, config, _ = det("shell list --json", f"shell config {task}", f"shell set priority {task} 7")
    [shown] = json.loads(listed)
    assert (shown["id"], shown["state"]) == (task, "RUNNING")
    assert "A=7" in config

    ssh = Ssh(run, det, task)
    printed = ssh("cat hello.txt; echo $A $DET_TASK_TYPE $DET_TASK_ID; command -v python3; echo wrong >&2")
    assert printed.splitlines()[:2] == ["from the context", f"7 SHELL {task}"]
    assert Path(printed.splitlines()[2]).parent == cluster.interpreter.parent
    assert "not a tty" not in ssh("tty", options=("-tt",))
    assert ssh("id -u").strip() == str(USERS[kind])
    ssh("exit 7", status=7)
    # A file there and back, by both protocols of scp.
    content = os.urandom(300_000)
    (tmp_path / "there").write_bytes(content)
    for protocol in ("-s", "-O"):
        ssh.copy(protocol, tmp_path / "there", f"{ssh.host}:sent")
        ssh.copy(protocol, f"{ssh.host}:sent", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == content
        (tmp_path / "back").unlink()
        ssh("rm sent")

    ann = user(cluster, "ann")
    with pytest.raises(Failed, match="only they and administrators may open it"):
        ann("GET", f"/api/v1/shells/{task}")
    assert [(each["id"], each["privateKey"]) for each in ann("GET", "/api/v1/shells")["shells"]] == [(task, None)]
    # Another shell's key opens nothing, and the connection ends with the reason.
    theirs = ann("POST", "/api/v1/shells", {"config": {"resources": {"slots": 0}}})["shell"]["privateKey"]
    (tmp_path / "key").write_text(theirs)
    (tmp_path / "key").chmod(0o600)
    options = list(ssh.options)
    options[options.index("-i") + 1] = str(tmp_path / "key")
    options[options.index("LogLevel=ERROR")] = "LogLevel=INFO"
    refused = run("ssh", *options, ssh.host, "true", env=ssh.environment, timeout=60).expect(255)
    assert f"this key does not open shell {task}" in refused.stderr, refused.stderr
    det(f"shell kill {task}")
    cluster.wait_until(
        lambda: cluster.api("GET", f"/api/v1/shells/{task}")["shell"]["state"] == "STATE_TERMINATED", 30, "its end"
    )


def test_ports_of_a_task_are_reached_through_the_master(
    cluster: Cluster, det: Commands, run: Runner, determined: Path, tmp_path: Path
) -> None:
    cluster.agent("one", 1, "--address", "127.0.0.1")
    web, tcp, open_port, local = free_ports(4)
    own = int(cluster.master.address.rsplit(":", 1)[1])
    (tmp_path / "server.py").write_text(SERVER)
    ports = [
        {"proxy_port": web},
        {"proxy_port": tcp, "proxy_tcp": True},
        {"proxy_port": open_port, "unauthenticated": True},
        {"proxy_port": own, "unauthenticated": True},
    ]
    serve = " & ".join(f"python3 {tmp_path}/server.py {port}" for port in (web, tcp, open_port))
    config = {"entrypoint": serve, "resources": {"slots": 0}, "environment": {"proxy_ports": ports}}
    task = cluster.api("POST", "/api/v1/commands", {"config": config})["command"]["id"]

    def answers() -> bool:
        return all(cluster.api.raw("GET", f"/proxy/{task}:{port}/x?a=1")[0] == 200 for port in (web, open_port))

    cluster.wait_until(answers, 60, "the servers")
    # The task sees the whole path, and no token.
    assert cluster.api.raw("GET", f"/proxy/{task}:{web}/x?a=1")[2] == f"/proxy/{task}:{web}/x?a=1 None".encode()
    size = 20 << 20
    assert cluster.api.raw("POST", f"/proxy/{task}:{web}/", bytes(size))[2] == str(size).encode()
    with pytest.raises(Failed, match="lets nobody reach its port 9"):
        cluster.api("GET", f"/proxy/{task}:9/")
    with pytest.raises(Failed, match="has no pages"):
        cluster.api("GET", f"/proxy/{task}:{tcp}/")
    # Without a token only what is for everybody, and not as a page.
    stranger = cluster.master.address
    with urllib.request.urlopen(f"{stranger}/proxy/{task}:{open_port}/", timeout=10) as answer:
        assert answer.status == 200 and "sandbox" in answer.headers["Content-Security-Policy"]
    for port in (web, tcp):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{stranger}/proxy/{task}:{port}/", timeout=10)

    # To the master itself, this would be a request of its own user, and one that leads on for ever.
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{stranger}/proxy/{task}:{own}/api/v1/me", timeout=10)
    with pytest.raises(Failed, match="is the master's own"):
        cluster.api("GET", f"/proxy/{task}:{own}/")

    # The tunnel of Determined's own package.
    words = ["-m", "determined.cli.tunnel", "--listener", str(local), "--auth", stranger, f"{task}:{tcp}"]
    det("user whoami")
    tunnel = run.start(determined, *words, env=det.settings)
    try:
        assert through(cluster, tunnel, local) == b"/y None"
    finally:
        tunnel.kill_tree()
    # Others see pages, as those of TensorBoards, but what is no HTTP may run programs.
    ann = user(cluster, "ann")
    assert ann.raw("GET", f"/proxy/{task}:{web}/")[0] == 200
    with pytest.raises(Failed, match="only they and administrators may open it"):
        ann("GET", f"/proxy/{task}:{tcp}/")
    cluster.api("POST", f"/api/v1/commands/{task}/kill", {})


def through(cluster: Cluster, tunnel: Running, port: int) -> bytes:
    """Ask a server at the other end of a tunnel."""
    found: list[bytes] = []

    def asked() -> bool:
        assert tunnel.poll() is None, tunnel.stderr
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/y", timeout=10) as answer:
                found.append(answer.read())
        except OSError:
            return False
        return True

    cluster.wait_until(asked, 30, "the tunnel")
    return found[0]


def test_a_port_of_a_trial_is_published_with_det(
    cluster: Cluster, follow: Callable[..., Running], tmp_path: Path
) -> None:
    cluster.agent("one", 1, "--address", "127.0.0.1")
    port, local = free_ports(2)
    (tmp_path / "server.py").write_text(SERVER)
    config = cluster.config(
        f"python3 {tmp_path}/server.py {port}",
        environment={"proxy_ports": [{"proxy_port": port, "proxy_tcp": True}]},
        resources={"slots_per_trial": 1},
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    process = follow("experiment", "create", cluster.written(config), empty, "-f", "-p", f"{local}:{port}")
    try:
        assert through(cluster, process, local) == b"/y None"
    finally:
        process.kill_tree()
    cluster.api("POST", "/api/v1/experiments/1/kill", {})
    cluster.wait_for(1, "STATE_CANCELED")


def test_our_own_command_line_opens_shells(cluster: Cluster, run: Runner, instep: Path, tmp_path: Path) -> None:
    cluster.agent("one", 1, "--address", "127.0.0.1")
    environment = {"INSTEP_MASTER": cluster.master.address, "HOME": str(tmp_path)}

    def ours(*words: str, status: int = 0) -> str:
        return run(instep, "shell", *words, env=environment, timeout=60).expect(status).stdout

    task = ours("start", "--detach", "--config", "resources.slots=0").strip()
    # What is sent and what comes back may be more than is ever waiting.
    sent, back = tmp_path / "sent", tmp_path / "back"
    sent.write_bytes(os.urandom(12 << 20))
    line = f"{instep} shell open {task} -- cat < {sent} > {back}"
    run("sh", "-c", line, env=environment, timeout=60).expect(0)
    assert back.read_bytes() == sent.read_bytes()
    ours("open", task, "--", "exit 5", status=5)
    # Lines from a pipe are run, and their end is the end.
    piped = run("sh", "-c", f"echo 'echo piped; exit 6' | {instep} shell open {task}", env=environment, timeout=60)
    assert piped.expect(6).stdout == "piped\n"
    assert task in ours("list") and "RUNNING" in ours("describe", task).upper()
    assert "PRIVATE KEY" not in ours("describe", task, "--json")
    command = shlex.split(ours("show-ssh-command", task).strip())
    # A port that the shell reaches, as editors want it.
    port = free_port()
    served = [*command, "-L", f"{port}:127.0.0.1:{cluster.master.address.rsplit(':', 1)[1]}", "sleep", "60"]
    forwarding = run.start(served[0], *served[1:], env=environment)
    try:

        def answers() -> bool:
            assert forwarding.poll() is None, forwarding.stderr
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/info", timeout=10) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        cluster.wait_until(answers, 30, "the forwarded port")
    finally:
        forwarding.kill_tree()
    ours("kill", task)
    cluster.wait_until(lambda: "TERMINATED" in ours("describe", task).upper(), 30, "its end")
    refused = run(instep, "shell", "open", task, env=environment, timeout=60).expect(1)
    assert "has ended" in refused.stderr
