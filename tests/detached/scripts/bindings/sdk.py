"""Calls every public method and function of Determined's SDK against a master with one agent in the pool `fast`.

Prints, as its last line, how many there are and which no call was made of.
"""

import inspect
import json
import sys
import typing
import warnings
from pathlib import Path

import functions
from checkpoints import saved
from determined.common.api import bindings, errors
from determined.errors import EnterpriseOnlyError
from determined.experimental import client
from made import refused
from tasks import POOL, wait_for

CLASSES = (
    client.Determined,
    client.Experiment,
    client.Trial,
    client.Checkpoint,
    client.Model,
    client.ModelVersion,
    client.Project,
    client.Workspace,
    client.ResourcePool,
    client.User,
)
CALLED: set[str] = set()


def count_calls() -> set[str]:
    """Let every public method note that it was called; all of their names."""
    names = set()
    for kind in CLASSES:
        for name, method in list(vars(kind).items()):
            if not name.startswith("_") and inspect.isfunction(method):
                names.add(f"{kind.__name__}.{name}")
                setattr(kind, name, counted(f"{kind.__name__}.{name}", method))
    return names


def counted(name: str, method: typing.Callable[..., typing.Any]) -> typing.Callable[..., typing.Any]:
    def call(*words: object, **named: object) -> object:
        CALLED.add(name)
        return method(*words, **named)

    return call


def people(det: client.Determined) -> None:
    assert det.whoami().username == det.get_session_username() == "admin"
    user = det.create_user("eve", admin=False, password="Secret12345")
    assert det.get_user_by_name("eve").user_id == user.user_id
    user.rename("eva")
    user.change_display_name("Eva")
    user.change_password("Another12345")
    user.link_with_agent(agent_uid=1200, agent_gid=1300, agent_user="eva", agent_group="crew")
    user.deactivate()
    assert user.user_id and not det.get_user_by_id(user.user_id).active
    user.activate()
    user.reload()
    assert (user.username, user.display_name, user.active) == ("eva", "Eva", True)
    assert user.agent_gid == 1300 and "eva" in [each.username for each in det.list_users()]


def places(det: client.Determined, name: str) -> client.Project:
    workspace = det.create_workspace(name)
    assert workspace.name in [each.name for each in det.list_workspaces()]
    workspace.reload()
    project = workspace.create_project("one", "words")
    project.set_name("uno")
    project.set_description("other")
    project.set_key("UNO")
    project.add_note("first", "words")
    project.archive()
    project.unarchive()
    project.reload()
    found = det.get_workspace(name).get_project("uno")
    assert (found.description, found.key, found.archived) == ("other", "UNO", False)
    assert [note["name"] for note in found.notes] == ["first"]
    project.remove_note("first")
    workspace.create_project("two")
    workspace.delete_project("two")
    assert [each.name for each in workspace.list_projects()] == ["uno"]
    det.create_workspace("gone")
    det.delete_workspace("gone")
    assert "gone" not in [each.name for each in det.list_workspaces()]
    return project


def pools(det: client.Determined) -> None:
    det.create_workspace("other")
    [pool] = [each for each in det.get_workspace("sdk").list_pools() if each.name == "fast"]

    def usable() -> list[bool]:
        found = (det.get_workspace(name).list_pools() for name in ("sdk", "other"))
        return ["fast" in [each.name for each in pools] for pools in found]

    pool.add_bindings(["sdk"])
    # The package gives as many names as there are workspaces, but none of them.
    assert usable() == [True, False] and len(pool.list_workspaces()) == 1
    pool.replace_bindings(["other"])
    assert usable() == [False, True]
    pool.remove_bindings(["other"])
    assert usable() == [True, True] and pool.list_workspaces() == []


def experiments(
    det: client.Determined, project: client.Project, folder: Path
) -> tuple[client.Experiment, client.Trial]:
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text("import time\nprint('it runs', flush=True)\ntime.sleep(600)\n")
    config = {
        "name": "sdk",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss", "smaller_is_better": True},
        "resources": {**POOL, "slots_per_trial": 1},
        "checkpoint_storage": {"type": "directory", "container_path": str(folder / "checkpoints")},
        "max_restarts": 0,
    }
    experiment = det.create_experiment(config, code, project_id=project.id)
    trial = experiment.await_first_trial()
    wait_for(lambda: any("it runs" in line for line in trial.iter_logs()), "the trial to run")
    assert any("it runs" in line for line in trial.logs())
    experiment.pause()
    experiment.activate()
    experiment.set_name("better")
    experiment.set_description("words")
    experiment.set_notes("notes")
    experiment.set_labels({"a", "b"})
    experiment.add_label("c")
    experiment.remove_label("a")
    found = det.get_experiment(experiment.id)
    assert (found.name, found.description, found.notes, found.labels) == ("better", "words", "notes", {"b", "c"})
    assert Path(experiment.download_code(str(folder))).stat().st_size > 0
    assert [each.id for each in project.list_experiments()] == [experiment.id]
    assert [each.id for each in det.list_experiments(project_id=project.id)] == [experiment.id]
    for trials in (experiment.get_trials(), experiment.list_trials(), list(experiment.iter_trials())):
        assert [each.id for each in trials] == [trial.id]
    for refusing in (experiment.get_pachyderm_config, experiment.top_checkpoint):
        refused(Exception, refusing)
    return experiment, trial


def metrics(det: client.Determined, trial: client.Trial) -> None:
    session = det._session
    for step, loss in ((1, 0.5), (2, 0.25)):
        for group in ("training", "validation"):
            values = bindings.v1Metrics(avgMetrics={"loss": loss})
            report = bindings.v1TrialMetrics(metrics=values, trialId=trial.id, trialRunId=1, stepsCompleted=step)
            body = bindings.v1ReportTrialMetricsRequest(group=group, metrics=report)
            bindings.post_ReportTrialMetrics(session, body=body, metrics_trialId=trial.id)
    streams: list[typing.Iterable[client.TrialMetrics]] = [
        trial.iter_metrics("validation"),
        trial.stream_metrics("validation"),
        trial.stream_training_metrics(),
        trial.stream_validation_metrics(),
        det.iter_trials_metrics([trial.id], "validation"),
        det.stream_trials_metrics([trial.id], "validation"),
        det.stream_trials_training_metrics([trial.id]),
        det.stream_trials_validation_metrics([trial.id]),
    ]
    for stream in streams:
        assert [report.steps_completed for report in stream] == [1, 2], stream


def checkpoints(det: client.Determined, experiment: client.Experiment, trial: client.Trial, folder: Path) -> str:
    shown = bindings.get_GetTrial(det._session, trialId=trial.id).trial
    first, second = (saved(det._session, shown, folder / "checkpoints", step) for step in (1, 2))
    assert {each.uuid for each in trial.list_checkpoints()} == {first, second}
    assert {each.uuid for each in trial.get_checkpoints()} == {first, second}
    assert {each.uuid for each in experiment.list_checkpoints()} == {first, second}
    assert experiment.top_checkpoint().uuid == trial.top_checkpoint().uuid == second
    assert [each.uuid for each in experiment.top_n_checkpoints(1)] == [second]
    assert trial.select_checkpoint(latest=True).uuid == second
    checkpoint = det.get_checkpoint(first)
    checkpoint.add_metadata({"note": "words", "other": 1})
    checkpoint.remove_metadata(["other"])
    checkpoint.reload()
    assert checkpoint.metadata and checkpoint.metadata["note"] == "words" and "other" not in checkpoint.metadata
    path = Path(checkpoint.download(str(folder / "downloaded")))
    assert (path / "weights.bin").read_text() == "words"
    checkpoint.write_metadata_file(str(folder / "metadata.json"))
    assert json.loads((folder / "metadata.json").read_text())["note"] == "words"
    refused(Exception, checkpoint.get_pachyderm_commit)
    assert list(checkpoint.get_metrics()) == []
    other = det.get_checkpoint(second)
    other.remove_files(["*.txt"])
    other.reload()
    assert list(other.resources or {}) == ["weights.bin"]
    other.delete()
    wait_for(lambda: det.get_checkpoint(second).state == client.CheckpointState.DELETED, "the checkpoint to go")
    return first


def models(det: client.Determined, checkpoint: str) -> None:
    model = det.create_model("net", description="words", metadata={"a": 1}, labels=["x"])
    assert det.get_model("net").model_id == det.get_model_by_id(model.model_id).model_id == model.model_id
    model.add_metadata({"b": 2})
    model.remove_metadata(["a"])
    model.set_labels(["y"])
    model.set_description("other")
    model.archive()
    model.unarchive()
    model.move_to_workspace("sdk")
    model.reload()
    found = det.get_model("net")
    assert (found.metadata, found.labels, found.description, found.archived) == ({"b": 2}, ["y"], "other", False)
    assert [each.name for each in det.list_models()] == [each.name for each in det.get_models()] == ["net"]
    assert det.get_model_labels() == ["y"]
    version = model.register_version(checkpoint)
    version.set_name("one")
    version.set_notes("notes")
    version.reload()
    assert (version.name, version.notes) == ("one", "notes")
    latest = model.get_version()
    assert latest and latest.model_version == version.model_version
    assert len(model.get_versions()) == len(model.list_versions()) == 1
    assert list(version.get_metrics()) == list(version.iter_metrics()) == []
    version.delete()
    assert model.list_versions() == []
    model.delete()
    refused(errors.NotFoundException, det.get_model, "net")


def endings(det: client.Determined, experiment: client.Experiment, trial: client.Trial) -> None:
    assert det.get_trial(trial.id).get_experiment().id == experiment.id
    trial.reload()
    trial.kill()
    assert experiment.wait(interval=0.1) == client.ExperimentState.CANCELED
    experiment.kill()
    experiment.cancel()
    experiment.archive()
    experiment.reload()
    assert experiment.archived
    experiment.unarchive()
    experiment.move_to_project("Uncategorized", "Uncategorized")
    experiment.reload()
    assert experiment.project_id == 1
    experiment.delete_tensorboard_files()
    experiment.delete()

    def is_gone() -> bool:
        return experiment.id not in [each.id for each in det.list_experiments()]

    wait_for(is_gone, "the experiment to go")


def main(address: str) -> None:
    warnings.simplefilter("ignore")
    folder = Path.home() / "sdk"
    (folder / "checkpoints").mkdir(parents=True)
    names = count_calls() | functions.count_calls(CALLED)
    det = client.Determined(address, "admin", "")
    people(det)
    project = places(det, "sdk")
    pools(det)
    experiment, trial = experiments(det, project, folder)
    metrics(det, trial)
    checkpoint = checkpoints(det, experiment, trial, folder)
    models(det, checkpoint)
    functions.call_all(det, address, trial, checkpoint, folder)
    endings(det, experiment, trial)
    # They belong to Determined's enterprise edition.
    refused(EnterpriseOnlyError, det.list_oauth_clients)
    refused(EnterpriseOnlyError, det.add_oauth_client, "example.org", "name")
    refused(EnterpriseOnlyError, det.remove_oauth_client, "none")
    det.logout()
    refused(errors.UnauthenticatedException, det.whoami)
    print(json.dumps({"all": len(names), "missing": sorted(names - CALLED)}))


if __name__ == "__main__":
    main(sys.argv[1])
