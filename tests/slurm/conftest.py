"""The cluster that the tests of a file share, and what `det` runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Runner
from managed.conftest import det, determined, follow, forked_det, forked_determined, settings

from .cluster import SlurmCluster
from .site import Site, site

__all__ = ["det", "determined", "follow", "forked_det", "forked_determined", "settings"]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Four idle nodes. A file whose tests break nodes, or want other settings, makes a cluster for each of them."""
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def pool(
    request: pytest.FixtureRequest,
    run: Runner,
    instep: Path,
    python: Path,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> Iterator[Site]:
    """Two nodes, one slot each; or as many as a test says."""
    with (
        SlurmCluster(tmp_path / "slurm", nodes=getattr(request, "param", 2), gpus=0) as slurm,
        site(slurm, run, instep, python, tmp_path, wait_until) as made,
    ):
        yield made
