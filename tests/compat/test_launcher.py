"""`instep run` behaves as `torchrun` of the installed torch does, on every case of `cases`.

The expectation is the recorded behaviour (`make golden`), and for a few telling cases also torchrun itself, run side
by side. Differences must be listed in `differences.JUSTIFIED`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import differences
import golden
from cases import BY_NAME, C10D, CASES, Case
from observe import Launcher, Observation, observe

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 2
LIVE = [case for case in CASES if case.live]


class Runs:
    """Observations made two at a time in the background, each at most once."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        """Use `pool` for all runs."""
        self._pool = pool
        self._started: dict[tuple[str, str], Future[Observation]] = {}

    def start(self, case: Case, launcher: Launcher) -> Future[Observation]:
        key = (launcher.name, case.name)
        if key not in self._started:
            self._started[key] = self._pool.submit(observe, case, launcher)
        return self._started[key]


@pytest.fixture(scope="session")
def launcher(request: pytest.FixtureRequest) -> Launcher:
    """`instep run` as built in this tree; INSTEP_COMPAT_LAUNCHER=torchrun tests the harness against torchrun."""
    python = find_path(request, "python", os.environ.get("INSTEP_COMPAT_PYTHON"), ROOT / ".venv/bin/python")
    # The venv is the folder as named, not what its interpreter links to.
    venv = python.absolute().parent.parent
    if os.environ.get("INSTEP_COMPAT_LAUNCHER") == "torchrun":
        return Launcher.torchrun(venv)
    binary = find_path(request, "instep", os.environ.get("INSTEP_COMPAT_BINARY"), ROOT / "target/quick/instep")
    return Launcher.instep(binary, venv)


def find_path(request: pytest.FixtureRequest, fixture: str, override: str | None, default: Path) -> Path:
    if override:
        return Path(override)
    try:
        path = Path(request.getfixturevalue(fixture))
    except pytest.FixtureLookupError:
        path = default
    if not path.exists():
        pytest.fail(f"{path} does not exist\nhint: run `make build` first")
    return path


@pytest.fixture(scope="session")
def recorded(launcher: Launcher) -> golden.Cases:
    """What the installed torch's torchrun did."""
    query = "from importlib.metadata import version; print(version('torch').split('+')[0])"
    answer = subprocess.run([launcher.venv / "bin/python", "-c", query], capture_output=True, text=True, check=True)
    version = answer.stdout.strip()
    if version not in golden.recorded_versions():
        pytest.fail(f"torchrun of torch {version} has not been recorded\nhint: run `make golden`")
    return golden.load(version)


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, launcher: Launcher) -> Iterator[Runs]:
    """Starts every selected case at once, so that two run while the first is being compared."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = Runs(pool)
        for item in request.session.items:
            parameters = getattr(getattr(item, "callspec", None), "params", {})
            if isinstance(case := parameters.get("case"), Case):
                runs.start(case, launcher)
        yield runs
        pool.shutdown(cancel_futures=True)


def unexplained(case: Case, expected: golden.Fields, seen: Observation) -> list[str]:
    """Differences that no entry of JUSTIFIED covers, as lines."""
    problems = [
        f"{field}: torchrun {theirs!r}, instep {ours!r}"
        for field, (theirs, ours) in comparable(expected, seen).items()
        if differences.find(case.name, field, theirs, ours) is None
    ]
    return problems + [
        f"the report does not name rank {failure['rank']} with exit code {failure['exit']}"
        for failure in unnamed(expected, seen)
        if differences.find(case.name, "report", failure["exit"], golden.ABSENT) is None
    ]


def unnamed(expected: golden.Fields, seen: Observation) -> list[dict[str, Any]]:
    """Failures that torchrun reports and we do not."""
    causes = [failure for failure in expected["failures"] if not stopped_by_launcher(failure)]
    missing = [failure for failure in causes if not names(seen.stderr, failure)]
    several_nodes = len(seen.fields["exit"]) > 1
    # The first failure ends the job on all nodes: a later one elsewhere may be stopped before it happens.
    return [] if several_nodes and len(missing) < len(causes) else missing


def comparable(expected: golden.Fields, seen: Observation) -> dict[str, tuple[Any, Any]]:
    """All differences except in the final report, whose text is the launcher's own."""
    found = golden.differences(expected, seen.fields)
    return {field: values for field, values in found.items() if field != "failures"}


def stopped_by_launcher(failure: dict[str, Any]) -> bool:
    return not failure["root"] and failure["exit"] in (-15, -9)


SIGNAL_NAMES = {-6: "SIGABRT", -9: "SIGKILL", -11: "SIGSEGV", -15: "SIGTERM"}


def names(report: str, failure: dict[str, Any]) -> bool:
    """Whether some line speaks of the rank and it or one of the next five gives the exit code or signal."""
    rank = r"\d+" if failure["rank"] == "<any>" else failure["rank"]
    code = SIGNAL_NAMES.get(failure["exit"], failure["exit"])
    pattern = rf"\brank\W*{rank}\b.*(?:\n.*){{0,5}}?(?<![\w-]){code}\b"
    return re.search(pattern, report, re.IGNORECASE) is not None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_launcher(case: Case, launcher: Launcher, recorded: golden.Cases, runs: Runs) -> None:
    if case.name not in recorded:
        pytest.fail(f"case {case.name!r} has not been recorded\nhint: run `make golden`")
    expected = recorded[case.name]
    if expected is None:
        pytest.skip("this torch does not know the options")
    seen = runs.start(case, launcher).result()
    problems = unexplained(case, expected, seen)
    assert not problems, "\n".join([*problems, "standard error:", seen.stderr[-4000:]])


@pytest.mark.parametrize("case", LIVE, ids=lambda case: case.name.replace(" ", "-"))
def test_side_by_side(case: Case, launcher: Launcher, runs: Runs) -> None:
    seen = runs.start(case, launcher).result()
    expected = runs.start(replace(case, name=f"{case.name} live"), Launcher.torchrun(launcher.venv)).result()
    problems = unexplained(case, expected.fields, seen)
    assert not problems, "\n".join([*problems, "standard error:", seen.stderr[-4000:]])


def test_every_difference_is_needed(launcher: Launcher, recorded: golden.Cases, runs: Runs) -> None:
    if launcher.name == "torchrun":
        pytest.skip("torchrun does not differ from itself")
    started = {case.name: runs.start(case, launcher) for case in CASES if recorded.get(case.name)}
    used = set()
    for name, run in started.items():
        expected = recorded[name]
        assert expected is not None
        for field, (theirs, ours) in comparable(expected, run.result()).items():
            if entry := differences.find(name, field, theirs, ours):
                used.add(entry.id)
        for failure in unnamed(expected, run.result()):
            if entry := differences.find(name, "report", failure["exit"], golden.ABSENT):
                used.add(entry.id)
    assert [entry.id for entry in differences.JUSTIFIED if entry.always and entry.id not in used] == []


def test_page_lists_the_differences() -> None:
    page = differences.PAGE.read_text()
    assert page == differences.page_with_section(page), "run tests/compat/differences.py"


def test_choices_have_their_test() -> None:
    assert [choice.id for choice in differences.BY_CHOICE if choice.test not in globals()] == []


@pytest.fixture
def ours(launcher: Launcher) -> Launcher:
    """The launcher, for promises that torchrun does not make."""
    if launcher.name == "torchrun":
        pytest.skip("torchrun does not promise this")
    return launcher


def node_order(case: Case, launcher: Launcher) -> list[str]:
    """The position in `case.nodes` of each group rank, for one worker a node."""
    seen = observe(case, launcher)
    assert seen.fields["exit"] == [0] * len(case.nodes), seen.stderr
    return [worker["node"] for _, worker in sorted(seen.fields["workers"].items())]


def test_group_rank_0_hosts_the_endpoint(ours: Launcher) -> None:
    options = (*C10D, "--nnodes=2")
    nodes = ((*options, "--rdzv-conf=is_host=false"), (*options, "--rdzv-conf=is_host=true"))
    assert node_order(Case("endpoint host", nodes), ours) == ["1", "0"]


def test_node_rank_orders_nodes_under_c10d(ours: Launcher) -> None:
    options = (*C10D, "--nnodes=3")
    nodes = (
        (*options, "--node-rank=0", "--rdzv-conf=is_host=true"),
        (*options, "--node-rank=2", "--rdzv-conf=is_host=false"),
        (*options, "--node-rank=1", "--rdzv-conf=is_host=false"),
    )
    assert node_order(Case("node rank", nodes), ours) == ["0", "2", "1"]


def test_standalone_uses_localhost(ours: Launcher) -> None:
    case = replace(BY_NAME["default"], name="localhost", script=("{probe}", "do:master"))
    assert "probe: master is localhost" in observe(case, ours).fields["stdout"]
