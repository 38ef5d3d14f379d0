"""The recorded behaviour of torchrun: one file per torch release, written compactly and read back in full.

In the file, what most workers of all cases have in common is written once (`usual worker`), then what the workers of
a case have in common (`every worker`), then what is special about one worker. Empty fields are left out.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "golden"
USUAL = "usual worker"
EVERY = "every worker"
ABSENT = "<absent>"
EMPTY: dict[str, Any] = {
    "workers": {},
    "ranks": {},
    "stdout": [],
    "stderr": [],
    "logs": {},
    "parent_error": {},
    "failures": [],
    "leftovers": 0,
}

Fields = dict[str, Any]
Cases = dict[str, Fields | None]


def path_of(version: str) -> Path:
    return FOLDER / f"torch-{version}.json"


def recorded_versions() -> list[str]:
    return sorted(p.stem.removeprefix("torch-") for p in FOLDER.glob("torch-*.json"))


def load(version: str) -> Cases:
    """Case name to observation; a case whose options this torch does not know is None."""
    stored = json.loads(path_of(version).read_text())
    return {name: expand(fields, stored[USUAL]) for name, fields in stored["cases"].items()}


def save(version: str, cases: Cases) -> None:
    FOLDER.mkdir(exist_ok=True)
    usual = usual_worker(cases)
    stored = {
        "torch": version,
        USUAL: usual,
        "cases": {name: compact(fields, usual) for name, fields in cases.items()},
    }
    path_of(version).write_text(render(stored) + "\n")


def usual_worker(cases: Cases) -> Fields:
    """For every variable and process fact the value most workers have, if most have one."""
    rows = [flat(row) for fields in cases.values() if fields for row in fields["workers"].values()]
    usual = {}
    for key in sorted({key for row in rows for key in row}):
        value, times = Counter(json.dumps(row[key]) for row in rows if key in row).most_common(1)[0]
        if times * 2 > len(rows):
            usual[key] = json.loads(value)
    return nest(usual)


def compact(fields: Fields | None, usual: Fields) -> Fields | None:
    if fields is None:
        return None
    base = flat(usual)
    rows = {name: flat(row) for name, row in fields["workers"].items()}
    keys = sorted({key for row in rows.values() for key in row} | base.keys())
    special = {
        name: {key: row.get(key, ABSENT) for key in keys if row.get(key, ABSENT) != base.get(key, ABSENT)}
        for name, row in rows.items()
    }
    first = next(iter(special.values()), {})
    every = {key: value for key, value in first.items() if all(row.get(key, row) == value for row in special.values())}
    workers = {EVERY: nest(every)} if every else {}
    workers |= {name: nest({k: v for k, v in row.items() if k not in every}) for name, row in sorted(special.items())}
    return {k: v for k, v in {**fields, "workers": workers}.items() if k == "exit" or v}


def expand(fields: Fields | None, usual: Fields) -> Fields | None:
    if fields is None:
        return None
    rows = dict(fields.get("workers", {}))
    shared = flat(usual) | flat(rows.pop(EVERY, {}))
    workers = {
        name: nest({key: value for key, value in (shared | flat(row)).items() if value != ABSENT})
        for name, row in rows.items()
    }
    return {**EMPTY, **fields, "workers": workers}


def flat(worker: Fields) -> Fields:
    variables = {f"env.{name}": value for name, value in worker.get("env", {}).items()}
    return variables | {key: value for key, value in worker.items() if key != "env"}


def nest(row: Fields) -> Fields:
    env = {key.removeprefix("env."): value for key, value in row.items() if key.startswith("env.")}
    facts = {key: value for key, value in row.items() if not key.startswith("env.")}
    return {"env": env, **facts} if env else facts


def flatten(value: object, path: str = "") -> dict[str, Any]:
    """Leaf values by path, such as `workers.0/1.env.RANK`; lists are leaves, and empty folders None."""
    if not isinstance(value, dict):
        return {path: value}
    result: dict[str, Any] = {}
    for key, inner in value.items():
        result |= flatten(inner, f"{path}.{key}" if path else str(key))
    return result


def differences(expected: Fields, actual: Fields) -> dict[str, tuple[Any, Any]]:
    """Paths at which two observations differ, with both values; `"<absent>"` where one has nothing."""
    left, right = flatten(expected), flatten(actual)
    return {
        path: (left.get(path, ABSENT), right.get(path, ABSENT))
        for path in sorted(left.keys() | right.keys())
        if left.get(path, ABSENT) != right.get(path, ABSENT)
    }


def render(value: object, indent: int = 0, width: int = 150) -> str:
    """JSON with one entry a line, where short containers stay on their line."""
    inline = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or (indent >= 2 and len(inline) + 2 * indent <= width):
        return inline
    pad, end = "  " * (indent + 1), "  " * indent
    if isinstance(value, dict):
        rows = [f"{pad}{json.dumps(k, ensure_ascii=False)}: {render(v, indent + 1, width)}" for k, v in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{end}" + "}" if rows else "{}"
    rows = [f"{pad}{render(v, indent + 1, width)}" for v in value]
    return "[\n" + ",\n".join(rows) + f"\n{end}]" if rows else "[]"
