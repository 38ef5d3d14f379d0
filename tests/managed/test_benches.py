"""The programs that load a master with agents of their own are kept in step with it."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import ROOT, Runner


def test_agents_of_the_benches_are_taken(run: Runner, python: Path, instep: Path, tmp_path: Path) -> None:
    shown = tmp_path / "shown.json"
    load = ("--agents", "4", "--trials", "100", "--seconds", "3", "--hold", "0.1", "0.2")
    run(python, ROOT / "bench" / "cluster.py", "--binary", instep, "--json", shown, *load).expect(0)
    assert json.loads(shown.read_text())["started_shares"] > 4

    rounds = ("--agents", "8", "--rounds", "1")
    run(python, ROOT / "bench" / "takeover.py", "--binary", instep, "--json", shown, *rounds).expect(0)
    [found] = json.loads(shown.read_text())["rounds"]
    assert found["all_s"] > 0
