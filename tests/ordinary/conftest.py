"""What the suite shares: the processes that ranks are forked from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT, built
from zygote import PRELOADED, forking


@pytest.fixture(scope="session")
def zygote(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The command of a rank that finds torch imported."""
    with forking(python, tmp_path_factory.mktemp("zygote"), PRELOADED) as command:
        yield command


@pytest.fixture(scope="session")
def zygote_with_lightning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The same with Lightning, in the environment that `scripts/build.py frameworks` makes."""
    python = built(ROOT / "build" / "frameworks" / "bin" / "python")
    with forking(python, tmp_path_factory.mktemp("zygote"), (*PRELOADED, "lightning")) as command:
        yield command
