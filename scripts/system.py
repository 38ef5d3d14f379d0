"""Checks for the system commands that building and testing need, and installs the missing ones with apt-get.

    python3 scripts/system.py build|test|bench|soak

Nothing is touched when nothing is missing. Without root it uses sudo; without apt-get it says what to install.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

from project import fail, say

# command -> Debian package
BUILD = {"gcc": "gcc", "readelf": "binutils"}
TEST = BUILD | {"ip": "iproute2", "ssh": "openssh-client", "pg_dump": "postgresql"}
TEST |= {
    "chromium-headless-shell": "chromium-headless-shell"
}  # the pages: a third of the processor that Chromium takes
TEST |= {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}
TEST |= {"etcd": "etcd-server"}
BENCH = TEST | {"mpirun": "openmpi-bin"}
SOAK = TEST | {"debootstrap": "debootstrap", "g++": "g++", "pdsh": "pdsh", "sshd": "openssh-server"}
SOAK |= {"python3-config": "python3-dev"}  # DeepSpeed compiles a part of itself with the Python that all users reach
PURPOSES = {"build": BUILD, "test": TEST, "bench": BENCH, "soak": SOAK}

# `ip` and friends live in folders that are not on every user's PATH.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def missing(purpose: str) -> list[str]:
    """Name the Debian packages that `purpose` needs and this machine lacks."""
    packages = {package for command, package in PURPOSES[purpose].items() if not find(command)}
    if not (importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv")):
        packages.add("python3-venv")
    return sorted(packages)


def find(command: str) -> str | None:
    """Find a command, looking into the administrator's folders too."""
    return shutil.which(command, path=SEARCH_PATH)


def require(purpose: str) -> None:
    """Make sure that everything `purpose` needs is installed."""
    if sys.version_info < (3, 11):
        version = ".".join(map(str, sys.version_info[:3]))
        fail(
            "cannot build with this Python",
            cause=f"python3 is {version}",
            hint="put Python 3.11 or later first on PATH",
        )
    if not find("cargo"):
        fail("cannot find cargo", hint="install Rust 1.88 or later (https://rustup.rs) and put ~/.cargo/bin on PATH")
    packages = missing(purpose)
    if packages:
        install(packages)


def install(packages: list[str]) -> None:
    """Install Debian packages, refreshing the package lists first."""
    names = " ".join(packages)
    by_hand = f"install these packages and run the command again: {names}"
    if not find("apt-get"):
        fail(f"missing on this machine: {names}", cause="there is no apt-get to install them with", hint=by_hand)
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if prefix and not find("sudo"):
        fail(f"missing on this machine: {names}", cause="installing needs root", hint=f"apt-get install {names}")
    say(f"installing system packages: {names}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-qy", "--no-install-recommends", *packages]):
        done = subprocess.run([*prefix, *command], env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(done.stdout + done.stderr, file=sys.stderr)
            fail(f"missing on this machine: {names}", cause=f"`{' '.join(command)}` failed, see above", hint=by_hand)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PURPOSES:
        fail("no purpose given", hint=f"python3 scripts/system.py {'|'.join(PURPOSES)}", status=2)
    require(sys.argv[1])
