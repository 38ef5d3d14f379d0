"""Records how torchrun behaves on every case, with the torch of the interpreter that runs this script.

    .venv/bin/python tests/compat/record.py [--only NAME]... [--check]

Writes golden/torch-<version>.json. With `--check` nothing is written: torchrun is compared with its own record,
which shows what in it is not stable.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import golden
from cases import CASES, Case
from observe import Launcher, observe

AT_ONCE = 2


def torch_version() -> str:
    return version("torch").split("+")[0]


def supports(torch: str, case: Case) -> bool:
    major, minor = torch.split(".")[:2]
    return (int(major), int(minor)) >= case.since


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="record only this case")
    parser.add_argument("--check", action="store_true", help="compare with the record instead of writing it")
    options = parser.parse_args()
    torch = torch_version()
    launcher = Launcher.torchrun(Path(sys.prefix))
    known = golden.load(torch) if golden.path_of(torch).exists() else {}
    chosen = [case for case in CASES if not options.only or case.name in options.only]
    results: dict[str, Any] = {case.name: known[case.name] for case in CASES if case.name in known}
    unstable = 0

    def run(case: Case) -> tuple[Case, dict[str, Any] | None, float]:
        started = time.monotonic()
        fields = observe(case, launcher).fields if supports(torch, case) else None
        return case, fields, time.monotonic() - started

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number, (case, fields, seconds) in enumerate(pool.map(run, chosen), 1):
            status = "unsupported" if fields is None else f"exit {fields['exit']}"
            print(f"[{number}/{len(chosen)}] {case.name}: {status} ({seconds:.1f} s)", flush=True)
            if options.check and fields and (before := known.get(case.name)):
                changed = golden.differences(before, fields)
                unstable += bool(changed)
                for path, (old, new) in changed.items():
                    print(f"    {path}: recorded {old!r}, now {new!r}", flush=True)
            results[case.name] = fields
            if not options.check:
                golden.save(torch, {c.name: results[c.name] for c in CASES if c.name in results})
    if options.check:
        print(f"{unstable} of {len(chosen)} cases differ from the record")
        return 1 if unstable else 0
    print(f"wrote golden/{golden.path_of(torch).name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
