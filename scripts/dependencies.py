"""Checks the Rust dependencies against deny.toml: their licences, where they come from, and those that are banned.

    python3 scripts/dependencies.py

Reads what cargo-deny reads, as far as it can be known from `cargo metadata`, in a second and without compiling a tool.
Fails too if Cargo.lock is not up to date.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import tomllib

from project import ROOT, fail, say

CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


class Licence:
    """An SPDX expression such as `(MIT OR Apache-2.0) AND Unicode-3.0`, read from left to right."""

    def __init__(self, text: str) -> None:
        # Older crates write MIT/Apache-2.0.
        joined = re.sub(r"\s+WITH\s+", "+WITH+", text.replace("/", " OR "))
        self._words = re.findall(r"\(|\)|[^\s()]+", joined)
        self._at = 0

    def is_allowed(self, allowed: frozenset[str]) -> bool:
        """Whether some choice of licences is allowed. A ValueError says that the text is no expression."""
        found = self._either(allowed)
        if self._at != len(self._words):
            raise ValueError(f"`{self._words[self._at]}` is unexpected")
        return found

    def _next(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _either(self, allowed: frozenset[str]) -> bool:
        found = self._both(allowed)
        while self._next() == "OR":
            self._at += 1
            found = self._both(allowed) or found
        return found

    def _both(self, allowed: frozenset[str]) -> bool:
        found = self._one(allowed)
        while self._next() == "AND":
            self._at += 1
            found = self._one(allowed) and found
        return found

    def _one(self, allowed: frozenset[str]) -> bool:
        word = self._next()
        self._at += 1
        if word == "(":
            found = self._either(allowed)
            if self._next() != ")":
                raise ValueError("a parenthesis is not closed")
            self._at += 1
            return found
        if word in ("", ")", "OR", "AND"):
            raise ValueError(f"a licence is missing before `{word}`")
        return word.replace("+WITH+", " WITH ") in allowed


def problems(package: dict[str, Any], rules: dict[str, Any]) -> Iterator[str]:
    """Say what is wrong with a dependency."""
    source = package["source"]
    if source is None:
        return
    if source != CRATES_IO:
        yield f"comes from {source}, not from crates.io"
    if package["name"] in {banned["name"] for banned in rules["bans"]["deny"]}:
        yield "is banned"
    licence = package["license"] or ""
    try:
        if not Licence(licence).is_allowed(frozenset(rules["licenses"]["allow"])):
            yield f"has the licence {licence}, which is not allowed"
    except ValueError as error:
        yield f"has no licence that can be read: `{licence}`: {error}"


def main() -> None:
    """Check every package that cargo knows."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--quiet"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        hint = "commit Cargo.lock together with the Cargo.toml that changed"
        fail("cargo cannot describe the workspace", cause=asked.stderr.strip(), hint=hint)
    packages = json.loads(asked.stdout)["packages"]
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    found = [
        f"{package['name']} {package['version']} {problem}"
        for package in packages
        for problem in problems(package, rules)
    ]
    if found:
        fail("a dependency is not allowed", cause="; ".join(found), hint="deny.toml has the rules, and their reasons")
    say(f"{len(packages)} packages: licences, bans and sources as deny.toml has them")


if __name__ == "__main__":
    main()
