#!/usr/bin/env python3
"""Compiles one of our crates as cargo asks, with clippy's lints, and checks the links in its docs: one compile for all.

`cargo clippy` and `cargo doc` would each go through all dependencies again, which no test needs. Cargo calls this in
place of rustc for the crates of the workspace, if the environment says so:

RUSTC_WORKSPACE_WRAPPER=scripts/linting_rustc.py cargo …
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator

# How clippy's driver takes further arguments, each followed by this mark.
MARK = "__CLIPPY_HACKERY__"
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


def main(arguments: list[str]) -> int:
    """Compile, then look at the docs; give the status of what failed."""
    rustc, *rest = arguments
    environment = {**os.environ, "CLIPPY_ARGS": f"-D{MARK}warnings{MARK}"}
    compiled = subprocess.run(["clippy-driver", rustc, *rest], env=environment, close_fds=False, check=False)
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
