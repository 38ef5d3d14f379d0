"""What a user reaches through what root mounts and links for a task: nothing that the user could not reach anyway."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
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


def planting(shares: Path, planted: Path, victim: Path, over: threading.Event) -> None:
    """Put links to a file in a copy of the folders of shares, as soon as there are any."""
    while not over.wait(0.001):
        for share in shares.glob("[!.]*"):
            task = planted / share.name / "task"
            if task.exists():
                continue
            task.mkdir(parents=True)
            for name in ("passwd", "group", "shadow", "ssh_config"):
                (task / name).symlink_to(victim)


def test_no_mount_lets_root_write_through_links_of_a_user(walls: Walls) -> None:
    # Root writes files for the task into its state folder: a copy of it, mounted over it, could lead elsewhere.
    mine, victim, state = walls.folder / "mine", walls.folder / "victim", walls.state
    (mine / "shares").mkdir(parents=True)
    (mine / "within").mkdir()
    victim.write_text("untouched")
    victim.chmod(0o600)
    (walls.folder / "link").symlink_to(state)
    walls.start("--allow-mount", f"{walls.folder}:rw")
    over = threading.Event()
    plant = threading.Thread(target=planting, args=(state / "shares", mine / "shares", victim, over))
    plant.start()
    try:
        places = [state, state / "shares", walls.folder / "link", state / "shares" / "new" / "task", walls.folder]
        for place in [*places, Path("/run/determined/info")]:
            mount = {"host_path": str(mine if place != state / "shares" else mine / "shares")}
            log = walls.refused("alice", "echo started", mounts=({**mount, "container_path": str(place)},))
            assert victim.read_text() == "untouched", place
            assert f"nothing may be mounted at {place}: it would hide what tasks" in log, log
            assert "hint: choose a container_path" in log
            assert "started\n" not in log, log
    finally:
        over.set()
        plant.join()
    # What stays where it is hides nothing.
    mount = {"host_path": str(walls.folder), "container_path": str(walls.folder)}
    assert "within" in walls.log("alice", f"ls {mine}", mounts=(mount,))


@pytest.mark.parametrize("uid", [0, ALICE], ids=["root", "without root"])
def test_a_mount_s_place_is_made_for_the_task_alone(walls: Walls, uid: int) -> None:
    data = walls.folder / "data"
    (data / "inner").mkdir(parents=True)
    (data / "notes").write_text("from the host")
    data.chmod(0o755)
    walls.start("--allow-mount", str(data), uid=uid)
    mounts = (
        {"host_path": str(data), "container_path": "/mounted-for-alice/data"},
        {"host_path": str(data / "notes"), "container_path": "/usr-notes"},
        {"host_path": str(data), "container_path": "/var/lib/mounted-for-alice"},
    )
    script = (
        "cat /mounted-for-alice/data/notes /usr-notes /var/lib/mounted-for-alice/notes; ls /determined_shared_fs;"
        " ls -d /etc/passwd /proc/self /dev/null; touch /var/tmp/$DET_TASK_ID"
    )
    log = walls.log("alice", script, mounts=mounts)
    assert log.count("from the host") == 3, log
    assert "data" in log and "/etc/passwd" in log and "/proc/self" in log and "/dev/null" in log
    assert list(Path("/var/tmp").glob("*.*-*-*-*-*")), "the machine's own folders stay what they are"
    for place in ("/mounted-for-alice", "/usr-notes", "/var/lib/mounted-for-alice"):
        assert not Path(place).exists(), place
    for left in Path("/var/tmp").glob("*.*-*-*-*-*"):
        left.unlink()


def test_users_and_groups_that_only_accounts_know_have_names(walls: Walls) -> None:
    walls.start()
    script = "echo $(id -un) $(id -gn) $USER; python3 -c 'import getpass, os, pwd; print(pwd.getpwuid(os.getuid())[0])'"
    log = walls.log("alice", script)
    assert "alice alice alice" in log, log
    admin = walls.cluster.master.client.login("admin")
    group = {"agentGid": 41009, "agentGroup": "crew"}
    made = admin("POST", "/api/v1/workspaces", {"name": "crew", "agentUserGroup": group})["workspace"]
    project = admin("POST", f"/api/v1/workspaces/{made['id']}/projects", {"name": "first"})["project"]
    config = walls.cluster.config("echo $(id -un) $(id -gn)")
    config["checkpoint_storage"] = {"type": "shared_fs", "host_path": str(walls.folder)}
    request = {"config": json.dumps(config), "activate": True, "projectId": project["id"]}
    # An account without a Unix user keeps the machine's user for such, and has the workspace's group.
    for api, expected in ((walls.users["alice"], "alice crew"), (admin, "nobody crew")):
        number = api("POST", "/api/v1/experiments", request)["experiment"]["id"]
        walls.cluster.wait_for(number, "STATE_COMPLETED")
        assert expected in walls.cluster.text(walls.cluster.trials(number)[0]["id"])


@pytest.mark.parametrize("uid", [0, ALICE], ids=["root", "without root"])
def test_storage_in_tmp_is_the_machine_s_and_not_the_task_s(walls: Walls, uid: int) -> None:
    storage = Path(tempfile.mkdtemp(prefix="walls-storage-", dir="/tmp"))
    storage.chmod(0o777)
    try:
        walls.start(uid=uid)
        script = f"echo kept > /determined_shared_fs/{storage.name}/file; touch /tmp/mine; ls /determined_shared_fs"
        log = walls.log("alice", script, storage=Path("/tmp"))
        assert (storage / "file").read_text() == "kept\n", log
        assert not Path("/tmp/mine").exists(), "the task's own /tmp is still its own"
    finally:
        shutil.rmtree(storage)


@pytest.mark.parametrize("uid", [0, ALICE], ids=["root", "without root"])
def test_a_task_s_shared_memory_is_as_large_as_its_configuration_says(walls: Walls, uid: int) -> None:
    walls.start(uid=uid)
    config = walls.cluster.config("df --output=size -B1 /dev/shm; touch /dev/shm/walls-$DET_TASK_ID")
    config["resources"] = {"slots_per_trial": 0, "shm_size": "1.5m"}
    config["checkpoint_storage"] = {"type": "shared_fs", "host_path": str(walls.folder)}
    request = {"config": json.dumps(config), "activate": True}
    number = walls.users["alice"]("POST", "/api/v1/experiments", request)["experiment"]["id"]
    walls.cluster.wait_for(number, "STATE_COMPLETED")
    assert str(3 * 512 * 1024) in walls.cluster.text(walls.cluster.trials(number)[0]["id"])
    assert not list(Path("/dev/shm").glob("walls-*"))


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
