#!/usr/bin/env python3
"""Compiles one of our crates as cargo asks, with clippy's lints, and checks the links in its docs: one compile for all.

`cargo clippy` and `cargo doc` would each go through all dependencies again, which no test needs. Cargo calls this in
place of rustc for the crates of the workspace, if its environment is that of `environment()`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

# What describes a crate to rustdoc as well; everything else says how to generate code.
SHARED = (
    "--crate-name",
    "--crate-type",
    "--edition",
    "--cfg",
    "--check-cfg",
    "--extern",
    "-L",
    "--error-format",
    "--json",
)


def environment() -> dict[str, str]:
    """Give what cargo must see; the level of lints too, because cargo compiles again when clippy's variable changes."""
    mark = "__CLIPPY_HACKERY__"  # which clippy's driver wants behind each argument
    return {"RUSTC_WORKSPACE_WRAPPER": str(Path(__file__).resolve()), "CLIPPY_ARGS": f"-D{mark}warnings{mark}"}


def main(arguments: list[str]) -> int:
    """Compile, then look at the docs; give the status of what failed."""
    rustc, *rest = arguments
    compiled = subprocess.run(["clippy-driver", rustc, *rest], close_fds=False, check=False)
    if compiled.returncode or not has_docs(rest):
        return compiled.returncode
    with tempfile.TemporaryDirectory() as folder:
        command = ["rustdoc", *shared(rest), "--document-private-items", "-D", "warnings", "--out-dir", folder]
        return subprocess.run(command, close_fds=False, check=False).returncode


def has_docs(arguments: list[str]) -> bool:
    """Tell a library or a program from tests, build scripts and questions to the compiler."""
    compiles = any(word.startswith("--emit") for word in arguments)
    return compiles and not {"--test", "build_script_build"} & set(arguments)


def shared(arguments: Iterable[str]) -> Iterator[str]:
    """Give the source file and the options that rustdoc takes too."""
    words = iter(arguments)
    for word in words:
        name, separator, _ = word.partition("=")
        if word.endswith(".rs"):
            yield word
        elif name in SHARED:
            yield word
            if not separator:
                yield next(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
