"""The model registry: what the API says, and what the unmodified client makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Runner

from .conftest import Client, Master
from .det import Commands, det
from .trial import finish, make_trial, refused, save

__all__ = ["det"]


def test_versions_are_counted_and_checkpoints_in_use_stay(api: Client, master: Master, tmp_path: Path) -> None:
    made = make_trial(api, storage=tmp_path)
    first, second = save(api, made, tmp_path, 1), save(api, made, tmp_path, 2)
    finish(api, made)
    model = api("POST", "/api/v1/models", {"name": "digits", "labels": ["x"], "metadata": {"a": 1}})["model"]
    assert (model["id"], model["username"], model["workspaceId"], model["numVersions"]) == (1, "determined", 1, 0)
    for uuid, number in ((first, 1), (second, 2)):
        request = {"modelName": "digits", "checkpointUuid": uuid, "comment": "c"}
        version = api("POST", "/api/v1/models/digits/versions", request)["modelVersion"]
        assert (version["version"], version["checkpoint"]["uuid"], version["comment"]) == (number, uuid, "c")
    api("DELETE", "/api/v1/models/digits/versions/2")
    again = api("POST", "/api/v1/models/1/versions", {"checkpointUuid": second})["modelVersion"]
    assert again["version"] == 3, "a number is not given twice"
    listed = api("GET", "/api/v1/models/digits/versions?orderBy=ORDER_BY_DESC&limit=1")
    assert [version["version"] for version in listed["modelVersions"]] == [3]
    assert (listed["pagination"]["total"], listed["model"]["numVersions"]) == (2, 2)
    status, message = refused(api, "DELETE", f"/api/v1/experiments/{made.experiment}")
    assert status == 400
    assert "of a model in the registry" in message
    # Archived models do not change; others may not touch them at all.
    api("POST", "/api/v1/models/digits/archive")
    assert "archived" in refused(api, "PATCH", "/api/v1/models/digits", {"notes": "x"})[1]
    api("POST", "/api/v1/models/digits/unarchive")
    api("PATCH", "/api/v1/models/digits/versions/3", {"name": "best", "labels": ["y"]})
    found = api("GET", "/api/v1/models/digits/versions/3")["modelVersion"]
    assert (found["name"], found["labels"], found["model"]["metadata"]) == ("best", ["y"], {"a": 1})
    master.client.login("admin")("POST", "/api/v1/users", {"user": {"username": "ann"}, "password": "Abcdefg1"})
    ann = master.client.login("ann", "Abcdefg1")
    for method, path in (("DELETE", ""), ("PATCH", ""), ("POST", "/archive"), ("DELETE", "/versions/1")):
        assert refused(ann, method, f"/api/v1/models/digits{path}")[0] == 403, (method, path)
    api("DELETE", "/api/v1/models/digits")
    assert api("GET", "/api/v1/models")["models"] == []
    api("DELETE", f"/api/v1/experiments/{made.experiment}")


def test_lists_are_filtered_and_sorted(api: Client) -> None:
    workspace = api("POST", "/api/v1/workspaces", {"name": "lab"})["workspace"]["id"]
    for name, labels, where in (("b one", ["x", "y"], {}), ("a two", ["x"], {"workspaceName": "lab"})):
        api("POST", "/api/v1/models", {"name": name, "labels": labels, **where})

    def names(query: str) -> list[str]:
        return [model["name"] for model in api("GET", f"/api/v1/models?{query}")["models"]]

    assert names("") == ["b one", "a two"]
    assert names("sort_by=SORT_BY_NAME&order_by=ORDER_BY_ASC") == ["a two", "b one"]
    assert names("workspaceNames=lab") == ["a two"]
    assert names(f"workspaceIds={workspace}&users=nobody") == []
    assert names("labels=y") == names("name=ONE") == ["b one"]
    assert api("GET", "/api/v1/model/labels")["labels"] == ["x", "y"]
    assert api("GET", f"/api/v1/model/labels?workspaceId={workspace}")["labels"] == ["x"]
    api("POST", "/api/v1/models/b%20one/move", {"destinationWorkspaceId": workspace})
    assert names("workspaceNames=lab&sortBy=SORT_BY_NAME") == ["a two", "b one"]
    assert refused(api, "DELETE", f"/api/v1/workspaces/{workspace}")[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/v1/models", {}, 400),
        ("POST", "/api/v1/models", {"name": "7"}, 400),
        ("POST", "/api/v1/models", {"name": "a/b"}, 400),
        ("POST", "/api/v1/models", {"name": "known"}, 409),
        ("POST", "/api/v1/models", {"name": "new", "workspaceName": "nowhere"}, 404),
        ("POST", "/api/v1/models", {"name": "new", "metadata": 7}, 400),
        ("PATCH", "/api/v1/models/known", {"name": "taken"}, 409),
        ("PATCH", "/api/v1/models/unknown", {"notes": ""}, 404),
        ("GET", "/api/v1/models/77", None, 404),
        ("GET", "/api/v1/models/known/versions/1", None, 404),
        ("GET", "/api/v1/models/known/versions/x", None, 400),
        ("POST", "/api/v1/models/known/versions", {"checkpointUuid": "x"}, 404),
        ("POST", "/api/v1/models/known/move", {}, 400),
        ("GET", "/api/v1/models?sortBy=SORT_BY_SIZE", None, 400),
    ],
)
def test_wrong_requests_are_refused(api: Client, method: str, path: str, body: object, status: int) -> None:
    for name in ("known", "taken"):
        api("POST", "/api/v1/models", {"name": name})
    assert refused(api, method, path, body)[0] == status


SDK = """
import sys
from determined.experimental import client
model = client.create_model("sdk", description="made by a script")
version = model.register_version(sys.argv[1])
version.set_name("first")
version.set_notes("notes")
model.add_metadata({"accuracy": 0.5, "old": True})
model.remove_metadata(["old"])
model.set_labels(["two"])
model.archive()
model.unarchive()
again = client.get_model("sdk")
print(again.metadata, again.labels, again.description, again.get_version().name, again.get_version(1).notes)
print(again.get_version().checkpoint.download(sys.argv[2]))
print([one.name for one in client.get_models()], client.get_model_labels())
"""


def test_the_unmodified_client_registers_versions(
    run: Runner, determined: Path, settings: dict[str, str], api: Client, det: Commands, tmp_path: Path
) -> None:
    storage = tmp_path / "storage"
    made = make_trial(api, storage=storage)
    first, second = save(api, made, storage, 1, {"state": "one"}), save(api, made, storage, 2)
    finish(api, made)
    downloaded = tmp_path / "downloaded"
    done = run(determined, "-c", SDK, first, str(downloaded), env=settings).expect(0)
    assert done.stdout.splitlines() == [
        "{'accuracy': 0.5} ['two'] made by a script first notes",
        str(downloaded),
        "['sdk'] ['two']",
    ]
    assert (downloaded / "state").read_text() == "one"
    expected = {
        "workspace create lab": "lab",
        "model create digits --description small": "small",
        f"model register-version digits {second}": second,
        "model list": "sdk",
        "model list --json": '"name": "digits"',
        "m list-versions digits": second,
        "model describe digits --version 1": second,
        "model move digits -w lab": "",
        "model list -w lab": "digits",
        "model delete sdk": "",
    }
    outputs = dict(zip(expected, det(*expected), strict=True))
    for command, part in expected.items():
        assert part in outputs[command], (command, outputs[command])
    assert "sdk" not in outputs["model list -w lab"]
    [left] = api("GET", "/api/v1/models")["models"]
    assert left["name"] == "digits"
    [unknown] = det.outcomes("model describe nothing")
    assert unknown.status == 1
    assert "model 'nothing' not found" in unknown.output
