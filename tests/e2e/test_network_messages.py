"""Messages between hosts when the other rank cannot send: nobody waits for it in vain, and everybody hears its name.

The ranks 0 and 3 of two hosts with two ranks each have no connection before one of them wants a message.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from namespaces import Network, network

from conftest import Runner, WaitUntil

__all__ = ["network"]

WAITER = Path(__file__).resolve().parent / "scripts" / "waiter.py"
PORT = 29605
# The engine promises a second; a loaded machine may take longer.
NOTICED_S = 40.0


@pytest.mark.parametrize("fault", ["killed before", "killed while others wait", "cut off"])
def test_a_wait_for_a_rank_of_another_host_ends_with_its_name(
    network: Network, forked: Path, run: Runner, wait_until: WaitUntil, tmp_path: Path, fault: str
) -> None:
    ranks = [
        network.nodes[rank // 2].start(
            run, forked, WAITER, tmp_path, str(rank), "4", network.nodes[0].ipv4, str(PORT), env={}
        )
        for rank in range(4)
    ]

    def all_have(kind: str, among: range) -> bool:
        return all((tmp_path / f"{rank}.{kind}").exists() for rank in among)

    wait_until(lambda: all_have("ready", range(4)), 60, lambda: "\n".join(rank.stderr for rank in ranks))
    if fault == "killed before":
        os.kill(ranks[3].pid, signal.SIGKILL)
        wait_until(lambda: ranks[3].poll() is not None, 10)
    (tmp_path / "go").touch()
    if fault != "killed before":
        wait_until(lambda: all_have("waiting", range(3)), 20)
        # Long enough for the connections to be there.
        time.sleep(0.3)
        assert not (tmp_path / "0.error").exists()
    if fault == "killed while others wait":
        os.kill(ranks[3].pid, signal.SIGKILL)
    elif fault == "cut off":
        network.cut_link(network.nodes[1])
    wait_until(lambda: all_have("error", range(3)), NOTICED_S, lambda: "\n".join(rank.stderr for rank in ranks))
    for rank in range(3):
        text = json.loads((tmp_path / f"{rank}.error").read_text())["text"]
        if fault == "cut off":
            # Each side has lost the other one, which the first ranks of both find out.
            assert f"lost rank {2 if rank < 2 else 0} on " in text and "its host does not answer" in text, text
        else:
            assert "lost rank 3 on " in text and "receive(8 bytes from rank 3, tag 0)" in text, text
