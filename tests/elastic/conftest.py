"""What the suite shares: jobs whose ranks are forked, and what the undisturbed ones end with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import Result, Runner

TRAIN = Path(__file__).parent / "scripts" / "train.py"


@dataclass(frozen=True)
class Ended:
    """How a training ended: what the launcher said, and what each rank had at the end."""

    result: Result
    ranks: list[dict[str, Any]]

    @property
    def digests(self) -> set[str]:
        """Of weights, buffers and optimizer state, of all ranks."""
        return {rank["digest"] for rank in self.ranks}


Train = Callable[..., Ended]


def read(result: Result, folder: Path) -> Ended:
    """What the ranks of a training have written."""
    found = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    return Ended(result, [json.loads(path.read_text()) for path in found])


def adds_up(summary: Path) -> dict[str, Any]:
    """What a summary says of goodput: the classes of every rank add up to the time that the launcher ran."""
    found = json.loads(summary.read_text())
    goodput: dict[str, Any] = found["goodput"]
    for rank in goodput["ranks"]:
        assert sum(rank["seconds"].values()) == pytest.approx(found["duration_seconds"], rel=1e-3), goodput
        assert all(seconds >= 0 for seconds in rank["seconds"].values()), goodput
    return goodput


@pytest.fixture(scope="session")
def started(instep: Path, forked: Path) -> Callable[..., Ended]:
    """Run `train.py` to its end."""

    def train(
        run: Runner,
        folder: Path,
        world: int,
        case: str,
        *deaths: str,
        options: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> Ended:
        folder.mkdir(exist_ok=True)
        result = run(
            instep,
            *("run", "--standalone", "--nproc-per-node", str(world), *options, "--no-python", forked),
            *(TRAIN, case, *deaths),
            env={"OMP_NUM_THREADS": "1", "RESULTS": str(folder), **(env or {})},
            # Not how long it should take: a busy machine may take minutes.
            timeout=170,
        )
        return read(result, folder)

    return train


@pytest.fixture
def train(started: Train, run: Runner, tmp_path: Path) -> Train:
    """Run `train.py CASE RANK:STEP:MOMENT ...` under `--recover step`."""

    def recovering(world: int, case: str, *deaths: str) -> Ended:
        return started(run, tmp_path / "disturbed", world, case, *deaths, options=("--recover", "step"))

    return recovering


@pytest.fixture(scope="session")
def undisturbed(started: Train, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str], Ended]:
    """What a training ends with that nobody disturbs, and that would not recover."""
    known: dict[tuple[int, str], Ended] = {}

    def ended(world: int, case: str) -> Ended:
        if (world, case) not in known:
            runner = Runner()
            folder = tmp_path_factory.mktemp("undisturbed")
            # To the last: it must be quiet when nothing has happened.
            known[world, case] = started(runner, folder, world, case, env={"INSTEP_TEST_WHOLE_END": "1"})
            known[world, case].result.expect(0)
        return known[world, case]

    return ended
