"""The cluster that these tests share, and a master for each of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from conftest import Runner
from managed.conftest import det, determined, follow, forked_det, forked_determined, settings

from .cluster import KubernetesCluster
from .site import Site, site

__all__ = ["det", "determined", "follow", "forked_det", "forked_determined", "settings"]
MakeSite = Callable[..., AbstractContextManager[Site]]
NODES = [f"node-{number}" for number in range(1, 5)]


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """Four nodes with a processor each, for one test after the other."""
    with KubernetesCluster(tmp_path_factory.mktemp("kubernetes") / "cluster") as cluster:
        for name in NODES:
            # One address: ranks of pods with loopback addresses of their own listen on 127.0.0.1 alone.
            cluster.start_node(name, "--cpu=1", "--ip=127.0.0.1")
        yield cluster


@pytest.fixture
def make_site(
    kubernetes: KubernetesCluster,
    run: Runner,
    instep: Path,
    forked: Path,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> MakeSite:
    """Start a master for them, whose ranks have torch imported already; the pool's settings are keywords."""
    return functools.partial(site, kubernetes, run, instep, forked, tmp_path, wait_until)


@pytest.fixture
def pool(make_site: MakeSite) -> Iterator[Site]:
    """A master for them."""
    with make_site() as made:
        yield made
