"""Collectives between hosts when the network or a process fails: who is told, and what."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from namespaces import Network, network

from conftest import Runner, Running, WaitUntil

__all__ = ["network"]

ADDER = Path(__file__).resolve().parent / "scripts" / "adder.py"
# The engine promises a second; a loaded machine may take longer to start a process that looks.
NOTICED_S = 10.0


class Ranks:
    """Ranks that add ones up, as many on each of the two machines."""

    def __init__(self, network: Network, python: Path, run: Runner, folder: Path, each: int) -> None:
        self._folder = folder
        self.world = 2 * each
        environment = {"OMP_NUM_THREADS": "1"}
        self.running: list[Running] = [
            network.nodes[rank // each].start(run, python, ADDER, folder, str(rank), str(self.world), env=environment)
            for rank in range(self.world)
        ]

    def all_have(self, kind: str) -> bool:
        return all((self._folder / f"{rank}.{kind}").exists() for rank in range(self.world))

    def errors(self) -> list[dict[str, object]]:
        return [json.loads((self._folder / f"{rank}.error").read_text()) for rank in range(self.world)]

    def mark(self, name: str) -> None:
        (self._folder / name).touch()


@pytest.mark.parametrize(("each", "resting"), [(1, False), (2, False), (2, True)])
def test_a_cut_cable_is_noticed_on_both_sides(
    network: Network, forked: Path, run: Runner, wait_until: WaitUntil, tmp_path: Path, each: int, resting: bool
) -> None:
    ranks = Ranks(network, forked, run, tmp_path, each)
    wait_until(lambda: ranks.all_have("ready"), timeout=60)
    if resting:
        ranks.mark("rest")
        wait_until(lambda: ranks.all_have("resting"), timeout=20)
    began = time.monotonic()
    network.cut_link(network.nodes[1])
    if resting:
        # Nobody calls anything while the silence is noticed.
        time.sleep(2)
        (tmp_path / "rest").unlink()
        began = time.monotonic()
    wait_until(lambda: ranks.all_have("error"), timeout=NOTICED_S)
    for rank, error in enumerate(ranks.errors()):
        text, other = str(error["text"]), each if rank < each else 0
        assert f"lost rank {other} on " in text, text
        assert "its host does not answer" in text and ("all_reduce(" in text or "broadcast(" in text), text
        print(f"rank {rank} knew after {float(str(error['at'])) - began:.2f} s: {text.splitlines()[0]}")


def test_a_killed_rank_is_named_on_both_machines(
    network: Network, forked: Path, run: Runner, wait_until: WaitUntil, tmp_path: Path
) -> None:
    ranks = Ranks(network, forked, run, tmp_path, each=2)
    wait_until(lambda: ranks.all_have("ready"), timeout=60)
    os.kill(ranks.running[3].pid, signal.SIGKILL)
    wait_until(lambda: all((tmp_path / f"{rank}.error").exists() for rank in range(3)), timeout=NOTICED_S)
    for rank in range(3):
        text = json.loads((tmp_path / f"{rank}.error").read_text())["text"]
        assert "lost rank 3 on " in text, text


def test_a_stopped_rank_is_waited_for(
    network: Network, python: Path, run: Runner, wait_until: WaitUntil, tmp_path: Path
) -> None:
    ranks = Ranks(network, python, run, tmp_path, each=1)
    wait_until(lambda: ranks.all_have("ready"), timeout=60)
    os.kill(ranks.running[1].pid, signal.SIGSTOP)
    time.sleep(3)
    assert not (tmp_path / "0.error").exists()
    os.kill(ranks.running[1].pid, signal.SIGCONT)
    ranks.mark("stop")
    for running in ranks.running:
        running.wait(30).expect(0)
    assert not (tmp_path / "0.error").exists()
