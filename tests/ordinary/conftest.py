"""What the suite shares: an interpreter that has Lightning imported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT, built
from zygote import PRELOADED, forking


@pytest.fixture(scope="session")
def forked_with_lightning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An interpreter with Lightning, in the environment that `scripts/build.py frameworks` makes."""
    python = built(ROOT / "build" / "frameworks" / "bin" / "python")
    with forking(python, "lightning", tmp_path_factory, (*PRELOADED, "lightning")) as interpreter:
        yield interpreter
