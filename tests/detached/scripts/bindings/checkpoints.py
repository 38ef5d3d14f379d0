"""Checkpoints, the models that they are versions of, and the trials that work with them."""

import json
import uuid
from pathlib import Path

from determined.common import api
from determined.common.api import bindings, errors
from made import refused, start_trial


def saved(session: api.Session, trial: bindings.trialv1Trial, folder: Path, steps: int) -> str:
    """The UUID of a checkpoint with two files, which its trial has reported."""
    name = str(uuid.uuid4())
    (folder / name).mkdir(parents=True)
    for file in ("weights.bin", "notes.txt"):
        (folder / name / file).write_text("words")
    report = bindings.v1Checkpoint(
        uuid=name,
        taskId=trial.taskId,
        metadata={"steps_completed": steps, "framework": "plain"},
        resources={"weights.bin": "5", "notes.txt": "5"},
        state=bindings.checkpointv1State.COMPLETED,
        training=bindings.v1CheckpointTrainingMetadata(),
    )
    bindings.post_ReportCheckpoint(session, body=report)
    return name


def checkpoints(session: api.Session) -> None:
    folder = Path.home() / "checkpoints"
    folder.mkdir()
    config = {
        "name": "saves",
        "searcher": {"name": "single", "metric": "loss"},
        "checkpoint_storage": {"type": "directory", "container_path": str(folder)},
    }
    request = bindings.v1CreateExperimentRequest(config=json.dumps(config), unmanaged=True)
    experiment = bindings.post_CreateExperiment(session, body=request).experiment.id
    trial = start_trial(session, experiment)
    first, second = (saved(session, trial, folder, steps) for steps in (1, 2))
    found = bindings.get_GetCheckpoint(session, checkpointUuid=first).checkpoint
    assert found.metadata["framework"] == "plain" and found.training.trialId == trial.id
    order = {"sortByAttr": bindings.checkpointv1SortBy.UUID, "orderBy": bindings.v1OrderBy.ASC}
    listed = bindings.get_GetTrialCheckpoints(session, id=trial.id, **order).checkpoints
    assert [each.uuid for each in listed] == sorted([first, second])
    page = bindings.get_GetExperimentCheckpoints(session, id=experiment, limit=1)
    assert len(page.checkpoints) == 1 and page.pagination.total == 2
    found.metadata = {"steps_completed": 1, "note": "better"}
    change = bindings.v1PostCheckpointMetadataRequest(checkpoint=found)
    bindings.post_PostCheckpointMetadata(session, body=change, checkpoint_uuid=first)
    assert bindings.get_GetCheckpoint(session, checkpointUuid=first).checkpoint.metadata["note"] == "better"
    models(session, first, trial)
    remove = bindings.v1CheckpointsRemoveFilesRequest(checkpointUuids=[second], checkpointGlobs=["*.txt"])
    bindings.post_CheckpointsRemoveFiles(session, body=remove)
    partial = bindings.get_GetCheckpoint(session, checkpointUuid=second).checkpoint
    assert list(partial.resources) == ["weights.bin"], partial.resources
    assert partial.state == bindings.checkpointv1State.PARTIALLY_DELETED
    less = bindings.PatchCheckpointOptionalResources(resources={})
    emptied = bindings.v1PatchCheckpointsRequest(checkpoints=[bindings.v1PatchCheckpoint(uuid=second, resources=less)])
    bindings.patch_PatchCheckpoints(session, body=emptied)
    assert (
        bindings.get_GetCheckpoint(session, checkpointUuid=second).checkpoint.state
        == bindings.checkpointv1State.DELETED
    )
    bindings.delete_DeleteCheckpoints(session, body=bindings.v1DeleteCheckpointsRequest(checkpointUuids=[first]))
    deleted = bindings.get_GetCheckpoint(session, checkpointUuid=first).checkpoint
    assert deleted.state in (bindings.checkpointv1State.DELETED, bindings.checkpointv1State.ACTIVE)
    unknown = bindings.v1DeleteCheckpointsRequest(checkpointUuids=[str(uuid.uuid4())])
    refused(errors.NotFoundException, bindings.delete_DeleteCheckpoints, session, body=unknown)


def models(session: api.Session, checkpoint: str, trial: bindings.trialv1Trial) -> None:
    new = bindings.v1PostModelRequest(name="net", description="words", labels=["b", "a"], metadata={"k": 1})
    made = bindings.post_PostModel(session, body=new).model
    assert sorted(made.labels or []) == ["a", "b"]
    refused(errors.APIException, bindings.post_PostModel, session, body=new)
    patch = bindings.v1PatchModel(description="better", labels=["c"], metadata={"k": 2}, notes="notes")
    bindings.patch_PatchModel(session, body=patch, modelName="net")
    found = bindings.get_GetModel(session, modelName="net").model
    assert (found.description, found.labels, found.metadata, found.notes) == ("better", ["c"], {"k": 2}, "notes")
    assert bindings.get_GetModelLabels(session).labels == ["c"]
    assert [each.name for each in bindings.get_GetModels(session, labels=["c"]).models] == ["net"]
    assert bindings.get_GetModels(session, name="another").models == []
    version = bindings.v1PostModelVersionRequest(checkpointUuid=checkpoint, modelName="net", name="one", comment="x")
    number = bindings.post_PostModelVersion(session, body=version, modelName="net").modelVersion.version
    change = bindings.v1PatchModelVersion(name="uno", comment="y", notes="n", labels=["l"], metadata={"m": 1})
    bindings.patch_PatchModelVersion(session, body=change, modelName="net", modelVersionNum=number)
    one = bindings.get_GetModelVersion(session, modelName="net", modelVersionNum=number).modelVersion
    assert (one.name, one.comment, one.notes, one.labels, one.metadata) == ("uno", "y", "n", ["l"], {"m": 1})
    assert [each.version for each in bindings.get_GetModelVersions(session, modelName="net").modelVersions] == [number]

    kind = bindings.v1TrialSourceInfoType.INFERENCE
    source = bindings.v1TrialSourceInfo(
        checkpointUuid=checkpoint, trialId=trial.id, trialSourceInfoType=kind, modelId=found.id, modelVersion=number
    )
    told = bindings.post_ReportTrialSourceInfo(
        session, body=bindings.v1ReportTrialSourceInfoRequest(trialSourceInfo=source)
    )
    assert (told.trialId, told.checkpointUuid) == (trial.id, checkpoint)
    metrics = bindings.v1TrialMetrics(
        metrics=bindings.v1Metrics(avgMetrics={"acc": 0.5}), trialId=trial.id, trialRunId=1, stepsCompleted=1
    )
    report = bindings.v1ReportTrialMetricsRequest(group="inference", metrics=metrics)
    bindings.post_ReportTrialMetrics(session, body=report, metrics_trialId=trial.id)
    by_checkpoint = bindings.get_GetTrialMetricsByCheckpoint(session, checkpointUuid=checkpoint).metrics
    by_version = bindings.get_GetTrialMetricsByModelVersion(
        session, modelName="net", modelVersionNum=number, trialSourceInfoType=kind
    ).metrics
    for reports in (by_checkpoint, by_version):
        assert [(each.trialId, each.metrics["avg_metrics"]["acc"]) for each in reports] == [(trial.id, 0.5)]

    bindings.post_ArchiveModel(session, modelName="net")
    assert bindings.get_GetModel(session, modelName="net").model.archived
    refused(errors.APIException, bindings.patch_PatchModel, session, body=patch, modelName="net")
    bindings.post_UnarchiveModel(session, modelName="net")
    assert not bindings.get_GetModel(session, modelName="net").model.archived
    other = bindings.post_PostWorkspace(session, body=bindings.v1PostWorkspaceRequest(name="models")).workspace.id
    move = bindings.v1MoveModelRequest(destinationWorkspaceId=other, modelName="net")
    bindings.post_MoveModel(session, body=move, modelName="net")
    assert bindings.get_GetModel(session, modelName="net").model.workspaceId == other
    in_use = bindings.v1DeleteCheckpointsRequest(checkpointUuids=[checkpoint])
    refused(errors.APIException, bindings.delete_DeleteCheckpoints, session, body=in_use)
    kept = bindings.get_GetCheckpoint(session, checkpointUuid=checkpoint).checkpoint
    assert kept.state == bindings.checkpointv1State.COMPLETED
    bindings.delete_DeleteModelVersion(session, modelName="net", modelVersionNum=number)
    refused(errors.NotFoundException, bindings.get_GetModelVersion, session, modelName="net", modelVersionNum=number)
    bindings.delete_DeleteModel(session, modelName="net")
    refused(errors.NotFoundException, bindings.get_GetModel, session, modelName="net")
