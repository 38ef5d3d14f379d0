"""Compares answers of a master with its OpenAPI document: what is missing, too much, or of another kind."""

from __future__ import annotations

import re
from typing import Any

Document = dict[str, Any]

KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


def answer_schema(document: Document, method: str, path: str) -> dict[str, Any] | None:
    """Give what the document says of the success of a request; the path may have a query."""
    path = path.split("?")[0]
    candidates = []
    for template, operations in document["paths"].items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        pattern = pattern.replace("by\\-external\\-id/[^/]+", "by\\-external\\-id/.+")
        if re.fullmatch(pattern, path) and method.lower() in operations:
            candidates.append((template.count("{"), operations[method.lower()]))
    if not candidates:
        return None
    _, operation = min(candidates, key=lambda candidate: candidate[0])
    return operation["responses"]["200"]["content"].get("application/json", {}).get("schema")


def contradictions(schema: dict[str, Any], value: object, place: str = "the answer") -> list[str]:
    """Give the places where a value is not what a schema says."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(is_a(value, kind) for kind in kinds):
        return [f"{place} should be {kinds}, and is {value!r}"]
    found = []
    if isinstance(value, dict) and "properties" in schema:
        properties = schema["properties"]
        found += [f"{place} lacks `{name}`" for name in schema.get("required", []) if name not in value]
        if schema.get("additionalProperties") is False:
            found += [f"{place} has `{name}`, which is not in the document" for name in value if name not in properties]
        for name in value.keys() & properties.keys():
            found += contradictions(properties[name], value[name], f"{place}.{name}")
    if isinstance(value, list) and "items" in schema:
        for index, element in enumerate(value):
            found += contradictions(schema["items"], element, f"{place}[{index}]")
    return found


def is_a(value: object, kind: str) -> bool:
    """Whether a value is of a kind; Python takes True for a number, JSON does not."""
    return isinstance(value, KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))
