"""Runs the real `det` and says what it printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import Runner

from .conftest import SCRIPTS


class Outcome(NamedTuple):
    """How one command line ended."""

    status: int
    output: str


class Commands:
    """`det` with the environment of one test."""

    def __init__(self, run: Runner, determined: Path, settings: dict[str, str]) -> None:
        self._run = run
        self._determined = determined
        self.settings = settings

    def outcomes(self, *commands: str | Sequence[str]) -> list[Outcome]:
        """Run command lines one after the other, in one process; a text is split at its spaces."""
        words = [command.split(" ") if isinstance(command, str) else list(command) for command in commands]
        script = SCRIPTS / "det.py"
        done = self._run(self._determined, script, json.dumps(words), env=self.settings, timeout=150).expect(0)
        return [Outcome(each["status"], each["output"]) for each in json.loads(done.stdout)]

    def __call__(self, *commands: str | Sequence[str]) -> list[str]:
        """The same for command lines that must succeed; give their outputs."""
        found = self.outcomes(*commands)
        failed = [(command, each) for command, each in zip(commands, found, strict=True) if each.status != 0]
        assert failed == [], failed
        return [each.output for each in found]


@pytest.fixture
def det(run: Runner, forked_det: Path, settings: dict[str, str]) -> Commands:
    """The real `det` against this test's master."""
    return Commands(run, forked_det, settings)
