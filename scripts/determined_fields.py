"""Prints every field that an experiment's configuration may have in Determined, from a copy of its repository.

    .venv/bin/python scripts/determined_fields.py COPY > crates/api/tests/determined-fields.txt

COPY is a checkout of github.com/determined-ai/determined at 0.38.1: its schemas. Elements of lists are `[]`, keys of
one's choice are `*`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]


def name_of(reference: str) -> str:
    """Give the file that a reference means."""
    return reference.rsplit("/", 1)[-1]


class Schemas:
    """The schemas of a version, which refer to each other."""

    def __init__(self, folder: Path) -> None:
        found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
        self._by_name: dict[str, Schema] = {name_of(schema["$id"]): schema for schema in found}

    def fields(self, schema: Schema | bool, path: str = "", inside: tuple[str, ...] = ()) -> Iterator[str]:
        """Give the paths of the fields below a schema; hyperparameters hold themselves, and are looked into once."""
        if isinstance(schema, bool):
            return
        if reference := schema.get("$ref") or schema.get("optionalRef"):
            name = name_of(reference)
            if name not in inside:
                yield from self.fields(self._by_name[name], path, (*inside, name))
        for field, below in (schema.get("properties") or {}).items():
            own = f"{path}.{field}" if path else field
            yield own
            yield from self.fields(below, own, inside)
        union = schema.get("union", {}).get("items", [])
        for same in [*union, *(each for key in ("anyOf", "allOf", "oneOf") for each in schema.get(key, []))]:
            yield from self.fields(same, path, inside)
        for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(below := schema.get(key), dict):
                yield from self.fields(below, path + mark, inside)


def main() -> None:
    """Print the fields of experiments."""
    schemas = Schemas(Path(sys.argv[1]) / "schemas" / "expconf" / "v0")
    print("\n".join(sorted(set(schemas.fields({"$ref": "experiment.json"})))))


if __name__ == "__main__":
    main()
