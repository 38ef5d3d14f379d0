"""The check of the Rust dependencies notices what deny.toml forbids."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from dependencies import CRATES_IO, Licence, problems

sys.path.pop(0)

ALLOWED = frozenset({"MIT", "ISC", "Apache-2.0 WITH LLVM-exception"})


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0", False),
        ("GPL-3.0 OR MIT", True),
        ("GPL-3.0/MIT", True),
        ("MIT AND GPL-3.0", False),
        ("(GPL-3.0 OR MIT) AND ISC", True),
        ("GPL-3.0 OR MIT AND BSD-2-Clause", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0", False),
    ],
)
def test_licences_are_read_as_spdx_has_them(text: str, allowed: bool) -> None:
    assert Licence(text).is_allowed(ALLOWED) is allowed


@pytest.mark.parametrize("text", ["", "MIT OR", "(MIT", "MIT)", "MIT MIT", "AND MIT"])
def test_what_is_no_licence_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is"):
        Licence(text).is_allowed(ALLOWED)


def test_strange_sources_and_banned_names_are_noticed() -> None:
    rules: dict[str, Any] = {"bans": {"deny": [{"name": "atty"}]}, "licenses": {"allow": ["MIT"]}}

    def found(**package: str | None) -> list[str]:
        return list(problems({"name": "a", "source": CRATES_IO, "license": "MIT", **package}, rules))

    assert found() == []
    assert found(name="ours", source=None, license=None) == []
    assert found(name="atty") == ["is banned"]
    assert found(source="git+https://elsewhere") == ["comes from git+https://elsewhere, not from crates.io"]
    assert found(license=None) == ["has no licence that can be read: ``: a licence is missing before ``"]
