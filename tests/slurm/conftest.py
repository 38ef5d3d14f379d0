"""The cluster that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .cluster import SlurmCluster


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Four idle nodes. A file whose tests break nodes, or want other settings, makes a cluster for each of them."""
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster
