"""What a user reaches through what root mounts and links for a task: nothing that the user could not reach anyway."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .walls import ALICE, BOB, Walls, walls

__all__ = ["walls"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes tasks run as several users, which takes root")


def closed_folder(where: Path) -> Path:
    """Make a folder of bob's that nobody else may enter, with something in it that would be open to all."""
    home = where / "home-of-bob"
    inner = home / "project"
    inner.mkdir(parents=True)
    (inner / "notes").write_text("swordfish")
    inner.chmod(0o777)
    (inner / "notes").chmod(0o666)
    for path in (home, inner, inner / "notes"):
        os.chown(path, BOB, BOB)
    home.chmod(0o700)
    return inner


def test_a_mount_leads_into_no_folder_that_its_user_may_not_enter(walls: Walls) -> None:
    allowed = walls.folder / "allowed"
    inner = closed_folder(allowed)
    allowed.chmod(0o755)
    walls.start("--allow-mount", f"{allowed}:rw")
    # A place that is there already: nothing has to be made for the mount.
    mount = {"host_path": str(inner), "container_path": "/run/determined/config"}
    log = walls.refused("alice", "cd /run/determined/config; cat notes; touch mine", mounts=(mount,))
    assert "swordfish" not in log
    assert "hint: " in log
    assert not (inner / "mine").exists()
    assert "swordfish" in walls.log("bob", "cat /run/determined/config/notes", mounts=(mount,)), "it is bob's own"


@pytest.fixture
def link(walls: Walls) -> Iterator[Path]:
    """A link of alice's in the machine's /tmp, to what is behind a closed folder of bob's."""
    folder = Path(tempfile.mkdtemp(prefix="walls-link-", dir="/tmp"))
    folder.rmdir()
    folder.symlink_to(closed_folder(walls.folder))
    os.chown(folder, ALICE, ALICE, follow_symlinks=False)
    yield folder
    folder.unlink()


def test_a_link_in_tmp_leads_into_no_folder_that_its_user_may_not_enter(walls: Walls, link: Path) -> None:
    walls.start()
    log = walls.log("alice", f"cat {link}/notes; echo done", storage=link / "checkpoints")
    assert "swordfish" not in log


def test_without_mount_namespaces_a_task_is_linked_with_its_users_rights(walls: Walls) -> None:
    system = walls.folder / "system"
    (system / "profile.d").mkdir(parents=True)
    system.chmod(0o755)
    walls.start(without="sys_admin")
    script = walls.folder / "script"
    script.write_text("")
    mounts = (
        {"host_path": str(system), "container_path": "link"},
        {"host_path": str(script), "container_path": "link/profile.d/mine.sh"},
    )
    log = walls.refused("alice", "echo started", mounts=mounts)
    assert "hint: " in log
    assert not list((system / "profile.d").iterdir()), "root made a link where only root may"


def test_shared_memory_goes_with_its_task(walls: Walls) -> None:
    # What is left in /dev/shm stays in memory when its task has ended, and counts against all other tasks.
    walls.start()
    shared = Path(f"/dev/shm/{walls.folder.name}")
    trial = walls.begin("alice", f"echo mine > {shared}; ipcmk -M 4096; ipcs -m; sleep 600")
    walls.wait_for(trial, "Shared Memory Segments")
    log = walls.log("bob", f"cat {shared}; ls -ld /dev/shm; echo done")
    assert "mine" not in log
    assert "drwxrwxrwt" in log
    walls.kill(trial)
    assert not shared.exists()
