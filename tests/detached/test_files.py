"""Checkpoints' files through the master: downloads, deletions, and paths that lead elsewhere."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from conftest import Runner

from .conftest import Client, Failed, Master
from .det import Commands, det
from .trial import finish, make_trial, refused, report, save

__all__ = ["det"]

FILES = {"state": "weights", "folder/inner": "inner", "folder/deep/more.pt": "more"}


def unpacked(archive: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        members = [member for member in files.getmembers() if member.isfile()]
        return {member.name: files.extractfile(member).read().decode() for member in members}  # type: ignore[union-attr]


def test_files_for_tensorboard_go_with_their_experiment(det: Commands, api: Client, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    cluster = api("GET", "/api/v1/master")["clusterId"]
    for delete in ("experiment delete-tb-files {}", "experiment delete {} --yes"):
        made = make_trial(api, storage=storage)
        finish(api, made)
        folder = storage / cluster / "tensorboard" / "experiment" / str(made.experiment)
        (folder / "trial" / str(made.trial)).mkdir(parents=True)
        (folder / "trial" / str(made.trial) / "events.out").write_text("x")
        neighbour = folder.with_name("77")
        neighbour.mkdir(exist_ok=True)
        det(delete.format(made.experiment))
        assert not folder.exists() and neighbour.exists()


def test_a_checkpoint_is_one_archive(api: Client, master: Master, tmp_path: Path) -> None:
    made = make_trial(api, storage=tmp_path)
    uuid = save(api, made, tmp_path, 7, FILES)
    expected = {"metadata.json": '{"steps_completed": 7}', **FILES}
    for accept, kind, name in (
        ("application/gzip", "application/gzip", f"{uuid}.tar.gz"),
        ("application/x-tar", "application/x-tar", f"{uuid}.tar"),
        ("*/*", "application/x-tar", f"{uuid}.tar"),
    ):
        status, headers, body = api.raw("GET", f"/checkpoints/{uuid}", headers={"Accept": accept})
        assert (status, headers["content-type"]) == (200, kind)
        assert headers["content-disposition"] == f'attachment; filename="{name}"'
        assert unpacked(body) == expected
    assert api.raw("GET", f"/checkpoints/{uuid}", headers={"Accept": "application/zip"})[0] == 415
    assert master.client.raw("GET", f"/checkpoints/{uuid}")[0] == 401
    assert refused(api, "GET", "/checkpoints/00000000-0000-4000-8000-000000000000")[0] == 404
    (tmp_path / uuid).rename(tmp_path / "elsewhere")
    status, message = refused(api, "GET", f"/checkpoints/{uuid}")
    assert (status, "on the master's machine" in message) == (404, True)


def test_links_are_not_followed(api: Client, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("do not read")
    storage = tmp_path / "storage"
    made = make_trial(api, storage=storage)
    inside = save(api, made, storage, 1)
    (storage / inside / "link").symlink_to(secret / "key")
    whole = save(api, made, storage, 2)
    (storage / whole).rename(tmp_path / "away")
    (storage / whole).symlink_to(secret)
    for uuid in (inside, whole):
        status, headers, body = api.raw("GET", f"/checkpoints/{uuid}")
        assert status == 400, (headers, body)
        assert b"do not read" not in body
    assert refused(api, "DELETE", "/api/v1/checkpoints", {"checkpointUuids": [whole]})[0] == 400
    api("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [inside]})
    assert not (storage / inside).exists()
    assert (secret / "key").read_text() == "do not read"


@pytest.mark.parametrize(
    "storage",
    [
        "{type: directory, container_path: relative}",
        "{type: directory, container_path: /tmp/../etc}",
        "{type: s3, bucket: far-away}",
    ],
)
def test_storage_out_of_reach_is_said(api: Client, storage: str) -> None:
    config = f"name: x\nsearcher: {{name: single, metric: loss}}\ncheckpoint_storage: {storage}\n"
    experiment = api("POST", "/api/v1/experiments", {"config": config, "unmanaged": True})["experiment"]["id"]
    trial = api("POST", "/api/v1/trials", {"experimentId": experiment, "unmanaged": True})["trial"]
    uuid = "00000000-0000-4000-8000-000000000001"
    metadata = {"steps_completed": 1}
    api("POST", "/api/v1/checkpoints", {"uuid": uuid, "taskId": trial["taskId"], "metadata": metadata, "resources": {}})
    assert refused(api, "GET", f"/checkpoints/{uuid}")[0] == 400
    # What the master cannot reach it forgets all the same.
    api("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [uuid]})
    assert api("GET", f"/api/v1/checkpoints/{uuid}")["checkpoint"]["state"] == "STATE_DELETED"


def test_storage_that_leaves_its_folder_is_refused(api: Client) -> None:
    storage = "{type: shared_fs, host_path: /tmp, storage_path: ../etc}"
    config = f"name: x\nsearcher: {{name: single, metric: loss}}\ncheckpoint_storage: {storage}\n"
    with pytest.raises(Failed) as refusal:
        api("POST", "/api/v1/experiments", {"config": config, "unmanaged": True})
    assert refusal.value.status == 400
    assert "checkpoint_storage.storage_path" in refusal.value.message


def test_files_are_deleted_in_part_and_whole(api: Client, master: Master, tmp_path: Path) -> None:
    made = make_trial(api, storage=tmp_path)
    uuid, other = save(api, made, tmp_path, 1, FILES), save(api, made, tmp_path, 2, FILES)

    def checkpoint(name: str = uuid) -> dict[str, object]:
        found: dict[str, object] = api("GET", f"/api/v1/checkpoints/{name}")["checkpoint"]
        return found

    # Without patterns it only looks what is there.
    (tmp_path / uuid / "state").write_text("longer weights")
    api("POST", "/api/v1/checkpoints/rm", {"checkpointUuids": [uuid], "checkpointGlobs": []})
    assert checkpoint()["resources"]["state"] == "14"  # type: ignore[index]
    api("POST", "/api/v1/checkpoints/rm", {"checkpoint_uuids": [uuid], "checkpoint_globs": ["**/*.pt", "st*"]})
    assert checkpoint()["state"] == "STATE_PARTIALLY_DELETED"
    assert set(checkpoint()["resources"]) == {"metadata.json", "folder/", "folder/inner"}  # type: ignore[call-overload]
    assert sorted(path.name for path in (tmp_path / uuid).rglob("*")) == ["folder", "inner", "metadata.json"]
    assert set(unpacked(api.raw("GET", f"/checkpoints/{uuid}")[2])) == {"metadata.json", "folder/inner"}
    master.client.login("admin")("POST", "/api/v1/users", {"user": {"username": "ann"}, "password": "Abcdefg1"})
    ann = master.client.login("ann", "Abcdefg1")
    request = {"checkpointUuids": [uuid]}
    assert refused(ann, "DELETE", "/api/v1/checkpoints", request)[0] == 403
    assert refused(ann, "POST", "/api/v1/checkpoints/rm", {**request, "checkpointGlobs": ["*"]})[0] == 403
    for body in ({}, {"checkpointUuids": []}):
        assert refused(api, "DELETE", "/api/v1/checkpoints", body)[0] == 400
    unknown = "00000000-0000-4000-8000-000000000000"
    assert refused(api, "DELETE", "/api/v1/checkpoints", {"checkpointUuids": [other, unknown]})[0] == 404
    assert (tmp_path / other).exists(), "all or none"
    assert refused(api, "POST", "/api/v1/checkpoints/rm", {**request, "checkpointGlobs": ["["]})[0] == 400
    api("DELETE", "/api/v1/checkpoints", request)
    assert checkpoint()["state"] == "STATE_DELETED"
    assert not (tmp_path / uuid).exists()
    assert refused(api, "GET", f"/checkpoints/{uuid}")[0] == 400
    # An experiment takes the files of its checkpoints along, and nothing else.
    (tmp_path / "mine").write_text("stays")
    finish(api, made)
    api("DELETE", f"/api/v1/experiments/{made.experiment}")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir() and path.name == other] == []
    assert (tmp_path / "mine").read_text() == "stays"


def test_versions_of_models_keep_their_files(api: Client, tmp_path: Path) -> None:
    made = make_trial(api, storage=tmp_path)
    uuid = save(api, made, tmp_path, 1, FILES)
    api("POST", "/api/v1/models", {"name": "kept"})
    api("POST", "/api/v1/models/kept/versions", {"checkpointUuid": uuid})
    for method, path, body in (
        ("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [uuid]}),
        ("POST", "/api/v1/checkpoints/rm", {"checkpointUuids": [uuid], "checkpointGlobs": ["state"]}),
        ("PATCH", "/api/v1/checkpoints", {"checkpoints": [{"uuid": uuid, "resources": {"resources": None}}]}),
    ):
        status, message = refused(api, method, path, body)
        assert (status, "registry" in message) == (400, True), (method, path)
    assert (tmp_path / uuid / "state").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may delete everything")
def test_files_that_cannot_be_deleted_are_named(api: Client, tmp_path: Path) -> None:
    made = make_trial(api, storage=tmp_path)
    uuid = save(api, made, tmp_path, 1, FILES)
    (tmp_path / uuid / "folder").chmod(0o500)
    try:
        status, message = refused(api, "DELETE", "/api/v1/checkpoints", {"checkpointUuids": [uuid]})
        assert (status, uuid in message) == (400, True)
    finally:
        (tmp_path / uuid / "folder").chmod(0o700)


def test_deletions_survive_a_crash(
    master: Master, api: Client, wait_until: Callable[..., None], tmp_path: Path
) -> None:
    made = make_trial(api, storage=tmp_path / "storage")
    uuid = save(api, made, tmp_path / "storage", 1, FILES)
    master.kill()
    # As if the master had been killed between noting the deletion and doing it.
    storage = json.dumps({"type": "directory", "container_path": str(tmp_path / "storage")})
    master.rows("INSERT INTO file_deletions (checkpoint_uuid, storage) VALUES (?, ?)", uuid, storage)
    master.start(wait_until)
    wait_until(lambda: not (tmp_path / "storage" / uuid).exists(), 20, "the files to be gone")


def test_folders_that_the_administrator_did_not_list_are_left_alone(
    master: Master, api: Client, wait_until: Callable[..., None], tmp_path: Path
) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    master.stop()
    master.start(wait_until, "--storage-root", str(allowed))
    inside = save(api, make_trial(api, storage=allowed / "mine"), allowed / "mine", 1, FILES)
    assert unpacked(api.raw("GET", f"/checkpoints/{inside}")[2])["state"] == "weights"
    outside = save(api, make_trial(api, storage=other), other, 1, FILES)
    asked = [
        ("GET", f"/checkpoints/{outside}", None),
        ("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [outside]}),
        ("POST", "/api/v1/checkpoints/rm", {"checkpointUuids": [outside], "checkpointGlobs": ["**"]}),
    ]
    for method, path, body in asked:
        status, message = refused(api, method, path, body)
        assert (status, f"start it with --storage-root {other}" in message) == (400, True), message
    assert api("GET", f"/api/v1/checkpoints/{outside}")["checkpoint"]["state"] == "STATE_COMPLETED"
    assert (other / outside / "state").read_text() == "weights"
    api("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [inside]})
    assert not (allowed / "mine" / inside).exists()


def test_metrics_and_logs_are_exported(api: Client) -> None:
    made = make_trial(api)
    report(api, made, 1, loss=0.5, note='a "b", c')
    report(api, made, 2, loss=float("1e-3"))
    report(api, made, 2, "validation", loss=0.25)
    status, headers, body = api.raw("GET", f"/trials/{made.trial}/metrics.csv")
    assert (status, headers["content-type"]) == (200, "text/csv; charset=utf-8")
    header, *rows = body.decode().splitlines()
    assert header == "trial,run,group,step,time,metric,value"
    cells = [row.split(",", 6) for row in rows]
    assert [(cell[2], cell[3], cell[5], cell[6]) for cell in cells] == [
        ("training", "1", "loss", "0.5"),
        ("training", "1", "note", '"a ""b"", c"'),
        ("training", "2", "loss", "0.001"),
        ("validation", "2", "loss", "0.25"),
    ]
    lines = api.raw("GET", f"/experiments/{made.experiment}/metrics.jsonl?group=validation")[2].decode().splitlines()
    [line] = [json.loads(line) for line in lines]
    assert (line["trial"], line["group"], line["step"], line["metrics"]) == (
        made.trial,
        "validation",
        2,
        {"loss": 0.25},
    )
    assert refused(api, "GET", "/trials/77/metrics.csv")[0] == 404
    # PostgreSQL has no text with NUL: that is said, and no file begins that has no end.
    status, _, body = api.raw("GET", f"/trials/{made.trial}/metrics.csv?group=%00")
    assert (status, b"NUL" in body) == (400, True) or (status, body.decode()) == (200, f"{header}\n")
    logs = [
        {"task_id": made.task, "rank": rank, "log": f"line {rank}\n", "timestamp": "2026-01-02T03:04:05Z"}
        for rank in (0, 1)
    ]
    api("POST", "/task-logs", logs)
    status, headers, body = api.raw("GET", f"/trials/{made.trial}/logs.txt?rankIds=1")
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert body.decode() == "[2026-01-02T03:04:05.000000Z]          [rank=1] || line 1\n"
    assert api.raw("GET", f"/tasks/{made.task}/logs.txt")[2].count(b"\n") == 2


def test_det_downloads_and_deletes_through_the_master(
    run: Runner, determined: Path, settings: dict[str, str], api: Client, det: Commands, tmp_path: Path
) -> None:
    storage = tmp_path / "storage"
    made = make_trial(api, storage=storage)
    uuids = [save(api, made, storage, step, FILES) for step in (1, 2, 3)]
    for step, loss in ((1, 0.3), (2, 0.1), (3, 0.2)):
        report(api, made, step, "validation", loss=loss)
    finish(api, made)
    code = (
        "import sys\n"
        "from determined.experimental import client\n"
        "checkpoint = client.get_checkpoint(sys.argv[1])\n"
        "print(checkpoint.download(sys.argv[2], mode=client.DownloadMode.MASTER))\n"
        "checkpoint.remove_files(['folder/**'])\n"
        "checkpoint.reload()\n"
        "print(checkpoint.state.name, sorted(checkpoint.resources))\n"
    )
    target = tmp_path / "sdk"
    done = run(determined, "-c", code, uuids[0], str(target), env=settings).expect(0)
    assert done.stdout.splitlines() == [str(target), "PARTIALLY_DELETED ['metadata.json', 'state']"]
    assert (target / "folder" / "deep" / "more.pt").read_text() == "more"
    outputs = det(
        f"checkpoint download {uuids[1]} --mode master -o {tmp_path / 'one'}",
        f"trial download {made.trial} --best -o {tmp_path / 'best'}",
        f"experiment download {made.experiment} -o {tmp_path / 'all'} --top-n 2",
        f"experiment list-checkpoints {made.experiment} --best 1",
        f"checkpoint delete {uuids[2]} --yes",
        f"checkpoint rm {uuids[1]} --glob **/*.pt --yes",
        f"checkpoint describe {uuids[1]}",
    )
    assert (tmp_path / "one" / "folder" / "inner").read_text() == "inner"
    assert (tmp_path / "best" / "state").read_text() == "weights"
    assert len(list((tmp_path / "all").iterdir())) == 2
    assert uuids[1] in outputs[3]
    assert uuids[0] not in outputs[3]
    assert not (storage / uuids[2]).exists()
    assert not (storage / uuids[1] / "folder" / "deep").exists()
    failed = det.outcomes(f"checkpoint download {uuids[2]}", f"checkpoint describe {uuid4()}")
    assert [each.status for each in failed] == [1, 1]
    assert "DELETED" in failed[0].output
    assert "not found" in failed[1].output
