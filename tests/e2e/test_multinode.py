"""Jobs over two machines: ranks, failures, cut links and lost launchers, as both users see them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from namespaces import Network, Node, network

from conftest import ROOT, Result, Runner, Running, WaitUntil, with_token

__all__ = ["network"]

PUPPET = Path(__file__).resolve().parent / "scripts" / "puppet.py"
PORT = 29603
# Nobody else is in the namespaces, so that fixed ports are free.
STATIC_PORT = 29500
# Launchers speak every 5 s. One that hears nothing for 15 s gives up, and the first node two intervals later.
SILENCE_S = 28.0


class Cluster:
    """Two machines on which launchers are started."""

    def __init__(self, network: Network, instep: Path, python: Path, run: Runner, folder: Path) -> None:
        self.network = network
        self.nodes = network.nodes
        self.folder = folder
        self._instep = instep
        self._run = run
        self._environment = {
            "PYTHON_EXEC": str(python),
            "OMP_NUM_THREADS": "1",
        }

    def launch(self, node: Node, options: str, *program: str | Path, cwd: Path | None = None) -> Running:
        words = shlex.split(options)
        return node.start(self._run, self._instep, "run", *words, *program, env=self._environment, cwd=cwd)

    def puppets(self, options: Sequence[str], *steps: str) -> list[Running]:
        """One launcher on each node."""
        program: tuple[str | Path, ...] = (PUPPET, self.folder, *steps)
        return [self.launch(node, words, *program) for node, words in zip(self.nodes, options, strict=True)]

    def dynamic(self, options: str, *steps: str) -> list[Running]:
        """The same c10d job on both, two workers each."""
        endpoint = f"{self.nodes[0].ipv4}:{PORT}"
        words = f"--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint {endpoint} --rdzv-id 7 {options}"
        return self.puppets([words, words], *steps)

    def files(self, kind: str) -> list[str]:
        return sorted(path.name for path in self.folder.glob(f"*.{kind}"))


@pytest.fixture
def cluster(network: Network, instep: Path, forked: Path, run: Runner, tmp_path: Path) -> Cluster:
    return Cluster(network, instep, forked, run, tmp_path)


def ready(cluster: Cluster, jobs: Sequence[Running], wait_until: WaitUntil, count: int = 4, attempt: int = 0) -> None:
    names = [f"{attempt}.{rank}.ready" for rank in range(count)]
    wait_until(
        lambda: set(names) <= set(cluster.files("ready")),
        30,
        lambda: f"{names}, there are {cluster.files('ready')}\n" + "\n".join(job.stderr for job in jobs),
    )


def all_gone(jobs: Sequence[Running], wait_until: WaitUntil) -> None:
    wait_until(lambda: not any(job.left_behind() for job in jobs), 2, lambda: f"{[job.left_behind() for job in jobs]}")


def root_cause(shown: Result) -> str:
    """The first part of the failure report."""
    _, root, cause = shown.stderr.partition("Root cause (first failure):\n")
    assert root, shown
    return cause.partition("---")[0]


def test_nodes_of_one_machine_meet_at_any_of_its_loopback_addresses(run: Runner, instep: Path) -> None:
    """Debian has its host name at 127.0.1.1."""
    with socket.create_server(("127.0.1.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.1.1:{port}", "--log-dir=/dev/null"]
    program = ["--no-python", "sh", "-c", "echo rank $RANK"]
    jobs = [run.start(instep, "run", *words, *program) for _ in range(2)]
    assert sorted(job.wait(30).expect(0).stdout for job in jobs) == ["rank 0\n", "rank 1\n"]


# Sixteen imports of torch on a busy machine with two cores.
@pytest.mark.timeout(300)
# The tutorial has 8 ranks on each node; 16 processes import torch for two minutes of a processor.
@pytest.mark.parametrize("ranks", [2, pytest.param(8, marks=pytest.mark.soak)])
def test_command_of_the_tutorial_over_ipv6_word_for_word(cluster: Cluster, tmp_path: Path, ranks: int) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.pt")
    folder = shutil.copytree(ROOT / "examples" / "ddp", tmp_path / "ddp", ignore=ignored)
    jobs = [
        cluster.launch(
            node,
            f"--nproc_per_node={ranks} --nnodes=2 --node-rank={number} --rdzv-id=456 --rdzv-backend=c10d"
            f" --rdzv-endpoint=[{cluster.nodes[0].ipv6}]:{PORT}",
            *shlex.split("multinode.py --total_epochs 50 --save_every 10 --batch_size 32"),
            cwd=folder,
        )
        for number, node in enumerate(cluster.nodes)
    ]
    shown = [job.wait(280).expect(0) for job in jobs]
    lines = re.findall(
        rf"^\[GPU(\d+)\] Epoch (\d+) \| Batchsize: 32 \| Steps: {2048 // 32 // (2 * ranks)}$",
        "".join(s.stdout for s in shown),
        re.M,
    )
    everything = [(rank, epoch) for rank in range(2 * ranks) for epoch in range(50)]
    assert sorted((int(rank), int(epoch)) for rank, epoch in lines) == everything
    # The node that holds the endpoint is the first one.
    assert "[GPU0] " in shown[0].stdout and f"[GPU{ranks}] " not in shown[0].stdout, shown[0]
    assert f"[GPU{ranks}] " in shown[1].stdout and "[GPU0] " not in shown[1].stdout, shown[1]
    assert (folder / "snapshot.pt").is_file()


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_nodes_without_common_memory_train_on_the_instep_backend(cluster: Cluster, tmp_path: Path, ranks: int) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.pt")
    folder = shutil.copytree(ROOT / "examples" / "ddp", tmp_path / "ddp", ignore=ignored)
    losses = []
    for backend in ("instep", "gloo"):
        jobs = [
            cluster.launch(
                node,
                f"--nproc_per_node={ranks} --nnodes=2 --node-rank={number} --rdzv-id=tcp --rdzv-backend=c10d"
                f" --rdzv-endpoint={cluster.nodes[0].ipv4}:{PORT}",
                *shlex.split(f"multinode.py 2 10 --backend {backend} --snapshot_path {backend}.pt"),
                cwd=folder,
            )
            for number, node in enumerate(cluster.nodes)
        ]
        shown = [job.wait(120).expect(0) for job in jobs]
        losses.append(float(shown[0].stdout.partition("Final loss ")[2].split()[0]))
        steps = f"| Steps: {32 // ranks}\n"
        assert [s.stdout.count(steps) for s in shown] == [2 * ranks, 2 * ranks], shown
    # Not to the bit: the two may add the gradients of the ranks in different orders.
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def told_where_the_store_is(seen: list[dict[str, str]], address: str, port: int) -> None:
    """With a token: at their own launcher; and where the first node is."""
    told = {(worker["MASTER_ADDR"], worker["MASTER_PORT"]) for worker in seen}
    if with_token(sys.modules[__name__]):
        assert {host for host, _ in told} == {"localhost"}
        assert {worker["INSTEP_MASTER_ADDR"] for worker in seen} == {address}
        assert len(told) == 2, "each node has a relay of its own"
    else:
        assert told == {(address, str(port))}
        assert not any("INSTEP_MASTER_ADDR" in worker for worker in seen)


def test_static_nodes_of_different_size_number_their_ranks_through(cluster: Cluster) -> None:
    address = cluster.nodes[0].ipv4
    shared = f"--nnodes 2 --master-addr {address} --master-port {STATIC_PORT} --rdzv-id sizes"
    options = [f"{shared} --node-rank 0 --nproc-per-node 3", f"{shared} --node-rank 1 --nproc-per-node 1"]
    for job in cluster.puppets(options, "environment"):
        job.wait(20).expect(0)
    seen = [json.loads((cluster.folder / f"0.{rank}.environment").read_text()) for rank in range(4)]
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "WORLD_SIZE")
    assert [[worker[name] for name in names] for worker in seen] == [
        ["0", "0", "3", "0", "2", "0", "4"],
        ["1", "1", "3", "0", "2", "1", "4"],
        ["2", "2", "3", "0", "2", "2", "4"],
        ["3", "0", "1", "1", "2", "3", "4"],
    ]
    assert {worker["TORCHELASTIC_RUN_ID"] for worker in seen} == {"sizes"}
    told_where_the_store_is(seen, address, STATIC_PORT)
    assert {worker["ROLE_WORLD_SIZE"] for worker in seen} == {"4"}


def test_dynamic_nodes_tell_their_workers_the_endpoint(cluster: Cluster) -> None:
    for job in cluster.dynamic("", "environment"):
        job.wait(20).expect(0)
    seen = [json.loads((cluster.folder / f"0.{rank}.environment").read_text()) for rank in range(4)]
    assert [worker["GROUP_RANK"] for worker in seen] == ["0", "0", "1", "1"]
    told_where_the_store_is(seen, cluster.nodes[0].ipv4, PORT)


@pytest.mark.parametrize("failing", [0, 3])
def test_failure_on_one_node_restarts_both_and_leads_both_reports(
    cluster: Cluster, wait_until: WaitUntil, failing: int
) -> None:
    steps = ("ready", "await 4", f"{failing}: complain the disk of this node is gone", f"{failing}: exit 5", "hold")
    jobs = cluster.dynamic("--max-restarts 1", *steps)
    for shown in [job.wait(20).expect(1) for job in jobs]:
        assert f"rank {failing} on " in shown.stderr and "exited with code 5; restart 1 of 1" in shown.stderr, shown
        cause = root_cause(shown)
        assert f"rank      : {failing} " in cause and "exitcode  : 5 " in cause, shown
        assert "the disk of this node is gone" in cause, shown
    assert cluster.files("ready") == [f"{attempt}.{rank}.ready" for attempt in range(2) for rank in range(4)]
    all_gone(jobs, wait_until)


def test_killed_launcher_of_another_node_is_reported_by_the_first(cluster: Cluster, wait_until: WaitUntil) -> None:
    jobs = cluster.dynamic("", "ready", "hold")
    ready(cluster, jobs, wait_until)
    jobs[1].send_signal(signal.SIGKILL)
    shown = jobs[0].wait(SILENCE_S).expect(1)
    assert re.search(r"node .* was lost: its connection broke; restarts are off", shown.stderr), shown
    all_gone(jobs, wait_until)


def test_killed_launcher_of_another_node_can_come_back(cluster: Cluster, wait_until: WaitUntil) -> None:
    jobs = cluster.dynamic("--max-restarts 1", "ready", "@0: hold")
    ready(cluster, jobs, wait_until)
    jobs[1].send_signal(signal.SIGKILL)
    wait_until(lambda: "1 of 2 have joined" in jobs[0].stderr.partition("restarting: ")[2], 10, lambda: jobs[0].stderr)
    again = cluster.launch(cluster.nodes[1], " ".join(jobs[1].command[6:17]), *jobs[1].command[17:])
    again.wait(10).expect(0)
    jobs[0].wait(10).expect(0)
    ready(cluster, jobs, wait_until, attempt=1)


def test_killed_launcher_of_the_first_node_ends_the_others(cluster: Cluster, wait_until: WaitUntil) -> None:
    jobs = cluster.dynamic("--max-restarts 3", "ready", "hold")
    ready(cluster, jobs, wait_until)
    jobs[0].send_signal(signal.SIGKILL)
    shown = jobs[1].wait(10).expect(1)
    assert "lost the connection to the first node, which leads the job" in shown.stderr, shown
    all_gone(jobs, wait_until)


@pytest.mark.soak
def test_cut_link_ends_both_nodes_with_a_clear_message(cluster: Cluster, wait_until: WaitUntil) -> None:
    jobs = cluster.dynamic("", "ready", "hold")
    ready(cluster, jobs, wait_until)
    cluster.network.cut_link(cluster.nodes[1])
    cut = time.monotonic()
    first, second = [job.wait(SILENCE_S + 10).expect(1) for job in jobs]
    assert time.monotonic() - cut < SILENCE_S
    silence = r"node .* was lost: (no heartbeat for \d+\.\d s|its connection broke); restarts are off"
    assert re.search(silence, first.stderr), first
    assert "lost the connection to the first node, which leads the job" in second.stderr, second
    all_gone(jobs, wait_until)


def test_failure_behind_a_cut_link_ends_both_nodes(cluster: Cluster, wait_until: WaitUntil) -> None:
    """What the second node wants to say is never acknowledged: keep-alive probes are not sent meanwhile."""
    jobs = cluster.dynamic("", "ready", "2: see go", "2: exit 5", "hold")
    ready(cluster, jobs, wait_until)
    cluster.network.cut_link(cluster.nodes[1])
    (cluster.folder / "go").touch()
    cut = time.monotonic()
    first, second = [job.wait(SILENCE_S + 10).expect(1) for job in jobs]
    assert time.monotonic() - cut < SILENCE_S
    silence = r"node .* was lost: (no heartbeat for \d+\.\d s|its connection broke); restarts are off"
    assert re.search(silence, first.stderr), first
    assert "rank      : 2 " in root_cause(second) and "exitcode  : 5 " in root_cause(second), second
    all_gone(jobs, wait_until)


def test_signal_to_one_launcher_ends_the_job_on_both(cluster: Cluster, wait_until: WaitUntil) -> None:
    jobs = cluster.dynamic("", "ready", "hold")
    ready(cluster, jobs, wait_until)
    jobs[1].send_signal(signal.SIGTERM)
    first, second = [job.wait(10).expect(1) for job in jobs]
    assert "left: received SIGTERM" in first.stderr, first
    assert "received SIGTERM" in second.stderr, second
    all_gone(jobs, wait_until)


def test_first_node_is_reached_at_the_port_of_the_endpoint_alone(cluster: Cluster, wait_until: WaitUntil) -> None:
    jobs = cluster.dynamic("", "ready", "see go")
    ready(cluster, jobs, wait_until)
    loopback = {"127.0.0.1", "::1"}
    reachable = {port for address, port in cluster.nodes[0].listeners() if address not in loopback}
    assert reachable == {PORT}
    if with_token(sys.modules[__name__]):
        assert {address for address, _ in cluster.nodes[1].listeners()} <= loopback
    else:
        assert {port for _, port in cluster.nodes[0].listeners(jobs[0].pid)} == {PORT}
        assert cluster.nodes[1].listeners() == set()
    (cluster.folder / "go").touch()
    for job in jobs:
        job.wait(10).expect(0)


def test_node_that_comes_first_says_what_it_waits_for(cluster: Cluster, wait_until: WaitUntil) -> None:
    first, second = cluster.nodes
    options = f"--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint {first.ipv4}:{PORT} --rdzv-id early"
    early = cluster.launch(second, options, PUPPET, cluster.folder, "ready")
    reason = f"waiting for the first node: nothing listens at {first.ipv4}:{PORT}"
    wait_until(lambda: reason in early.stderr, 5, lambda: f"{reason!r} in\n{early.stderr}")
    assert f"asked through {second.interface} ({second.ipv4})" in early.stderr
    # As long as it takes to log in on the other machine.
    wait_until(lambda: time.monotonic() - early.started > 3, 10, "three seconds")
    assert early.stderr.count("waiting for the first node") == 1, "said once, not at every try"
    late = cluster.launch(first, options, PUPPET, cluster.folder, "ready")
    for job in (early, late):
        job.wait(10).expect(0)
    assert cluster.files("ready") == ["0.0.ready", "0.1.ready"]


def test_node_behind_a_cut_link_says_that_nobody_answers(cluster: Cluster) -> None:
    first, second = cluster.nodes
    cluster.network.cut_link(second)
    options = f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint {first.ipv4}:{PORT} --rdzv-conf read_timeout=3"
    shown = cluster.launch(second, options, PUPPET, cluster.folder).wait(15).expect(1)
    reason = rf"error: cannot reach the first node within 3 s: {re.escape(first.ipv4)}:{PORT} "
    assert re.search(f"{reason}(does not answer|cannot be reached: No route)", shown.stderr), shown
    assert "hint: check the network between the nodes" in shown.stderr, shown
