"""Whose agent it is, and as which Unix user its tasks run, for tests that must come to the same for each.

An agent of root with tasks of root is in CI. In soak are an agent of root whose tasks run as the Unix user that
the owner's account is linked to, and an agent of an ordinary user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import ROOT

from .conftest import Cluster

# A Unix user that this machine does not know, and one with a name, which `scp` asks for.
USERS = {"root": os.geteuid(), "linked": 41001, "other": 65534}
KINDS = pytest.mark.parametrize(
    "kind", ["root", pytest.param("linked", marks=pytest.mark.soak), pytest.param("other", marks=pytest.mark.soak)]
)
StartAgent = Callable[..., None]


def python_for_all(place: Path, *environments: Path) -> Path:
    """Make an interpreter that every user reaches, with the packages of environments.

    The one that they were made with may be in a home.
    """
    system = Path("/usr/bin/python3")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if system.resolve().name != version:
        pytest.skip(f"{system} is no {version}, and the other may be out of reach for users of the machine")
    subprocess.run([system, "-m", "venv", "--without-pip", place], check=True)
    packages = [environment / "lib" / version / "site-packages" for environment in environments]
    (place / "lib" / version / "site-packages" / "all.pth").write_text("".join(f"{path}\n" for path in packages))
    # Where JupyterLab looks for its pages.
    for name in ("share", "etc"):
        if (environments[0] / name).exists():
            (place / name).symlink_to(environments[0] / name)
    return place / "bin" / "python3"


@pytest.fixture
def start_agent() -> Iterator[StartAgent]:
    """Starts the agent of a cluster, of one of the kinds."""
    begun: list[Cluster] = []

    def start(cluster: Cluster, kind: str, *options: str) -> None:
        if kind == "root":
            cluster.agent("one", 1, *options)
            return
        if os.geteuid() != 0:
            pytest.skip("makes tasks run as several users, which takes root")
        uid = USERS[kind]
        # Every user reaches it, as the folders of tests are not.
        cluster.folder = Path(tempfile.mkdtemp(prefix="agent-", dir="/var/tmp"))
        cluster.folder.chmod(0o1777)
        begun.append(cluster)
        cluster.interpreter = python_for_all(cluster.folder / "python", ROOT / "build" / "determined")
        cluster.instep = Path(shutil.copy(cluster.instep, cluster.folder / "instep"))
        admin = cluster.master.client.login("admin")
        if kind == "linked":
            [user] = [user for user in admin("GET", "/api/v1/users")["users"] if user["username"] == "determined"]
            group = {"agentUid": uid, "agentGid": uid, "agentUser": "linked", "agentGroup": "linked"}
            admin("PATCH", f"/api/v1/users/{user['id']}", {"agentUserGroup": group})
        token = admin("POST", "/api/v1/agents/tokens", {"name": "one"})["token"]
        cluster.agent("one", 1, "--token", token, *options, uid=uid if kind == "other" else 0)

    yield start
    for cluster in begun:
        cluster.end()
        shutil.rmtree(cluster.folder, ignore_errors=True)
