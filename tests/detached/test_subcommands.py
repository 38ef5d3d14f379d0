"""The reference lists every subcommand of `det`."""

from __future__ import annotations

import re
from pathlib import Path

from conftest import Runner

from .conftest import ROOT, SCRIPTS

PAGE = ROOT / "docs" / "reference" / "determined.md"


def test_the_reference_lists_every_subcommand_once(run: Runner, determined: Path) -> None:
    subcommands = run(determined, SCRIPTS / "subcommands.py").expect(0).stdout.split("\n")[:-1]
    assert len(subcommands) > 150
    section = PAGE.read_text().split("\n## Subcommands\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)[1:]
    listed = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert sorted(listed) == sorted(subcommands)
