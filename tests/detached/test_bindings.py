"""Determined's own bindings, function by function: what they ask is served, and what they are answered they can read.

Both tests are made of the `determined` package: `scripts/bindings/walk.py` says which requests its functions send,
`scripts/bindings/calls.py` sends them, reads each answer with the client's own types, and reads each change back.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from conftest import Runner

from .conftest import SCRIPTS, Client, Master

# Functions whose requests are not served yet, and functions that no test calls yet. May only go down.
NOT_SERVED = 21
NOT_CALLED = 166


def served_paths(api: Client) -> list[tuple[str, re.Pattern[str]]]:
    """Every request that the master serves, as its OpenAPI document says."""
    document = api("GET", "/api/openapi.json")
    found = []
    for path, operations in document["paths"].items():
        # Two arguments stand for more than one of the client's: ids that may hold slashes, and kinds of metrics.
        inner = re.escape(path).replace(r"\{external\}", ".+").replace(r"\{kind\}", "[^/]+")
        pattern = re.compile(re.sub(r"\\\{\w+\\\}", r"\\{\\}", inner))
        found += [(method.upper(), pattern) for method in operations]
    return found


def test_every_request_of_the_bindings_is_served(run: Runner, determined: Path, api: Client) -> None:
    walked = json.loads(run(determined, SCRIPTS / "bindings" / "walk.py", timeout=60).expect(0).stdout)
    served = served_paths(api)

    def is_served(method: str, path: str) -> bool:
        return any(method == known and pattern.fullmatch(path) for known, pattern in served)

    missing = {name: request for name, request in walked.items() if not is_served(*request)}
    print(f"{len(walked)} functions, {len(walked) - len(missing)} served, {len(missing)} not:")
    for name, (method, path) in sorted(missing.items()):
        print(f"  {name:45} {method:6} {path}")
    assert len(walked) > 250
    assert len(missing) <= NOT_SERVED, "what was served is not served any more"


def test_answers_are_read_and_changes_read_back(
    run: Runner, determined: Path, master: Master, settings: dict[str, str]
) -> None:
    done = run(determined, SCRIPTS / "bindings" / "calls.py", master.address, env=settings, timeout=60).expect(0)
    outcome = json.loads(done.stdout.splitlines()[-1])
    print(f"{outcome['all']} functions, {len(outcome['called'])} called")
    assert outcome["all"] - len(outcome["called"]) <= NOT_CALLED
