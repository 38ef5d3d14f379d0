"""Makes experiments, trials and checkpoints through the REST API alone, where starting a script would take seconds."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import NamedTuple

import pytest

from .conftest import Client, Failed


class Made(NamedTuple):
    """A trial of its own experiment."""

    experiment: int
    trial: int
    task: str


def make_trial(api: Client, name: str = "made", storage: Path | None = None, external: str | None = None) -> Made:
    """An experiment with one trial that has started."""
    config = f"name: {name}\nsearcher: {{name: single, metric: loss}}\n"
    if storage is not None:
        config += f"checkpoint_storage: {{type: directory, container_path: '{storage}'}}\n"
    request = {"config": config, "unmanaged": True}
    path = f"/api/v1/experiments/by-external-id/{external}" if external else "/api/v1/experiments"
    experiment = api("PUT" if external else "POST", path, request)["experiment"]["id"]
    trial = api("POST", "/api/v1/trials", {"experimentId": experiment, "unmanaged": True})["trial"]
    api("POST", f"/api/v1/trials/{trial['id']}/start", {"resume": True})
    return Made(experiment, trial["id"], trial["taskId"])


def finish(api: Client, made: Made, state: str = "STATE_COMPLETED") -> None:
    """End a trial."""
    api("PATCH", f"/api/v1/trials/{made.trial}", {"state": state})


def save(api: Client, made: Made, storage: Path, step: int, files: dict[str, str] | None = None) -> str:
    """Write a checkpoint's files and report it, as the client does; give its UUID."""
    name = str(uuid.uuid4())
    folder = storage / name
    resources = {}
    for path, content in {"metadata.json": f'{{"steps_completed": {step}}}', **(files or {})}.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        resources[path] = str(len(content))
    report = {
        "uuid": name,
        "taskId": made.task,
        "state": "STATE_COMPLETED",
        "metadata": {"steps_completed": step},
        "resources": resources,
    }
    api("POST", "/api/v1/checkpoints", report)
    return name


def report(api: Client, made: Made, step: int, group: str = "training", **values: object) -> None:
    """Report metrics of a step."""
    metrics = {"trialId": made.trial, "trialRunId": 1, "stepsCompleted": step, "metrics": {"avgMetrics": values}}
    api("POST", f"/api/v1/trials/{made.trial}/metrics", {"group": group, "metrics": metrics})


def refused(api: Client, method: str, path: str, body: object = None) -> tuple[int, str]:
    """The status and the message of a request that must fail."""
    with pytest.raises(Failed) as failure:
        api(method, path, body)
    return failure.value.status, failure.value.message
