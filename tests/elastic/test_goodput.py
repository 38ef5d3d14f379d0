"""What became of the ranks' time: the classes add up, whatever happened, and what was lost is named.

Costs about 15 s: every training is two processes that are forked with torch imported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Runner

from .conftest import Train, adds_up

# Without a session: two collectives, and a sleep that is no collective.
PLAIN = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("{backend}")
dist.all_reduce(torch.ones(4))
time.sleep(0.3 * (1 + dist.get_rank()))
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""

# Saves 0.3 s long, on rank 0.
SAVES = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
import torch.distributed as dist
from instep.core._checkpoint import CheckpointContext
dist.init_process_group("instep")
dist.barrier()
context = CheckpointContext(SimpleNamespace(rank=0), Path(sys.argv[1]), None)
if dist.get_rank() == 0:
    with context.store_path({"steps_completed": 1}) as (path, _):
        time.sleep(0.3)
        (path / "weights").write_text("1")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("deaths", "redone"), [([], 0), (["1:3:backward"], 1), (["1:3:forward", "0:9:backward"], 2)])
def test_lost_steps_and_their_time_are_counted(
    started: Train, run: Runner, tmp_path: Path, deaths: list[str], redone: int
) -> None:
    goodput, said = train(started, run, tmp_path, *deaths, options=("--recover", "step"))
    assert (goodput["redone_steps"], goodput["taken_back_steps"]) == (redone, 0), said
    assert goodput["steps"] == 16, said
    assert (goodput["seconds"]["lost"] > 0) == (redone > 0), said
    assert (goodput["seconds"]["restart"] > 0) == bool(deaths), said
    assert 0 < goodput["ettr"] < 1, said
    assert ("of the ranks' time was training (ETTR)" in said) == bool(deaths), said
    assert ("1 step redone" in said) == (redone == 1), said


def test_a_rank_that_dies_after_the_vote_loses_nothing(started: Train, run: Runner, tmp_path: Path) -> None:
    goodput, said = train(started, run, tmp_path, "1:3:update", options=("--recover", "step"))
    survivor, victim = (rank["seconds"]["lost"] for rank in goodput["ranks"])
    # Its peer has finished step 3 and begun step 4, which needs the lost rank.
    assert (survivor > 0, victim, goodput["redone_steps"]) == (True, 0, 1), said


def test_steps_that_a_restart_takes_back_are_lost(started: Train, run: Runner, tmp_path: Path) -> None:
    goodput, said = train(started, run, tmp_path, "1:5:backward", options=("--max-restarts", "1"))
    assert (goodput["redone_steps"], goodput["taken_back_steps"]) == (1, 5), said
    assert all(rank["seconds"]["lost"] > 0 and rank["seconds"]["restart"] > 0 for rank in goodput["ranks"]), said
    assert "1 step redone; 5 steps taken back by restarts" in said


def train(
    started: Train, run: Runner, folder: Path, *deaths: str, options: tuple[str, ...]
) -> tuple[dict[str, Any], str]:
    """What the summary says of a training with these deaths, and what the launcher printed."""
    summary, events = folder / "summary.json", folder / "events"
    options = (*options, "--summary-json", str(summary), "--events", str(events))
    ended = started(run, folder / "results", 2, "sgd", *deaths, options=options)
    ended.result.expect(0)
    goodput = adds_up(summary)
    told = [json.loads(line) for line in events.read_text().splitlines()]
    event = next(each for each in told if each["event"] == "goodput")
    assert {key: event[key] for key in goodput} == goodput
    return goodput, ended.result.stderr


@pytest.mark.parametrize("backend", ["instep", "gloo"])
def test_without_a_session_it_is_coarse(run: Runner, instep: Path, forked: Path, tmp_path: Path, backend: str) -> None:
    script, summary = tmp_path / "plain.py", tmp_path / "summary.json"
    script.write_text(PLAIN.format(backend=backend))
    command = ("run", "--standalone", "--nproc-per-node", "2", "--summary-json", str(summary), "--no-python")
    result = run(instep, *command, forked, script, timeout=60).expect(0)
    assert "ETTR" not in result.stderr, "nothing was lost"
    goodput = adds_up(summary)
    first, second = (rank["seconds"] for rank in goodput["ranks"])
    if backend == "instep":
        assert first["communication"] > 0 and second["communication"] > 0, goodput
        assert first["compute"] >= 0.3 and second["compute"] >= 0.6, goodput
        assert first["unobserved"] == 0 and goodput["ettr"] is not None, goodput
    else:
        assert first["unobserved"] > 0.3 and goodput["ettr"] is None, goodput
    assert goodput["steps"] is None


def test_saving_is_no_training(run: Runner, instep: Path, forked: Path, tmp_path: Path) -> None:
    script, summary = tmp_path / "saves.py", tmp_path / "summary.json"
    script.write_text(SAVES)
    command = ("run", "--standalone", "--nproc-per-node", "2", "--summary-json", str(summary), "--no-python")
    run(instep, *command, forked, script, tmp_path / "checkpoints", timeout=60).expect(0)
    goodput = adds_up(summary)
    first, second = (rank["seconds"] for rank in goodput["ranks"])
    assert first["checkpoint"] >= 0.3 and second["checkpoint"] == 0, goodput
    assert second["communication"] > 0, goodput
