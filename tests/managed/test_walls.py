"""What a user tries against the agent and against other users, as a script would: nothing of it may work.

Two kinds of agent: one that root started, whose tasks run as the Unix users of their owners, and one of an ordinary
user.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from conftest import Runner

from .walls import ALICE, CAROL, Walls, walls

__all__ = ["walls"]

# Agents of root and of an ordinary user: who attacks, who is attacked, and what to start.
ROOT = ("alice", "bob", 0, ())
OTHER = ("carol", "dave", CAROL, ("--shared-uid",))
BOTH = pytest.mark.parametrize("kind", [ROOT, OTHER], ids=["root", "other"])
OTHER_IN_SOAK = pytest.mark.parametrize(
    "kind", [ROOT, pytest.param(OTHER, marks=pytest.mark.soak)], ids=["root", "other"]
)
Kind = tuple[str, str, int, tuple[str, ...]]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes tasks run as several users, which takes root")


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


@OTHER_IN_SOAK
def test_nothing_is_written_through_links_of_a_task(walls: Walls, kind: Kind) -> None:
    # Issue 18, finding 3.
    attacker, _, uid, options = kind
    walls.start(*options, uid=uid)
    victim = walls.folder / "victim"
    victim.write_text("untouched")
    victim.chmod(0o600)
    # A file that the agent could write.
    os.chown(victim, uid, uid)
    assert walls.agent is not None
    names = " ".join(f"{name}.new{walls.agent.pid} {name}.json" for name in ("stop", "exit", "order", "pid"))
    links = f"""
        for folder in "$SHARES/$DET_RESOURCES_ID" "$SHARES/$DET_RESOURCES_ID"/*/; do
            for name in {names}; do ln -sfn {victim} "$folder/$name"; done
        done 2>/dev/null
        echo linked; sleep 600
    """
    trial = walls.begin(attacker, links)
    walls.wait_for(trial, "linked")
    walls.kill(trial)
    assert victim.read_text() == "untouched"
    shares = walls.state / "shares"
    walls.cluster.wait_until(lambda: not any(shares.iterdir()), 20, "the folder to be removed")


@OTHER_IN_SOAK
def test_a_stopped_supervisor_does_not_keep_a_task_alive(walls: Walls, kind: Kind) -> None:
    attacker, _, uid, options = kind
    walls.start(*options, uid=uid)
    trial = walls.begin(attacker, "echo going; sleep 1; kill -STOP $PPID; sleep 600")
    walls.wait_for(trial, "going")
    walls.kill(trial)


@BOTH
def test_nothing_in_its_folder_keeps_a_task_from_being_stopped(walls: Walls, kind: Kind) -> None:
    # Issue 18, finding 4: a stop of one's own that allows for a long time, and a folder where the agent's belongs.
    attacker, victim, uid, options = kind
    walls.start(*options, uid=uid)
    block = """
        trap '' TERM
        for place in "$SHARES/$DET_RESOURCES_ID" "$SHARES/$DET_RESOURCES_ID/task"; do
            cd "$place" || continue
            echo '{"grace_seconds":86400,"why":"mine","lost":false}' > stop.json
            rm -f stop.json; mkdir -p stop.json/full; mkdir exit.json
        done 2>/dev/null
        echo blocked; while :; do sleep 1; done
    """
    trial = walls.begin(attacker, block)
    walls.wait_for(trial, "blocked")
    walls.kill(trial)
    assert "hello" in walls.log(victim, "echo hello"), "the agent serves others"


@pytest.mark.soak
def test_a_task_that_removes_every_stop_is_killed_by_the_agent(walls: Walls) -> None:
    # An agent without root cannot protect its files, and does not depend on them.
    walls.start("--shared-uid", uid=CAROL)
    remove = """cd "$SHARES/$DET_RESOURCES_ID"; echo removing; trap '' TERM
        while :; do rm -rf stop.json; mkdir stop.json; done 2>/dev/null"""
    trial = walls.begin("carol", remove)
    walls.wait_for(trial, "removing")
    walls.kill(trial, 170)


@BOTH
def test_tasks_take_from_the_agent_only_what_is_allowed(walls: Walls, kind: Kind) -> None:
    # Issue 18, finding 1.
    attacker, _, uid, options = kind
    walls.start(*options, uid=uid)
    names = ("INSTEP_AGENT_TOKEN", "SECRET_OF_THE_AGENT", "OMP_NUM_THREADS")
    trial = walls.begin(attacker, "env | sort; echo done", names)
    log = walls.ended(trial)
    assert walls.token not in log
    assert "swordfish" not in log
    assert "OMP_NUM_THREADS=3" in log
    assert "done" in log


@BOTH
def test_orders_and_the_agents_token_cannot_be_read(walls: Walls, kind: Kind) -> None:
    # Issue 18, findings 1 and 8: a task of the agent's user could read /proc/PID/environ and the orders of other tasks.
    attacker, victim, uid, options = kind
    walls.start(*options, uid=uid)
    assert walls.agent is not None
    agent = walls.agent.pid
    trial = walls.begin(victim, "echo going; sleep 600")
    walls.wait_for(trial, "going")
    steal = f"""
        cd "$SHARES"
        for share in "$SHARES"/*/ $(ls /proc/self/root"$SHARES"); do
            for name in order share stop exit; do cat "$share/$name.json"; done
        done 2>&1
        tr '\\0' '\\n' < /proc/{agent}/environ; cat /proc/{agent}/mem | strings | grep -m1 INSTEP_AGENT_TOKEN
        for file in /proc/[0-9]*/cmdline; do tr '\\0' '\\n' < "$file"; done 2>&1
        find "$SHARES" -name order.json -size +0 2>/dev/null | sed 's/^/found: /'
        echo done
    """
    log = walls.log(attacker, steal)
    assert walls.token not in log
    assert "|| found: " not in log
    assert '"token"' not in log
    assert "done" in log
    walls.kill(trial)


# What a task's tokens may not do, whoever owns it.
FORBIDDEN = """python3 -c '
import json, os, urllib.error, urllib.request

def ask(token, method, path, body=None):
    address = os.environ["DET_MASTER"].rstrip("/") + path
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Authorization": "Bearer " + token}, method=method)
    try:
        return urllib.request.urlopen(request, timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code

tokens = {name: os.environ[name] for name in ("DET_SESSION_TOKEN", "DET_USER_TOKEN") if name in os.environ}
print("tokens:", sorted(tokens), flush=True)
for name, token in tokens.items():
    assert ask(token, "GET", "/api/v1/me") == 200, name
    for method, path, body in (
        ("POST", "/api/v1/agents/tokens", {"name": "mine"}),
        ("POST", "/api/v1/users", {"user": {"username": "mallory", "admin": True, "active": True}}),
        ("POST", "/api/v1/experiments/VICTIM/kill", {}),
        ("POST", "/api/v1/agents/one/disable", {}),
        ("GET", "/api/v1/master/config", None),
    ):
        print("asked", name, method, path, ask(token, method, path, body), flush=True)
print("done")
'"""


@OTHER_IN_SOAK
def test_a_tasks_tokens_reach_nothing_but_its_own(walls: Walls, kind: Kind) -> None:
    # Issue 18, finding 9.
    attacker, victim, uid, options = kind
    walls.start(*options, uid=uid)
    trial = walls.begin(victim, "echo going; sleep 600")
    walls.wait_for(trial, "going")
    number = walls.cluster.api("GET", f"/api/v1/trials/{trial}")["trial"]["experimentId"]
    log = walls.log(attacker, FORBIDDEN.replace("VICTIM", str(number)))
    assert "done" in log, log
    assert "tokens: ['DET_SESSION_TOKEN', 'DET_USER_TOKEN']" in log, log
    asked = [line.split("asked ")[1].split() for line in log.splitlines() if "asked " in line]
    assert len(asked) == 10, log
    assert all(status in ("401", "403", "404") for *_, status in asked), asked
    assert walls.state_of(trial) == "STATE_RUNNING"
    walls.kill(trial)


def test_an_agent_without_root_serves_one_user(walls: Walls) -> None:
    # Issue 18, finding 8.
    walls.start(uid=CAROL)
    assert "uid=41003" in walls.log("carol", "id")
    trial = walls.begin("dave", "id")
    walls.cluster.wait_until(lambda: "agent one serves only carol" in walls.waiting(), 20, walls.waiting)
    assert "uid=41003" in walls.log("carol", "id"), "the agent serves on"
    assert "no agent of pool default serves user dave" in walls.waiting()
    assert "assigned to an agent" not in walls.cluster.text(trial), "it was never placed there"
    walls.kill(trial)


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


@pytest.mark.soak
def test_mounts_of_an_agent_without_root_give_no_rights(walls: Walls) -> None:
    # Issue 18, finding 2: such an agent mounts, where it can at all, with the rights of its user alone.
    own = walls.folder / "own"
    own.mkdir()
    (own / "passwd").write_text("carol::0:0::/:/bin/sh\n")
    os.chown(own, CAROL, CAROL)
    secret = walls.folder / "secret"
    secret.write_text("swordfish")
    secret.chmod(0o600)
    walls.start("--shared-uid", uid=CAROL)
    mount = {"host_path": str(own), "container_path": "/etc"}
    trial = walls.begin("carol", f"id -u; su -c id; cat {secret}; echo done", mounts=(mount,))
    log = walls.cluster.text
    walls.cluster.wait_until(
        lambda: "done" in log(trial) or "it could not be started" in log(trial), 30, lambda: f"an end\n{log(trial)}"
    )
    assert "uid=0" not in log(trial)
    assert "swordfish" not in log(trial)
    if "done" not in log(trial) and walls.state_of(trial) != "STATE_ERROR":
        walls.kill(trial)


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


@OTHER_IN_SOAK
def test_storage_is_made_with_the_rights_of_the_task(walls: Walls, kind: Kind) -> None:
    # A root agent once made any folder that a configuration named, open to all.
    attacker, _, uid, options = kind
    walls.start(*options, uid=uid)
    forbidden = walls.folder / "forbidden"
    forbidden.mkdir(mode=0o755)
    log = walls.log(attacker, "echo started", storage=forbidden / "new")
    assert "Checkpoint storage validation failed" in log
    assert "started" not in log
    assert not (forbidden / "new").exists()
    walls.log(attacker, "echo started", storage=walls.folder / "mine" / "new")
    assert (walls.folder / "mine").stat().st_uid == (uid or ALICE)


def test_a_token_lets_in_one_agent_until_it_is_revoked(walls: Walls, run: Runner, instep: Path) -> None:
    # Issue 18, finding 1: whoever has taken an agent's token must not become another agent with it.
    admin = walls.cluster.master.client.login("admin")
    walls.token = admin("POST", "/api/v1/agents/tokens", {"name": "bound", "agent": "one", "pool": "default"})["token"]
    walls.start()
    words = ["agent", "--master", walls.cluster.master.address, "--slots", "1", "--state-folder"]
    for number, (name, pool, only) in enumerate((("two", "default", "agent one"), ("one", "gpu", "pool default"))):
        other = [*words, str(walls.folder / f"other-{number}"), "--name", name, "--pool", pool]
        refused = run(instep, *other, env={"INSTEP_AGENT_TOKEN": walls.token})
        assert refused.status != 0
        assert f"the token bound is for {only}, not " in refused.stderr, refused.stderr
    assert walls.agent is not None
    assert walls.agent.poll() is None
    admin("DELETE", "/api/v1/agents/tokens/bound")
    agent = walls.agent
    walls.cluster.wait_until(lambda: agent.poll() is not None, 20, "the agent to be sent away")
    assert "the token bound was revoked" in agent.stderr, agent.stderr
