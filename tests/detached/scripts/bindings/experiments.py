"""Experiments one by one and several at once: listed, changed, moved, archived, paused, ended, deleted."""

import base64
import io
import json
import tarfile
import typing

from determined.common import api
from determined.common.api import bindings, errors
from made import Trials, file, refused

State = bindings.experimentv1State


def managed(session: api.Session, name: str, project: int = 1, **more: typing.Any) -> int:  # noqa: ANN401
    """An experiment that is paused before its first step."""
    config = {
        "name": name,
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "x"},
        "checkpoint_storage": {"type": "directory", "container_path": "/tmp/none"},
        **more,
    }
    files = [file("train.py", "print(1)\n")]
    request = bindings.v1CreateExperimentRequest(
        config=json.dumps(config), modelDefinition=files, activate=False, projectId=project
    )
    return bindings.post_CreateExperiment(session, body=request).experiment.id


def state(session: api.Session, experiment: int) -> State:
    return bindings.get_GetExperiment(session, experimentId=experiment).experiment.state


def listed(session: api.Session, made: Trials) -> None:
    first, second = made.experiments

    def found(**wanted: typing.Any) -> list[int]:  # noqa: ANN401
        order = {"sortBy": bindings.v1GetExperimentsRequestSortBy.ID, "orderBy": bindings.v1OrderBy.ASC}
        answer = bindings.get_GetExperiments(session, **{**order, "projectId": made.project, **wanted})
        return [each.id for each in answer.experiments]

    assert found() == [first, second]
    assert found(orderBy=bindings.v1OrderBy.DESC) == [second, first]
    assert found(name="NET-1") == [second] and found(labels=["vision"]) == [second]
    assert found(states=[State.COMPLETED]) == [first, second] and found(states=[State.ERROR]) == []
    assert found(experimentIdFilter_gt=first) == [second] and found(experimentIdFilter_gte=first) == [first, second]
    assert found(experimentIdFilter_lt=second) == [first] and found(experimentIdFilter_lte=second) == [first, second]
    assert found(experimentIdFilter_incl=[second, 999]) == [second]
    assert found(experimentIdFilter_notIn=[second]) == [first]
    [shown] = bindings.get_GetExperiments(session, experimentIdFilter_incl=[first], showTrialData=True).experiments
    assert shown.bestTrialSearcherMetric == 0.5
    for sort in bindings.v1GetExperimentsRequestSortBy:
        assert sorted(found(sortBy=sort)) == [first, second], sort


def changed(session: api.Session, made: Trials) -> None:
    experiment = managed(session, "one")

    def shown() -> bindings.v1Experiment:
        return bindings.get_GetExperiment(session, experimentId=experiment).experiment

    change = bindings.v1PatchExperiment(
        id=experiment,
        name="uno",
        description="words",
        notes="notes",
        labels=["a"],
        resources=bindings.PatchExperimentPatchResources(weight=2.0, priority=40, maxSlots=3),
        checkpointStorage=bindings.PatchExperimentPatchCheckpointStorage(
            saveExperimentBest=1, saveTrialBest=2, saveTrialLatest=3
        ),
    )
    bindings.patch_PatchExperiment(session, body=change, experiment_id=experiment)
    found = shown()
    assert (found.name, found.description, found.notes, found.labels) == ("uno", "words", "notes", ["a"])
    resources, storage = found.config["resources"], found.config["checkpoint_storage"]
    assert (resources["weight"], resources["priority"], resources["max_slots"]) == (2.0, 40, 3)
    assert (storage["save_experiment_best"], storage["save_trial_best"], storage["save_trial_latest"]) == (1, 2, 3)
    assert bindings.put_PutExperimentLabel(session, experimentId=experiment, label="b").labels == ["a", "b"]
    assert bindings.delete_DeleteExperimentLabel(session, experimentId=experiment, label="a").labels == ["b"]
    assert shown().labels == ["b"]
    code = base64.b64decode(bindings.get_GetModelDef(session, experimentId=experiment).b64Tgz)
    with tarfile.open(fileobj=io.BytesIO(code)) as archive:
        assert archive.getnames() == ["train.py"]
    assert shown().state == State.PAUSED
    bindings.post_ActivateExperiment(session, id=experiment)
    assert shown().state not in (State.PAUSED, State.ERROR)
    bindings.post_PauseExperiment(session, id=experiment)
    assert shown().state == State.PAUSED
    # What may still run is not deleted: as with Determined, it is ended first.
    said = refused(errors.APIException, bindings.delete_DeleteExperiment, session, experimentId=experiment)
    assert "not at its end" in said, said
    refused(errors.APIException, bindings.post_ArchiveExperiment, session, id=experiment)
    bindings.post_CancelExperiment(session, id=experiment)
    assert shown().state == State.CANCELED
    bindings.post_ArchiveExperiment(session, id=experiment)
    assert shown().archived
    bindings.post_UnarchiveExperiment(session, id=experiment)
    assert not shown().archived
    move = bindings.v1MoveExperimentRequest(destinationProjectId=made.project, experimentId=experiment)
    bindings.post_MoveExperiment(session, body=move, experimentId=experiment)
    assert shown().projectId == made.project
    again = bindings.v1ContinueExperimentRequest(id=experiment, overrideConfig="max_restarts: 2")
    assert bindings.post_ContinueExperiment(session, body=again).experiment.config["max_restarts"] == 2
    assert shown().state not in (State.CANCELED, State.ERROR)
    [trial] = bindings.get_GetExperimentTrials(session, experimentId=experiment).trials
    bindings.post_KillTrial(session, id=trial.id)
    assert shown().state == State.CANCELED
    bindings.delete_DeleteTensorboardFiles(session, experimentId=experiment)
    bindings.delete_DeleteExperiment(session, experimentId=experiment)
    refused(errors.NotFoundException, bindings.get_GetExperiment, session, experimentId=experiment)


def several(session: api.Session) -> None:
    workspace = bindings.post_PostWorkspace(session, body=bindings.v1PostWorkspaceRequest(name="many")).workspace.id
    source, target = (
        bindings.post_PostProject(
            session, body=bindings.v1PostProjectRequest(name=name, workspaceId=workspace), workspaceId=workspace
        ).project.id
        for name in ("from", "to")
    )
    one, two = (managed(session, name, source) for name in ("a", "b"))

    def done(function: typing.Callable[..., typing.Any], kind: type, ids: list[int], **more: typing.Any) -> list[bool]:  # noqa: ANN401
        body = kind(experimentIds=ids, projectId=source, **more)
        return [not each.error for each in function(session, body=body, projectId=source).results]

    def states() -> list[State]:
        return [state(session, each) for each in (one, two)]

    assert done(bindings.post_ActivateExperiments, bindings.v1ActivateExperimentsRequest, [one, 999]) == [True, False]
    assert [each == State.PAUSED for each in states()] == [False, True]
    by_name = bindings.v1BulkExperimentFilters(name="a")
    assert done(bindings.post_PauseExperiments, bindings.v1PauseExperimentsRequest, [], filters=by_name) == [True]
    assert states() == [State.PAUSED, State.PAUSED]
    assert done(bindings.post_CancelExperiments, bindings.v1CancelExperimentsRequest, [one]) == [True]
    assert done(bindings.post_KillExperiments, bindings.v1KillExperimentsRequest, [two]) == [True]
    assert states() == [State.CANCELED, State.CANCELED]
    assert done(bindings.post_ArchiveExperiments, bindings.v1ArchiveExperimentsRequest, [one, two]) == [True, True]
    put_away = bindings.v1BulkExperimentFilters(archived=True)
    back = done(bindings.post_UnarchiveExperiments, bindings.v1UnarchiveExperimentsRequest, [], filters=put_away)
    assert back == [True, True]
    assert not bindings.get_GetExperiment(session, experimentId=two).experiment.archived
    moved = done(
        bindings.post_MoveExperiments, bindings.v1MoveExperimentsRequest, [one, two], destinationProjectId=target
    )
    assert moved == [True, True]
    assert bindings.get_GetProject(session, id=target).project.numExperiments == 2


def preview(session: api.Session) -> None:
    config = {
        "name": "search",
        "entrypoint": "true",
        "searcher": {"name": "random", "metric": "x", "max_trials": 4},
        "hyperparameters": {"size": {"type": "int", "minval": 1, "maxval": 9}},
        "checkpoint_storage": {"type": "directory", "container_path": "/tmp/none"},
    }
    summary = bindings.post_PreviewHPSearch(
        session, body=bindings.v1PreviewHPSearchRequest(config=config, seed=1)
    ).summary
    assert summary and sum(each.count for each in summary.trials or []) == 4, summary
