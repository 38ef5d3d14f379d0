"""Runs the benchmarks of bench/ one after another; each prints JSON and compares with the stock tools in the same run.

python3 scripts/bench.py [NAME ...]      bench/NAME.py, all without names (`make bench`)
"""

from __future__ import annotations

import sys

import system
from project import ROOT, VENV_PYTHON, fail, run, say


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all."""
    known = {path.stem: path for path in sorted((ROOT / "bench").glob("*.py")) if not path.stem.startswith("_")}
    if unknown := [name for name in names if name not in known]:
        fail(f"there is no benchmark `{unknown[0]}`", hint=f"one of: {', '.join(known)}", status=2)
    system.require("bench")
    for name in names or known:
        say(f"bench/{name}.py")
        run([VENV_PYTHON, known[name]], what=f"run the benchmark {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
