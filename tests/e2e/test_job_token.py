"""A job with a token: its launchers find each other, and whoever has another token, or none, is turned away."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Runner, Running, WaitUntil
from ports import free_port

REFUSAL = "refuses this node: its job token, job id, options or version of instep are not those of the job"
Start = Callable[..., Running]
NOBODY = 65534


@pytest.fixture
def tokens(instep: Path, run: Runner, tmp_path: Path) -> list[Path]:
    """Files with two different tokens."""
    paths = [tmp_path / name for name in ("token", "other")]
    for path in paths:
        path.touch(mode=0o600)
        path.write_text(run(instep, "job-token").expect(0).stdout)
    assert len({path.read_text() for path in paths}) == 2
    return paths


@pytest.fixture
def start(instep: Path, run: Runner) -> Start:
    """A node of a job of two on this machine, whose worker shows what it is given."""
    port = free_port()

    def node(rank: int, token: Path | None, *, backend: str = "c10d", show: str = "env") -> Running:
        meeting = ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-backend", backend, "--node-rank", str(rank)]
        given = [] if token is None else ["--job-token-file", token]
        words = ["--nnodes", "2", "--max-restarts", "1", *meeting, *given, "--no-python", "--log-dir", "/dev/null"]
        return run.start(instep, "run", *words, "sh", "-c", show)

    return node


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_nodes_with_the_token_run_and_their_workers_are_not_given_it(
    start: Start, tokens: list[Path], backend: str
) -> None:
    token = tokens[0].read_text().strip()
    # A restart too: the second round's messages go through the same channels.
    show = 'env; tr "\\0" "\\n" < /proc/$PPID/cmdline; [ "$TORCHELASTIC_RESTART_COUNT$RANK" != 01 ]'
    nodes = [start(rank, tokens[0], backend=backend, show=show) for rank in (0, 1)]
    for node in nodes:
        shown = node.wait(30).expect(0)
        assert "TORCHELASTIC_RESTART_COUNT=1" in shown.stdout, shown
        assert token not in shown.stdout + shown.stderr


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_another_token_or_none_is_turned_away_and_both_sides_are_told(
    start: Start, tokens: list[Path], wait_until: WaitUntil, backend: str
) -> None:
    leader = start(0, tokens[0], backend=backend)
    wait_until(lambda: "1 of 2 " in leader.stderr, 10, lambda: leader.stderr)
    wrong = start(1, tokens[1], backend=backend).wait(15).expect(1)
    assert "did not prove that it has this job's token, and refuses this node" in wrong.stderr, wrong
    assert "hint: give all nodes the same --job-token-file" in wrong.stderr, wrong
    without = start(1, None, backend=backend).wait(15).expect(1)
    assert REFUSAL in without.stderr and "hint: the output of the first node says what differs" in without.stderr, (
        without
    )
    wait_until(lambda: leader.stderr.count("it has another job token than this job, or none") == 2, 10)
    start(1, tokens[0], backend=backend).wait(30).expect(0)
    leader.wait(30).expect(0)


def test_a_job_without_a_token_turns_away_a_node_that_has_one(
    start: Start, tokens: list[Path], wait_until: WaitUntil
) -> None:
    leader = start(0, None)
    wait_until(lambda: "1 of 2 " in leader.stderr, 10, lambda: leader.stderr)
    other = start(1, tokens[0]).wait(15).expect(1)
    assert "did not prove that it has this job's token" in other.stderr, other
    wait_until(lambda: "it has a job token, and this job has none" in leader.stderr, 10, lambda: leader.stderr)
    start(1, None).wait(30).expect(0)
    leader.wait(30).expect(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes sockets of another user")
@pytest.mark.parametrize("variable", ["MASTER", "endpoint"])
def test_the_store_is_for_workers_of_this_user_alone(
    start: Start, tokens: list[Path], tmp_path: Path, wait_until: WaitUntil, variable: str
) -> None:
    show = f"echo $MASTER_ADDR $MASTER_PORT > {tmp_path}/where.$RANK.part; mv {tmp_path}/where.$RANK.part "
    show += f"{tmp_path}/where.$RANK; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    nodes = [start(rank, tokens[0], show=show) for rank in (0, 1)]
    wait_until(lambda: len(list(tmp_path.glob("where.[01]"))) == 2, 20, lambda: nodes[0].stderr)
    relays = [(tmp_path / f"where.{rank}").read_text().split() for rank in (0, 1)]
    assert [host for host, _ in relays] == ["localhost"] * 2
    [endpoint] = {word for word in nodes[0].command if word.startswith("127.0.0.1:")}
    for rank in (0, 1):
        port = int(relays[rank][1] if variable == "MASTER" else endpoint.partition(":")[2])
        assert answered(port, user=0) == (variable == "MASTER"), "torch's own client"
        assert not answered(port, user=NOBODY)
    if variable == "MASTER":
        for node in nodes:
            wait_until(lambda node=node: f"it is of Unix user {NOBODY}, the job of 0" in node.stderr, 10)
    (tmp_path / "go").touch()
    for node in nodes:
        node.wait(30).expect(0)


def answered(port: int, user: int) -> bool:
    """Whether a store answers a ping of this Unix user on loopback."""
    libc = ctypes.CDLL(None)
    libc.setfsuid(user)  # of this thread alone: the sockets that it makes are that user's
    try:
        made = socket.socket()
    finally:
        libc.setfsuid(os.geteuid())
    with made as client:
        client.settimeout(20)
        try:
            client.connect(("127.0.0.1", port))
            client.sendall(bytes.fromhex("00cef7853c") + b"\x0d" + bytes(4))
            return client.recv(4) == bytes(4)
        except ConnectionError:
            return False


def test_the_token_may_be_in_a_variable_which_workers_do_not_inherit(
    start: Start, tokens: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tokens[0].read_text().strip()
    monkeypatch.setenv("INSTEP_JOB_TOKEN", token)
    nodes = [start(0, tokens[0]), start(1, None)]
    for node in nodes:
        shown = node.wait(30).expect(0)
        assert "INSTEP_MASTER_ADDR=127.0.0.1" in shown.stdout, shown
        assert token not in shown.stdout + shown.stderr and "INSTEP_JOB_TOKEN" not in shown.stdout, shown


def test_a_token_that_others_could_read_or_that_is_none_is_an_error(start: Start, tokens: list[Path]) -> None:
    tokens[0].chmod(0o644)
    shown = start(0, tokens[0]).wait(15).expect(1)
    assert f"others may read the job's token in {tokens[0]} (mode 644)" in shown.stderr, shown
    assert f"hint: chmod 600 {tokens[0]}; where you cannot" in shown.stderr, shown
    tokens[1].write_text("password\n")
    shown = start(0, tokens[1]).wait(15).expect(1)
    assert f"{tokens[1]} does not hold a job's token" in shown.stderr and "hint: make one with" in shown.stderr, shown
    shown = start(0, tokens[1].with_name("missing")).wait(15).expect(1)
    assert "cannot read the job's token from" in shown.stderr and "No such file" in shown.stderr, shown


def test_a_dry_run_says_whether_the_job_has_a_token(instep: Path, run: Runner, tokens: list[Path]) -> None:
    place = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "node1:29603"]
    command = [instep, "run", "--dry-run", *place, "--no-python", "true"]
    said = run(*command, env={"INSTEP_JOB_TOKEN_FILE": str(tokens[0])}).expect(0).stdout
    assert "token       only nodes that have the job's token join" in said
    assert "token " not in run(*command).expect(0).stdout
