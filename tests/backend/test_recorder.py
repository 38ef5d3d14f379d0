"""The flight recorder of a rank: a private file, stacks on request, and no harm where it cannot be made."""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import run_ranks

from instep.backend import recorder


def is_recorded(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(world))
    made = recorder.of_this_process(None)
    assert made is not None
    path = Path(made.path())
    assert path.name == f"rank-{rank}-{os.getpid()}.records"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    # Everybody else must find the folder until all have looked.
    dist.barrier()


def answers_with_its_stacks(_rank: int, _world: int) -> None:
    made = recorder.of_this_process(None)
    assert made is not None
    path = Path(made.path())
    answer = path.with_suffix(".answer-2a")
    with path.with_suffix(".ask").open("wb", buffering=0) as pipe:
        pipe.write(struct.pack("<Q", 42))
    deadline = time.monotonic() + 30
    while not answer.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    (main,) = (thread for thread in json.loads(answer.read_text())["threads"] if thread["main"])
    assert [__file__, "answers_with_its_stacks"] in [[frame[0], frame[2]] for frame in main["frames"]]
    answer.unlink()
    recorder.end()
    assert not path.with_suffix(".ask").exists()
    assert "instep-recorder" not in {thread.name for thread in threading.enumerate()}


def is_not_recorded(_rank: int, world: int) -> None:
    assert recorder.of_this_process(None) is None
    dist.all_reduce(torch.ones(world))


def test_a_rank_writes_a_private_file_and_answers(tmp_path: Path) -> None:
    run_ranks(2, is_recorded, answers_with_its_stacks, environment={"INSTEP_RUN_DIR": str(tmp_path / "run")})


def test_without_a_recorder_nothing_else_changes(tmp_path: Path) -> None:
    run_ranks(2, is_not_recorded, environment={"INSTEP_RECORDER": "0"})
    run_ranks(2, is_not_recorded, environment={"INSTEP_RECORDER_DIR": str(tmp_path / "nowhere")})
