"""Groups over many hosts: they form, add up right, and have no more connections and memory than documented.

The ranks do without torch: hundreds of processes with it do not fit into a small machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from namespaces import Network, network

from conftest import Runner

__all__ = ["network"]

RANK = Path(__file__).resolve().parent / "scripts" / "counted.py"
PORT = 29604
# As docs/concepts/collectives.md says: values that come and a host's sums. The rest is the interpreter's.
OWN_KB = (12 + 8 + 4) * 1024
# Two slots of 1 MiB for each rank of the host, and who is where.
SHARED_KB_PER_RANK = 2 * 1024 + 64


def reports(
    network: Network, instep: Path, python: Path, run: Runner, folder: Path, each: int, *steps: str
) -> list[dict[str, float]]:
    """What every rank has written down, in their order."""
    hosts = len(network.nodes)
    environment = {"VIRTUAL_ENV": str(python.parent.parent), "PYTHON_EXEC": None, "OMP_NUM_THREADS": "1"}
    job = ["--nnodes", str(hosts), "--nproc-per-node", str(each), "--master-addr", network.nodes[0].ipv4]
    jobs = [
        node.start(
            run,
            instep,
            "run",
            *job,
            "--master-port",
            str(PORT),
            "--node-rank",
            str(number),
            RANK,
            folder,
            *steps,
            env=environment,
        )
        for number, node in enumerate(network.nodes)
    ]
    for one in jobs:
        one.wait(timeout=500).expect(0)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(hosts * each)]


def check(found: list[dict[str, float]], hosts: int, each: int) -> None:
    """Links and memory of every rank, as documented."""
    for rank, report in enumerate(found):
        # The first rank of a host feels the pulse of the others.
        links = (hosts - 1) * (2 if rank % each == 0 else 1)
        assert report["collectives"] == links, (rank, report)
        # One with the next host, one with the host before; twice where both called at the same moment.
        peers = min(2, hosts - 1)
        assert links + peers <= report["messages"] <= links + 2 * peers, (rank, report)
        assert report["own"] <= OWN_KB, (rank, report)
        assert report["shared"] <= SHARED_KB_PER_RANK * each, (rank, report)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("network", [4], indirect=True)
def test_sixteen_ranks_on_four_hosts_have_the_links_they_use(
    network: Network, instep: Path, python: Path, run: Runner, tmp_path: Path
) -> None:
    found = reports(network, instep, python, run, tmp_path, 4, "all_to_all")
    check(found, hosts=4, each=4)
    for rank, report in enumerate(found):
        # Straight from rank to rank: one more with each of the others.
        assert report["everybody"] == report["messages"] + len(found) - 1, (rank, report)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("network", [16], indirect=True)
@pytest.mark.parametrize(("each", "steps"), [(4, ["all_to_all"]), (16, [])])
def test_hundreds_of_ranks_on_sixteen_hosts(
    network: Network, instep: Path, python: Path, run: Runner, tmp_path: Path, each: int, steps: list[str]
) -> None:
    found = reports(network, instep, python, run, tmp_path, each, *steps)
    check(found, hosts=16, each=each)
    slowest = max(report["seconds"] for report in found)
    # Nothing here grows with the square of the ranks: seconds on two cores.
    assert slowest < 60, f"the group took {slowest} s"
