"""`instep bench collectives`: its arithmetic against a naive simulation, a run of everything, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from namespaces import Network, network

from conftest import Runner, WaitUntil
from instep.bench.case import OPERATIONS, PATTERN_LENGTH, Case, Figure, calls_per_batch, spell_size

__all__ = ["network"]

ALL = ",".join(OPERATIONS)
COLUMNS = ("time", "algbw", "busbw")
COLLECTIVES = ("bench", "collectives")


@pytest.fixture
def venv(python: Path) -> dict[str, str | None]:
    """The environment of a shell in which the project's virtual environment is active."""
    return {"VIRTUAL_ENV": str(python.parent.parent), "PYTHON_EXEC": None, "PYTHONPATH": None}


@pytest.fixture
def ready(forked: Path) -> dict[str, str | None]:
    """The environment of a shell in which ranks find torch imported."""
    return {"PYTHON_EXEC": str(forked), "PYTHONPATH": None}


def filled(case: Case, rank: int) -> list[int]:
    """A rank's input."""
    return [rank + 1 + position % PATTERN_LENGTH for position in range(case.input_count)]


def naive(case: Case, rank: int) -> list[int] | None:
    """What MPI's standard says is in the result of `rank`; None where it says nothing."""
    inputs = [filled(case, other) for other in range(case.world_size)]
    sums = [sum(column) for column in zip(*inputs, strict=True)]
    part = slice(rank * case.share, (rank + 1) * case.share)
    together = [value for values in inputs for value in values]
    exchanged = [value for values in inputs for value in values[part]]
    return {
        "all_reduce": sums,
        "reduce": sums if rank == 0 else None,
        "broadcast": inputs[0],
        "reduce_scatter": sums[part],
        "scatter": inputs[0][part],
        "all_gather": together,
        "gather": together if rank == 0 else None,
        "all_to_all": exchanged,
        "barrier": None,
    }[case.operation]


def expected(case: Case, rank: int) -> list[int] | None:
    """The same as the benchmark has it."""
    parts = case.result_parts(rank)
    values: list[int] = []
    for part in parts:
        assert part.first == len(values), "the parts follow each other"
        values += [part.factor * ((part.pattern_from + i) % PATTERN_LENGTH) + part.plus for i in range(part.length)]
    return values if parts else None


@pytest.mark.parametrize("operation", OPERATIONS)
def test_expected_results_are_those_of_a_naive_simulation(operation: str) -> None:
    for world_size in range(1, 6):
        for size in (1, 8, 100, 4096):
            case = Case.of(operation, size, world_size)
            assert case.count * 4 <= max(size, 4 * world_size)
            for rank in range(world_size):
                assert expected(case, rank) == naive(case, rank), (case, rank)


def test_bandwidths_are_those_of_nccl_tests() -> None:
    factors = {operation: Case.of(operation, 4096, 4).bus_factor for operation in OPERATIONS}
    assert factors == {
        "all_reduce": 1.5,
        "reduce_scatter": 0.75,
        "all_gather": 0.75,
        "all_to_all": 0.75,
        "broadcast": 1,
        "reduce": 1,
        "gather": 0.75,
        "scatter": 0.75,
        "barrier": 0,
    }
    figure = Figure(Case.of("all_reduce", 4_000_000, 4), "gloo", (0.004, 0.001, 0.002), 7)
    assert (figure.time_s, figure.algorithm_gb_s, figure.bus_gb_s) == (0.002, 2, 3)


@pytest.mark.parametrize(("seconds", "calls"), [(1e-6, 2_000), (5e-6, 1_000), (0.001, 4), (0.0004, 12), (2.0, 4)])
def test_a_batch_takes_a_moment_whatever_a_call_takes(seconds: float, calls: int) -> None:
    asked: list[int] = []

    def measure(count: int) -> float:
        asked.append(count)
        return seconds

    assert calls_per_batch(measure) == calls
    assert sum(asked) * seconds <= 0.005 + 2 * seconds, "finding out is short too"


def test_sizes_are_spelled_as_they_are_given() -> None:
    assert [spell_size(size) for size in (8, 4096, 5000, 26214400, 1 << 30)] == ["8", "4K", "5000", "25M", "1G"]


def check_figures(text: str, backends: Sequence[str], operations: Sequence[str], sizes: Sequence[int]) -> None:
    """Every backend has a figure for every operation and size, and the figures fit each other."""
    report = json.loads(text)
    assert report["unable"] == []
    got = [(row["operation"], row["bytes"], row["backend"]) for row in report["results"]]
    assert got == [
        (operation, size, backend)
        for operation in operations
        for size in ([0] if operation == "barrier" else sizes)
        for backend in backends
    ]
    for row in report["results"]:
        factor = Case.of(row["operation"], row["bytes"], report["world_size"]).bus_factor
        assert row["algorithm_gb_s"] == pytest.approx(row["bytes"] / row["time_us"] / 1e3)
        assert row["bus_gb_s"] == pytest.approx(row["algorithm_gb_s"] * factor)
        assert len(row["rounds_us"]) == report["rounds"] and min(row["rounds_us"]) > 0


def test_every_operation_of_ours_and_of_gloo(instep: Path, ready: dict[str, str | None], run: Runner) -> None:
    words = ["--backends", "instep,gloo", "--sizes", "8,256K", "--ops", ALL, "--rounds", "2", "--json"]
    shown = run(instep, *COLLECTIVES, *words, env=ready).expect(0)
    assert shown.stderr == ""
    check_figures(shown.stdout, ["instep", "gloo"], OPERATIONS, [8, 262144])
    assert json.loads(shown.stdout)["world_size"] == 2


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_mpi_takes_its_turn_in_the_same_processes(instep: Path, venv: dict[str, str | None], run: Runner) -> None:
    words = ["--nproc", "2", "--backends", "mpi,instep", "--sizes", "4K", "--ops", ALL, "--rounds", "1", "--json"]
    shown = run(instep, *COLLECTIVES, *words, env=venv).expect(0)
    check_figures(shown.stdout, ["mpi", "instep"], OPERATIONS, [4096])


def test_table_for_people(instep: Path, ready: dict[str, str | None], run: Runner) -> None:
    words = ["--nproc", "3", "--sizes", "12,48K", "--ops", "all_reduce,broadcast", "--rounds", "1"]
    lines = run(instep, *COLLECTIVES, *words, env=ready).expect(0).stdout.splitlines()
    assert lines[0].startswith("3 ranks on ")
    for start, operation in ((2, "all_reduce"), (8, "broadcast")):
        assert lines[start] == operation
        assert lines[start + 1].split() == ["size", "instep", "gloo"]
        assert lines[start + 2].split() == ["bytes", *COLUMNS, *COLUMNS, "ratio"]
        for line, size in zip(lines[start + 3 : start + 5], ("12", "48K"), strict=True):
            figure = r"[\d.]+ [µm]s +[\d.]+ +[\d.]+"
            assert re.fullmatch(rf" +{size} +{figure} +{figure} +[\d.]+x", line), line
            assert len(line) == len(lines[start + 2])
    assert len(lines) == 13


def test_wrong_results_are_found(forked: Path, run: Runner) -> None:
    code = """
import torch
from instep.bench.case import OPERATIONS, Case
from instep.bench.contender import Buffers
for operation in OPERATIONS[:-1]:  # a barrier has no result
    case = Case.of(operation, 4000, 4)
    buffers = Buffers.make(case, 0, torch.device("cpu"))
    buffers.fill()
    for part in case.result_parts(0):
        at = slice(part.first, part.first + part.length)
        buffers.result[at] = buffers.pattern[part.pattern_from :][: part.length] * part.factor + part.plus
    assert buffers.mistake() is None, operation
    buffers.result[-1] += 1
    print(operation, buffers.mistake())
"""
    lines = run(forked, "-c", code).expect(0).stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(OPERATIONS[:-1])
    assert lines[0] == "all_reduce element 999 is 127.0, not 126.0"  # 4 * (999 % 97) + 1 + 2 + 3 + 4
    assert all(re.fullmatch(r"\w+ element \d+ is [\d.]+, not [\d.]+", line) for line in lines), lines


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            "--backends nccl --nproc 64",
            "nccl needs a GPU for every rank: 64 ranks, this machine shows",
            "leave nccl out",
        ),
        ("--backends mpi", "mpi needs `mpirun`, which is not on PATH", "install Open MPI, or leave mpi out"),
        ("--nproc 1", "a single rank has no peer to exchange data with", "--nproc 2"),
        ("--nnodes 2 --master-addr a --backends gloo,mpi", "mpi needs `mpirun`", "leave mpi out"),
        ("--hosts 2", "cannot create 2 network namespaces: `ip` is not on PATH", "this needs root and iproute2"),
        ("--sizes 4G --nproc 1024", "1024 ranks with buffers of 4G need about", "a smaller --sizes"),
    ],
)
def test_what_cannot_work_is_refused_before_any_rank_starts(
    words: str, message: str, hint: str, instep: Path, venv: dict[str, str | None], run: Runner
) -> None:
    shown = run(instep, *COLLECTIVES, *shlex.split(words), env={**venv, "PATH": "/nowhere"}).expect(1)
    assert shown.stdout == ""
    error, advice = shown.stderr.splitlines()
    assert error.startswith(f"error: {message}")
    assert advice.startswith("hint: ") and hint in advice


def test_ranks_that_fail_are_heard(instep: Path, venv: dict[str, str | None], tmp_path: Path, run: Runner) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('this torch is broken')\n")
    shown = run(instep, *COLLECTIVES, env={**venv, "PYTHONPATH": str(tmp_path)}).expect(1)
    assert shown.stderr.startswith("error: the ranks ended with status 1; their output:\n")
    assert "ImportError: this torch is broken" in shown.stderr
    assert shown.stderr.splitlines()[-1].startswith("hint: ")


def test_nothing_is_left_behind_when_it_is_told_to_end(
    instep: Path, ready: dict[str, str | None], tmp_path: Path, run: Runner, wait_until: WaitUntil
) -> None:
    running = run.start(
        instep, *COLLECTIVES, "--sizes", "1M", "--rounds", "100", env={**ready, "TMPDIR": str(tmp_path)}
    )
    wait_until(lambda: "2 ranks on" in running.stdout, 90, "the ranks to begin")
    running.send_signal(signal.SIGTERM)
    running.wait().expect(128 + signal.SIGTERM)
    wait_until(lambda: not running.left_behind(), 10, "the ranks to end")
    assert not list(tmp_path.glob("instep-bench-*"))


def test_small_messages_between_hosts_take_one_way(instep: Path, ready: dict[str, str | None], run: Runner) -> None:
    delay_us = 20_000
    words = ["--hosts", "3", "--nproc", "1", "--delay", f"{delay_us}us", "--backends", "instep", "--rounds", "1"]
    operations = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier")
    words += ["--sizes", "8", "--ops", ",".join(operations), "--json"]
    report = json.loads(run(instep, *COLLECTIVES, *words, env=ready).expect(0).stdout)
    assert (report["hosts"], report["world_size"]) == (3, 3)
    assert delay_us <= report["one_way_us"]
    for row in report["results"]:
        # The first word is what the others wait for; two after one another would take twice as long.
        assert row["time_us"] < 1.9 * report["one_way_us"], row
    assert {row["operation"] for row in report["results"]} == set(operations)


def test_the_same_command_on_every_host(
    network: Network, instep: Path, ready: dict[str, str | None], run: Runner
) -> None:
    words = ["--nproc", "1", "--nnodes", "2", "--master-addr", network.nodes[0].ipv4, "--sizes", "8", "--rounds", "1"]
    running = [
        node.start(run, instep, *COLLECTIVES, *words, "--node-rank", str(number), env=ready)
        for number, node in enumerate(network.nodes)
    ]
    first, second = (command.wait().expect(0) for command in running)
    assert first.stdout.startswith("2 ranks on 2 hosts, float32") and len(first.stdout.splitlines()) == 6
    assert second.stdout == ""
