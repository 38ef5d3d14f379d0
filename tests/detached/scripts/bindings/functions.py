"""Calls every function of the module `determined.experimental.client`, which speak for whoever has logged in there."""

import inspect
import typing
from pathlib import Path

from determined.common.api import bindings, errors
from determined.errors import EnterpriseOnlyError
from determined.experimental import client
from made import refused
from tasks import POOL


def public() -> set[str]:
    """The names of all of them."""
    found = inspect.getmembers(client, inspect.isfunction)
    return {name for name, each in found if not name.startswith("_") and each.__module__ == client.__name__}


def count_calls(called: set[str]) -> set[str]:
    """Let every function note that it was called; all of their names."""

    def counted(name: str, function: typing.Callable[..., typing.Any]) -> typing.Callable[..., typing.Any]:
        def call(*words: object, **named: object) -> object:
            called.add(f"client.{name}")
            return function(*words, **named)

        return call

    names = public()
    for name in names:
        setattr(client, name, counted(name, getattr(client, name)))
    return {f"client.{name}" for name in names}


def people_and_places() -> None:
    assert client.whoami().username == client.get_session_username() == "boss"
    user = client.create_user("mod", admin=False, password="Secret12345")
    assert user.user_id and client.get_user_by_id(user.user_id).username == "mod"
    assert client.get_user_by_name("mod").user_id == user.user_id
    assert "mod" in [each.username for each in client.list_users()]
    workspace = client.create_workspace("module")
    assert client.get_workspace("module").id == workspace.id
    assert "module" in [each.name for each in client.list_workspaces()]
    client.delete_workspace("module")
    assert "module" not in [each.name for each in client.list_workspaces()]


def work(trial: client.Trial, checkpoint: str, folder: Path) -> None:
    config = {
        "entrypoint": "true",
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {**POOL, "slots_per_trial": 0},
        "checkpoint_storage": {"type": "directory", "container_path": str(folder / "checkpoints")},
    }
    made = client.create_experiment(config, folder / "code")
    assert made.wait(interval=0.1) == client.ExperimentState.COMPLETED
    assert client.get_experiment(made.id).id == made.id
    assert made.id in [each.id for each in client.list_experiments()]
    made.delete()
    assert client.get_trial(trial.id).id == trial.id
    assert client.get_checkpoint(checkpoint).uuid == checkpoint
    streams: list[typing.Iterable[client.TrialMetrics]] = [
        client.iter_trials_metrics([trial.id], "validation"),
        client.stream_trials_metrics([trial.id], "validation"),
        client.stream_trials_training_metrics([trial.id]),
        client.stream_trials_validation_metrics([trial.id]),
    ]
    for stream in streams:
        assert [report.steps_completed for report in stream] == [1, 2], stream


def models() -> None:
    model = client.create_model("module")
    model.set_labels(["m"])
    assert client.get_model("module").model_id == client.get_model_by_id(model.model_id).model_id == model.model_id
    assert [each.name for each in client.list_models()] == [each.name for each in client.get_models()] == ["module"]
    assert client.get_model_labels() == ["m"]
    model.delete()


def call_all(det: client.Determined, address: str, trial: client.Trial, checkpoint: str, folder: Path) -> None:
    """Log in as an administrator with a login of their own, call each function, and log out."""
    det.create_user("boss", admin=True, password="Secret12345")
    client.login(address, "boss", "Secret12345")
    people_and_places()
    work(trial, checkpoint, folder)
    models()
    # They belong to Determined's enterprise edition.
    refused(EnterpriseOnlyError, client.list_oauth_clients)
    refused(EnterpriseOnlyError, client.add_oauth_client, "example.org", "name")
    refused(EnterpriseOnlyError, client.remove_oauth_client, "none")
    # Functions that are called after it log in again by themselves.
    session = client._get_singleton_session()
    client.logout()
    refused(errors.UnauthenticatedException, bindings.get_GetMe, session)
