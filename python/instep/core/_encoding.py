"""Values between ranks as JSON: what a peer sends is only ever read as data, never run, as a pickle would be."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

# A dictionary with this one key stands for a value that JSON does not have.
_TAG = "instep:"


def encode(value: object) -> bytes:
    """Give the bytes of a value; `TypeError` for one that cannot be sent."""
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def decode(data: bytes) -> Any:  # noqa: ANN401
    """Give the value of bytes that `encode` made; `ValueError` for others."""
    return _rich(json.loads(data))


def _plain(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, tuple):
        return {f"{_TAG}tuple": [_plain(each) for each in value]}
    if isinstance(value, (set, frozenset)):
        return {f"{_TAG}set": [_plain(each) for each in value]}
    if isinstance(value, (bytes, bytearray)):
        return {f"{_TAG}bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, os.PathLike):
        return {f"{_TAG}path": os.fspath(value)}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith(_TAG) for key in value):
            return {key: _plain(each) for key, each in value.items()}
        return {f"{_TAG}dict": [[_plain(key), _plain(each)] for key, each in value.items()]}
    # Scalars of numpy and torch.
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) in ((), None):
        return _plain(item())
    raise TypeError(
        f"a {type(value).__name__} cannot be sent between ranks\n"
        "hint: numbers, text, bytes and lists, tuples, sets and dictionaries of them can; "
        "torch.distributed.all_gather_object sends anything"
    )


def _rich(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, list):
        return [_rich(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(key, inner)] = value.items()
        match key:
            case "instep:tuple":
                return tuple(_rich(each) for each in inner)
            case "instep:set":
                return {_rich(each) for each in inner}
            case "instep:bytes":
                return base64.b64decode(inner, validate=True)
            case "instep:path":
                return Path(inner)
            case "instep:dict":
                return {_rich(key): _rich(each) for key, each in inner}
    return {key: _rich(each) for key, each in value.items()}
