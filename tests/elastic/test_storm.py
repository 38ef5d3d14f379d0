"""Ranks are killed at random moments, one after the other, also while the others recover.

`make test` kills 5 (about 15 s); the soak 1,000, in trainings of 20 each. INSTEP_SEED=... has the moments of one again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from conftest import Runner

from .conftest import TRAIN, Ended, Train, adds_up, read

WORLD = 4
CASES = ("adam-dropout", "sgd-norm", "static-views", "scaler-accumulate", "two-zeros", "unused-dropout")


def storm(run: Runner, instep: Path, forked: Path, folder: Path, case: str, kills: int, seed: int) -> Ended:
    """Train, and kill so many ranks meanwhile."""
    folder.mkdir()
    summary = folder / "summary"
    job = run.start(
        instep,
        *("run", "--standalone", "--nproc-per-node", str(WORLD), "--recover", "step", "--summary-json", summary),
        *("--no-python", forked, TRAIN, case),
        env={"OMP_NUM_THREADS": "1", "RESULTS": str(folder), "EPOCHS": str(epochs(kills)), "PACE": "0.01"},
    )
    chance = random.Random(seed)
    killed: list[int] = []
    # What only a rank has is with one other: of these two, one must live. And somebody must have the weights.
    most = 1 if "norm" in case else WORLD - 1
    while len(killed) < kills and job.poll() is None:
        time.sleep(chance.uniform(0.0, 0.4))
        ranks = [process(folder / f"{rank}.pid") for rank in range(WORLD)]
        lost = {rank for rank, pid in enumerate(ranks) if pid in killed or pid != process(folder / f"{rank}.ok")}
        rank = chance.randrange(WORLD)
        # A rank that dies again and again in one step is taken for a bug.
        if (
            len(lost | {rank}) <= most
            and ranks[rank] not in (0, *killed)
            and (rank not in lost or chance.random() < 0.2)
        ):
            with contextlib.suppress(ProcessLookupError):
                os.kill(ranks[rank], signal.SIGKILL)
                killed.append(ranks[rank])
    ended = read(job.wait(60 + 4 * kills), folder)
    said = f"seed {seed}, {len(killed)} of {kills} killed\n{ended.result}"
    assert ended.result.status == 0, said
    assert len(killed) == kills, said
    assert adds_up(summary)["ettr"] is not None, said
    return ended


def process(path: Path) -> int:
    """The process that has written this, 0 if none has."""
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return 0


def epochs(kills: int) -> int:
    """Enough for so many."""
    return 20 + 12 * kills


def check(ended: Ended, expected: Ended) -> None:
    """The bits are those of a training that nobody has disturbed."""
    assert expected.result.status == 0, expected.result
    for found, wanted in zip(ended.ranks, expected.ranks, strict=True):
        for key in ("digest", "steps", "rates", "scale"):
            assert found[key] == wanted[key], f"{key}\n{ended.result}"
        assert found["ledger"].items() <= wanted["ledger"].items(), str(ended.result)


@pytest.mark.parametrize(
    ("number", "kills"),
    [pytest.param(0, 5), *(pytest.param(number, 20, marks=pytest.mark.soak) for number in range(1, 51))],
)
def test_the_same_bits_come_out_of_a_storm(
    number: int, kills: int, run: Runner, instep: Path, forked: Path, started: Train, tmp_path: Path
) -> None:
    seed = int(os.environ.get("INSTEP_SEED", random.SystemRandom().randrange(1 << 32)))
    case = CASES[number % len(CASES)]
    print(json.dumps({"seed": seed, "case": case}))
    ended = storm(run, instep, forked, tmp_path / "storm", case, kills, seed)
    check(ended, started(run, tmp_path / "calm", WORLD, case, env={"EPOCHS": str(epochs(kills))}))
