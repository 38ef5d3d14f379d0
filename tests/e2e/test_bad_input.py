"""Command lines, ports, files and nodes that cannot work: one clear message each, and nothing left behind.

What the user sees is always `error: what, where and why`, then what to do about it; the exit status is 2 for a command
line that cannot be parsed and 1 for everything else.
"""

from __future__ import annotations

import http.server
import json
import re
import shlex
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conftest import ROOT, Result, Runner, Running, WaitUntil
from ports import free_port

PUPPET = Path(__file__).resolve().parent / "scripts" / "puppet.py"


@dataclass(frozen=True)
class Case:
    """A command line that cannot work, and what the user must be told: the parts around ` … `, in this order."""

    words: str
    message: str
    status: int = 1
    environment: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Name the test."""
        return " ".join([f"{name}={value}" for name, value in self.environment.items()] + [self.words])


NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
C10D = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint"

# {free}: a port nobody listens on; {occupied}: a port with a listener; {web}: a web server's.
CASES = [
    Case("missing.py", "the script missing.py does not exist"),
    Case("--nproc-per-node foo ok.py", 'unsupported --nproc-per-node value "foo"'),
    Case("--nproc-per-node 0 ok.py", "--nproc-per-node must be at least 1, but is 0"),
    Case("--nproc-per-node -1 ok.py", "--nproc-per-node must be at least 1, but is -1"),
    Case("--nproc-per-node gpu ok.py", "CUDA is not available: ", environment=NO_GPU),
    Case("ok.py", "--nproc-per-node must be at least 1, but is 0", environment={"PET_NPROC_PER_NODE": "0"}),
    Case("ok.py", 'PET_STANDALONE="yes" is not a number', environment={"PET_STANDALONE": "yes"}),
    Case("--nnodes 2:1 ok.py", "--nnodes 2:1: the minimum is larger than the maximum"),
    Case("--nnodes 0 ok.py", "--nnodes 0: a job needs at least one node"),
    Case("--nnodes x ok.py", '--nnodes "x" is not a number of nodes'),
    Case("--nnodes 1:2:3 ok.py", '--nnodes "1:2:3" is not a number of nodes'),
    Case("--standalone --nnodes 2 ok.py", "--standalone runs on one node, but --nnodes is 2"),
    Case("--max-restarts -1 ok.py", "--max-restarts -1 is negative"),
    Case("--shutdown-timeout -1 ok.py", "--shutdown-timeout -1 is negative"),
    Case("--nnodes 2 --node-rank 2 ok.py", "--node-rank 2 does not exist: --nnodes 2 has node ranks 0 to 1"),
    Case("--nnodes 2 --node-rank -1 ok.py", "--node-rank -1 is negative"),
    Case("--rdzv-backend zookeeper ok.py", '--rdzv-backend "zookeeper" is not known'),
    Case("--rdzv-backend etcd ok.py", "--rdzv-backend etcd is not supported"),
    Case("--rdzv-backend etcd-v2 ok.py", "--rdzv-backend etcd-v2 is not supported"),
    Case("--rdzv-conf timeout ok.py", '--rdzv-conf "timeout" is not a list of settings'),
    Case("--rdzv-conf =1 ok.py", '--rdzv-conf "=1" is not a list of settings'),
    Case("--rdzv-conf join_timeout= ok.py", '--rdzv-conf "join_timeout=" is not a list of settings'),
    Case("--standalone --rdzv-conf join_timeout=soon ok.py", "--rdzv-conf join_timeout=soon: not a number of seconds"),
    Case(f"{C10D} host:port ok.py", 'the port in endpoint "host:port" is not a number'),
    Case(f"{C10D} fd77::1:29603 ok.py", "looks like an IPv6 address without brackets"),
    Case(f"{C10D} 127.0.0.1:0 ok.py", "the other nodes could not know the port"),
    Case("--nnodes 2 --rdzv-endpoint localhost ok.py", "--rdzv-endpoint localhost has no port"),
    Case(
        f"{C10D} no-such-host.invalid:29400 --rdzv-conf read_timeout=2 ok.py",
        'within 2 s … "no-such-host.invalid" does not resolve',
    ),
    Case(
        f"{C10D} 127.0.0.1:{{free}} --rdzv-conf read_timeout=1,is_host=false ok.py",
        "within 1 s … nothing listens at 127.0.0.1:{free}",
    ),
    Case(
        "--nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port {free} --rdzv-conf timeout=1 ok.py",
        "within 1 s … nothing listens at 127.0.0.1:{free}",
    ),
    Case("--master-addr 127.0.0.1 --master-port {occupied} ok.py", "port {occupied} is already in use"),
    Case("--nnodes 2 --master-addr 127.0.0.1 --master-port {occupied} ok.py", "port {occupied} is already in use"),
    Case(f"{C10D} 127.0.0.1:{{occupied}} --rdzv-conf is_host=true ok.py", "port {occupied} is already in use"),
    Case(f"{C10D} 127.0.0.1:{{web}} ok.py", "the server at 127.0.0.1:{web} is not the rendezvous of a job"),
    Case("--log-dir ok.py/logs ok.py", "cannot write logs below ok.py/logs: Not a directory"),
    Case("--summary-json missing/summary.json ok.py", "cannot write the summary to missing/summary.json: No such file"),
    Case("-m --no-python ok", "--no-python and --module contradict each other"),
    Case("--tee 4 ok.py", '--tee: "4" is not a stream mask'),
    Case("--redirects 0:x ok.py", '--redirects: "0:x" is not a stream mask'),
    Case("--local-ranks-filter first ok.py", '--local-ranks-filter "first" is not a list of local ranks'),
    Case("--python missing/python ok.py", "missing/python"),
    # A command line that cannot be parsed.
    Case("", "no script given", status=2),
    Case("--nprocs 2 ok.py", "--nprocs … did you mean --nproc-per-node?", status=2),
    Case("--max-restarts many ok.py", "--max-restarts many", status=2),
    Case("--master-port 99999 ok.py", "--master-port 99999", status=2),
    Case("--numa-binding moon ok.py", "--numa-binding … node, socket, exclusive", status=2),
    Case("--dry-run=xml ok.py", "--dry-run … text, json", status=2),
    Case("--n 2 ok.py", "--n … --nnodes … --nproc-per-node", status=2),
]


class Desk:
    """A folder with a script that works, from which command lines are tried."""

    def __init__(self, instep: Path, python: Path, folder: Path, run: Runner, wait_until: WaitUntil) -> None:
        self.folder = folder / "desk"
        self.temporary = folder / "tmp"
        self.folder.mkdir()
        self.temporary.mkdir()
        (self.folder / "ok.py").write_text('print("a worker ran")\n')
        self._instep = instep
        self._run = run
        self._wait_until = wait_until
        self._environment = {
            "VIRTUAL_ENV": str(python.parent.parent),
            "PYTHON_EXEC": None,
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.temporary),
        }

    def start(self, words: str, *program: str | Path, environment: dict[str, str] | None = None) -> Running:
        env = {**self._environment, **(environment or {})}
        return self._run.start(self._instep, "run", *shlex.split(words), *program, env=env, cwd=self.folder)

    def refused(self, running: Running, message: str, status: int = 1, timeout: float = 15) -> Result:
        """The command ends with one clear message, and leaves neither processes nor files."""
        __tracebackhide__ = True
        shown = running.wait(timeout).expect(status)
        errors = [line for line in shown.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, shown
        assert re.search(".*".join(map(re.escape, message.split(" … "))), told_last(shown), re.DOTALL), shown
        assert sum(line.startswith("hint: ") for line in shown.stderr.splitlines()) == 1, shown
        for unwanted in ("panicked", "Traceback", "RUST_BACKTRACE"):
            assert unwanted not in shown.stderr, shown
        assert shown.stdout == "", shown
        self._wait_until(lambda: not running.left_behind(), 2, lambda: f"{running.left_behind()} to end")
        return shown

    def nothing_is_left(self) -> None:
        """Only the script that was there before is there."""
        assert sorted(path.name for path in self.folder.iterdir()) == ["ok.py"]
        assert list(self.temporary.iterdir()) == []


def told_last(shown: Result) -> str:
    """The error and everything after it."""
    return shown.stderr[shown.stderr.index("error: ") :]


@pytest.fixture
def desk(instep: Path, python: Path, tmp_path: Path, run: Runner, wait_until: WaitUntil) -> Desk:
    return Desk(instep, python, tmp_path, run, wait_until)


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    """A port that is free, one that somebody listens on, one of a web server."""
    web = http.server.HTTPServer(("127.0.0.1", 0), QuietHandler)
    server = threading.Thread(target=web.serve_forever, daemon=True)
    server.start()
    with socket.create_server(("127.0.0.1", 0)) as occupied, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound but not listened on: it refuses, and nobody else gets it
        yield {
            "free": probe.getsockname()[1],
            "occupied": occupied.getsockname()[1],
            "web": web.server_address[1],
        }
    web.shutdown()
    server.join()
    web.server_close()


def test_another_program_is_no_node_with_another_token(
    desk: Desk, ports: dict[str, int], instep: Path, run: Runner
) -> None:
    token = run(instep, "job-token").expect(0).stdout.strip()
    words = f"{C10D} 127.0.0.1:{ports['web']} ok.py"
    running = desk.start(words, environment={"INSTEP_JOB_TOKEN": token})
    desk.refused(running, "is not a node of this job that has its token (it answered")


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """A web server that keeps its log to itself."""

    timeout = 1

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("case", CASES, ids=str)
def test_impossible_command_line_is_one_clear_message(case: Case, desk: Desk, ports: dict[str, int]) -> None:
    running = desk.start(case.words.format(**ports), environment=case.environment)
    desk.refused(running, case.message.format(**ports), case.status)
    desk.nothing_is_left()


def test_word_where_none_is_taken_is_not_called_an_option(instep: Path, run: Runner) -> None:
    for words, message, hint in (
        ("job-token key", "instep job-token takes no argument, but was given `key`", "instep job-token > key"),
        ("whoami me", "instep whoami takes no argument, but was given `me`", "`instep whoami --help`"),
        ("drill --every 1s instep run x.py", "`instep` is no option of instep drill", "instep drill -- instep run"),
        ("workspace list mine yours", "", "`instep workspace list --help`"),
        ("up --db a.db --db b.db", "--db is given twice", "`instep up --help`"),
        ("import determined --db x --dump y", "--db does not go with --dump", "`instep import determined --help`"),
    ):
        shown = run(instep, *words.split()).expect(2)
        assert shown.stderr.startswith(f"error: {message}"), shown
        assert hint in shown.stderr.splitlines()[-1], shown
        assert "unknown option" not in shown.stderr, shown


def test_shortened_option_is_understood(desk: Desk) -> None:
    assert desk.start("--nproc-per-nod 2 ok.py").wait(15).expect(0).stdout == "a worker ran\n" * 2


def test_run_that_cannot_begin_says_why_in_its_summary(desk: Desk, ports: dict[str, int]) -> None:
    words = f"--summary-json summary.json --master-port {ports['occupied']} ok.py"
    desk.refused(desk.start(words), "is already in use")
    summary = json.loads((desk.folder / "summary.json").read_text())
    assert summary["outcome"] == "failed"
    assert f"port {ports['occupied']} is already in use" in summary["reason"]
    assert sorted(path.name for path in desk.folder.iterdir()) == ["ok.py", "summary.json"]


def test_impossible_command_line_leaves_the_last_summary_alone(desk: Desk) -> None:
    earlier = desk.folder / "summary.json"
    earlier.write_text('{"outcome": "succeeded"}\n')
    desk.refused(desk.start("--summary-json summary.json --nnodes 2:1 ok.py"), "--nnodes 2:1")
    assert earlier.read_text() == '{"outcome": "succeeded"}\n'


@pytest.mark.parametrize(
    ("program", "message", "hint"),
    [
        ("./ok.py", "cannot start ./ok.py: Permission denied", "hint: make the program executable: chmod +x"),
        ("./missing", "cannot start ./missing: ", "hint: check the program's name and PATH"),
    ],
)
def test_program_that_cannot_be_started_is_reported_once(desk: Desk, program: str, message: str, hint: str) -> None:
    running = desk.start(f"--nproc-per-node 2 --no-python {program}")
    shown = running.wait(15).expect(1)
    assert shown.stderr.count("FAILED") == 1, shown
    assert f"error     : {message}" in shown.stderr, shown
    assert shown.stderr.count("hint: ") == 1 and hint in shown.stderr, shown
    assert "panicked" not in shown.stderr and "Traceback" not in shown.stderr, shown
    assert running.left_behind() == []
    desk.nothing_is_left()


REFUSAL = "refuses this node: its job token, job id, options or version of instep are not those of the job"


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        (
            "--rdzv-id a --nnodes 2",
            "--rdzv-id b --nnodes 2",
            'it wants job "b", this one is "a"',
        ),
        (
            "--rdzv-id a --nnodes 2",
            "--rdzv-id a --nnodes 3",
            "the job was started with --nnodes 2, that node with --nnodes 3",
        ),
        (
            "--rdzv-id a --nnodes 1:2",
            "--rdzv-id a --nnodes 2",
            "the job was started with --nnodes 1:2, that node with --nnodes 2",
        ),
        (
            "--rdzv-id a --nnodes 2 --max-restarts 1",
            "--rdzv-id a --nnodes 2 --max-restarts 2",
            "the job was started with --max-restarts 1, that node with --max-restarts 2",
        ),
    ],
)
def test_node_that_disagrees_with_the_first_is_refused(
    desk: Desk, wait_until: WaitUntil, first: str, other: str, message: str
) -> None:
    meeting = f"--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{free_port()}"
    leader = desk.start(f"{meeting} {first}", "ok.py")
    wait_until(lambda: "instep: " in leader.stderr, 10, lambda: f"the first node\n{leader.stderr}")
    desk.refused(desk.start(f"{meeting} {other}", "ok.py"), REFUSAL)
    # Whoever is refused may be a stranger: why is told to the person who leads the job.
    wait_until(lambda: message in leader.stderr, 10, lambda: f"the first node\n{leader.stderr}")
    # The first node goes on: the right one can still come.
    assert leader.poll() is None, leader.stderr
    desk.start(f"{meeting} {first}", "ok.py").wait(15).expect(0)
    assert leader.wait(15).expect(0).stdout == "a worker ran\n"


def test_second_node_with_the_same_node_rank_is_refused(desk: Desk, wait_until: WaitUntil) -> None:
    shared = f"--nnodes 3 --master-addr 127.0.0.1 --master-port {free_port()}"
    nodes = [desk.start(f"{shared} --node-rank {rank}", "ok.py") for rank in (0, 1)]
    wait_until(lambda: "2 of 3 " in nodes[1].stderr, 10, lambda: nodes[1].stderr)
    desk.refused(desk.start(f"{shared} --node-rank 1", "ok.py"), "node rank 1 is already taken by ")
    nodes.append(desk.start(f"{shared} --node-rank 2", "ok.py"))
    for node in nodes:
        assert node.wait(15).expect(0).stdout == "a worker ran\n"


def test_static_and_dynamic_nodes_do_not_mix(desk: Desk, wait_until: WaitUntil) -> None:
    port = free_port()
    leader = desk.start(f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port}", "ok.py")
    wait_until(lambda: "1 of 2 " in leader.stderr, 10, lambda: f"the first node\n{leader.stderr}")
    other = desk.start(f"--nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port {port}", "ok.py")
    desk.refused(other, REFUSAL)
    explanation = "the job was started with --rdzv-backend c10d, that node with --rdzv-backend static"
    wait_until(lambda: explanation in leader.stderr, 10, lambda: f"the first node\n{leader.stderr}")


@pytest.mark.parametrize("held", ["127.0.0.1", "::1"])
def test_an_endpoint_that_another_program_holds_for_a_moment_is_served_when_it_is_free(
    desk: Desk, wait_until: WaitUntil, held: str
) -> None:
    port = free_port()
    # Not a server: a port that a connection has, as the kernel gives them out, or a launcher that is just ending.
    with socket.socket(socket.AF_INET6 if ":" in held else socket.AF_INET) as holder:
        holder.bind((held, port))
        nodes = [desk.start(f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint [::1]:{port}", "ok.py") for _ in range(2)]
        said = f"waiting for port {port}: it is in use, but nothing answers there"
        wait_until(lambda: all(said in node.stderr for node in nodes), 10, lambda: nodes[0].stderr + nodes[1].stderr)
    for node in nodes:
        assert node.wait(15).expect(0).stdout == "a worker ran\n"


def test_missing_nodes_are_waited_for_until_the_join_timeout(desk: Desk) -> None:
    meeting = f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{free_port()}"
    running = desk.start(f"{meeting} --rdzv-conf join_timeout=1", "ok.py")
    desk.refused(running, "after 1 s … 1 of 2 ")
    desk.nothing_is_left()


def test_damaged_snapshot_is_one_message_with_a_hint(desk: Desk) -> None:
    snapshot = desk.folder / "snapshot.pt"
    snapshot.write_bytes(b"PK\x03\x04 the rest was lost when the disk was full")
    shown = desk.start("--nproc-per-node 2", ROOT / "examples" / "ddp" / "multinode.py").wait(60).expect(1)
    output, report, failure = shown.stderr.partition("Root cause")
    assert output.count("error: cannot resume from snapshot.pt: ") == 1, shown
    assert report and "rank      : 0 " in failure, shown
    assert "hint: remove the file to train from the start" in shown.stderr, shown
    assert "Traceback" not in shown.stderr and "panicked" not in shown.stderr, shown
    assert snapshot.read_bytes().startswith(b"PK\x03\x04 the rest")
    assert sorted(path.name for path in desk.folder.iterdir()) == ["ok.py", "snapshot.pt"]
