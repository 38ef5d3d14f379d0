"""The master and the client of `tests/detached`, and the environment for scripts of our own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from detached.conftest import SCRIPTS as DETERMINED_SCRIPTS
from detached.conftest import Master, api, determined, master

__all__ = ["api", "determined", "master", "ours", "settings"]

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def settings(master: Master, tmp_path: Path) -> dict[str, str | None]:
    """This test's master, and folders of its own."""
    return {
        "INSTEP_MASTER": master.address,
        "DET_MASTER": None,
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "HOME": str(tmp_path),
    }


@pytest.fixture
def ours(tmp_path: Path) -> Callable[[str], Path]:
    """A script of `tests/detached`, with nothing but its import changed to ours."""

    def changed(name: str) -> Path:
        text = (DETERMINED_SCRIPTS / name).read_text()
        theirs = "from determined.experimental import core_v2"
        assert text.count(theirs) == 1
        path = tmp_path / name
        path.write_text(text.replace(theirs, "from instep.experimental import core_v2"))
        return path

    return changed
