"""Random faults under real torch: every survivor gets an error that names the victim, and the group is rebuilt."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from conftest import Runner

FAULTS = Path(__file__).with_name("faults.py")


def own(folder: Path) -> dict[str, str]:
    """A folder for temporary files in which nobody else leaves any."""
    return {"TMPDIR": str(folder)}


@pytest.mark.timeout(400)
def test_survivors_are_told_the_truth_and_go_on(run: Runner, python: Path, tmp_path: Path) -> None:
    run(python, FAULTS, "--count", "20", "--seed", "1", env=own(tmp_path), timeout=350).expect(0)


@pytest.mark.timeout(300)
def test_survivors_on_several_hosts_are_told_the_truth_and_go_on(run: Runner, python: Path, tmp_path: Path) -> None:
    run(python, FAULTS, "--hosts", "--count", "6", "--seed", "1", env=own(tmp_path), timeout=250).expect(0)


@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("where", [(), ("--hosts",)], ids=["one host", "several hosts"])
def test_two_hundred_faults(run: Runner, python: Path, where: tuple[str, ...], tmp_path: Path) -> None:
    # Other faults every time; what fails says its seed, and SEED replays it.
    seed = os.environ.get("SEED", str(random.SystemRandom().randrange(1 << 32)))
    result = run(python, FAULTS, *where, "--count", "200", "--seed", seed, env=own(tmp_path), timeout=1400)
    print(result.stdout)
    result.expect(0)
