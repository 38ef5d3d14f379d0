"""The OpenAPI document of a running master, and random requests made from it: no 5xx, and the process lives.

A failure prints its seed; `SEED=... pytest tests/detached/test_openapi.py` replays it.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import string
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from .conftest import Client, Master
from .test_wire import new_trial

QUICK = 600
LONG = 30_000
TEXTS = [
    "",
    "a",
    "1",
    "0",
    "-1",
    "NaN",
    "null",
    "🙂",
    "a/b",
    "..",
    "%00",
    "' OR 1=1 --",
    "x" * 5000,
    "\u0000",
    "*",
    "(",
]
NUMBERS = [0, 1, 2, -1, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63), 1 << 63, 1 << 70, 0.5, 1e308]


class Chance:
    """Makes values up: mostly what a schema asks for, sometimes anything."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def anything(self, depth: int = 0) -> Any:  # noqa: ANN401
        choices: list[Any] = [None, True, False, self.random.choice(TEXTS), self.random.choice(NUMBERS)]
        if depth < 3:
            choices += [
                [self.anything(depth + 1) for _ in range(self.random.randrange(3))],
                {self.word(): self.anything(depth + 1) for _ in range(self.random.randrange(3))},
            ]
        return self.random.choice(choices)

    def word(self) -> str:
        return "".join(self.random.choices(string.ascii_letters + "_.-", k=self.random.randrange(1, 8)))

    def value(self, schema: dict[str, Any], depth: int = 0) -> Any:  # noqa: ANN401
        if not schema or depth > 6 or self.random.random() < 0.1:
            return self.anything()
        kinds = schema.get("type", "string")
        kind = self.random.choice(kinds) if isinstance(kinds, list) else kinds
        if "enum" in schema and self.random.random() < 0.8:
            return self.random.choice(schema["enum"])
        match kind:
            case "null":
                return None
            case "boolean":
                return self.random.choice([True, False])
            case "integer":
                return self.random.choice([1, 2, *NUMBERS[:9]])
            case "number":
                return self.random.choice(NUMBERS)
            case "string":
                return self.random.choice([*TEXTS, self.word()])
            case "array":
                return [self.value(schema["items"], depth + 1) for _ in range(self.random.randrange(4))]
            case _:
                properties = schema.get("properties", {})
                return {
                    name: self.value(inner, depth + 1)
                    for name, inner in properties.items()
                    if self.random.random() < 0.7
                }

    def body(self, operation: dict[str, Any]) -> bytes | None:
        if "requestBody" not in operation:
            return self.random.choice([None, b"{}", b"x"])
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        text = json.dumps(self.value(schema)).encode()
        cut = self.random.randrange(len(text) + 1) if self.random.random() < 0.05 else len(text)
        return text[:cut]

    def path(self, path: str, operation: dict[str, Any]) -> str:
        query = []
        for parameter in operation["parameters"]:
            value = self.value(parameter["schema"])
            if parameter["in"] == "path":
                # Most of the time things that exist.
                known = parameter["schema"]["type"] == "integer" and self.random.random() < 0.7
                text = "1" if known else quote(str(value).encode("utf-8", "replace"), safe="") or "x"
                path = path.replace("{" + parameter["name"] + "}", text)
            elif parameter["name"] != "follow" and self.random.random() < 0.4:
                query += [(parameter["name"], str(each)) for each in (value if isinstance(value, list) else [value])]
        return f"{path}?{urlencode(query)}" if query else path


def fuzz(master: Master, count: int) -> None:
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print("seed", seed)
    chance = Chance(seed)
    # Passwords that are made up would lock the others out; nobody else is to be asked for.
    admin = master.client.login("admin")
    new_trial(admin)
    document = admin("GET", "/api/openapi.json")
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if not path.endswith(("/auth/logout", "/password")) and (method, path) != ("patch", "/api/v1/users/{id}")
        # Streams that last as long as an experiment.
        if not any(parameter["name"] == "periodSeconds" for parameter in operation["parameters"])
    ]
    for number in range(count):
        method, path, operation = operations[number % len(operations)]
        where, body = chance.path(path, operation), chance.body(operation)
        shown = f"{method} {where[:500]} {(body or b'')[:2000]!r}"
        try:
            status, headers, answer = admin.raw(method, where, body)
        except (OSError, http.client.HTTPException) as error:
            pytest.fail(f"{shown}\n{error!r}")
        shown += f"\n{status} {answer[:2000]!r}"
        # 501: roles are off.
        assert status < 500 or status == 501, shown
        # An administrator may do everything; only a login is judged by what it says.
        assert status not in (401, 403) or path.endswith("/auth/login"), shown
        assert headers.get("x-request-id"), shown
        if status >= 400:
            error = json.loads(answer)
            expected = "error" if where.startswith("/api/v1/") and status not in (404, 405) else None
            assert expected is None or expected in error, shown
    assert master.process.poll() is None
    assert admin("GET", "/health") == {"status": "up"}


def test_random_requests_from_the_document_find_no_server_error(master: Master) -> None:
    fuzz(master, QUICK)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_random_requests_find_no_server_error(master: Master) -> None:
    fuzz(master, LONG)


def test_the_document_is_served_and_says_what_openapi_asks_for(master: Master) -> None:
    document = master.client("GET", "/api/openapi.json")
    assert document["openapi"] == "3.1.0"
    assert {"title", "version"} <= set(document["info"])
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}
            assert "200" in operation["responses"]
    body = document["paths"]["/api/v1/experiments"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "config" in body["properties"]


def test_measures_are_what_prometheus_reads(master: Master, api: Client) -> None:
    from .test_wire import report

    trial = new_trial(api)
    report(api, trial, 1, {"loss": 1.0, "accuracy": 0.5})
    status, headers, text = master.client.raw("GET", "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("application/openmetrics-text")
    lines = text.decode().splitlines()
    assert "instep_metric_points_total 2" in lines
    label = 'method="POST",route="/api/v1/trials/{id}/metrics"'
    assert f'instep_requests_total{{{label},status="200"}} 1' in lines
    assert f"instep_request_seconds_count{{{label}}} 1" in lines
    assert any(line.startswith("instep_build_info{version=") for line in lines)
    assert lines[-1] == "# EOF"
