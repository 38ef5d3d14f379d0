"""Random faults under real torch: every survivor gets an error that names the victim, and the group is rebuilt."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Runner

FAULTS = Path(__file__).with_name("faults.py")


@pytest.mark.timeout(400)
def test_survivors_are_told_the_truth_and_go_on(run: Runner, python: Path) -> None:
    run(python, FAULTS, "--count", "40", "--seed", "1", timeout=350).expect(0)


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_two_hundred_faults(run: Runner, python: Path) -> None:
    run(python, FAULTS, "--count", "200", "--seed", "2", timeout=1400).expect(0)
