"""What a master does while jobs wait in Slurm by the hundred: less of `bench/engines.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import ROOT, Runner


@pytest.mark.soak
def test_waiting_jobs_cost_few_calls(run: Runner, python: Path, instep: Path, tmp_path: Path) -> None:
    shown = tmp_path / "shown.json"
    load = ("--jobs", "200", "--seconds", "30", "--gangs", "2")
    # Its exit code is about times, which other suites on the machine disturb.
    run(python, ROOT / "bench" / "engines.py", "--binary", instep, "--json", shown, *load, timeout=300)
    found = json.loads(shown.read_text())
    assert 0 < found["calls_per_second_and_pool"] <= 0.2, "one list every 10 s for both pools"
    assert found["core_percent"] < 20
    assert found["start_slowest_s"] < 30
