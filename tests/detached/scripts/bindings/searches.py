"""Searches of experiments and runs, tables and charts, and what is done to runs found so."""

import base64
import json

from determined.common import api
from determined.common.api import bindings, errors
from made import Trials, file, refused


def field(column: str, operator: str, value: object, location: str = "LOCATION_TYPE_EXPERIMENT") -> dict[str, object]:
    return {"kind": "field", "columnName": column, "operator": operator, "value": value, "location": location}


def filtered(*fields: dict[str, object], conjunction: str = "and", archived: bool = False) -> str:
    group = {"kind": "group", "conjunction": conjunction, "children": list(fields)}
    return json.dumps({"filterGroup": group, "showArchived": archived})


def search_experiments(session: api.Session, made: Trials) -> None:
    def found(wanted: str | None = None, sort: str | None = None) -> list[int]:
        body = bindings.v1SearchExperimentsRequest(projectId=made.project, filter=wanted, sort=sort)
        return [each.experiment.id for each in bindings.post_SearchExperiments(session, body=body).experiments]

    first, second = made.experiments
    assert found() == [first, second]
    assert found(sort="id=desc") == [second, first]
    assert found(sort="validation.loss.min=asc") == [second, first]
    assert found(filtered(field("name", "contains", "NET-1"))) == [second]
    assert found(filtered(field("tags", "contains", "vision"))) == [second]
    assert found(filtered(field("state", "=", "COMPLETED"))) == [first, second]
    size = field("hp.size", ">", 40, "LOCATION_TYPE_HYPERPARAMETERS")
    loss = field("validation.loss.last", ">=", 0.5, "LOCATION_TYPE_VALIDATIONS")
    assert found(filtered(size)) == [second]
    assert found(filtered(loss)) == [first]
    assert found(filtered(size, loss)) == []
    assert found(filtered(size, loss, conjunction="or")) == [first, second]
    assert "invalid experiment column" in refused(errors.APIException, found, filtered(field("nothing", "=", 1)))
    assert "not JSON" in refused(errors.APIException, found, "{")
    body = bindings.v1SearchExperimentsRequest(projectId=made.project, limit=1, offset=1)
    page = bindings.post_SearchExperiments(session, body=body)
    assert [each.bestTrial.id for each in page.experiments if each.bestTrial] == made.trials[1:]
    assert page.pagination.total == 2


def search_runs(session: api.Session, made: Trials) -> None:
    def found(wanted: str | None = None, sort: str | None = None) -> list[int]:
        body = bindings.v1SearchRunsRequest(projectId=made.project, filter=wanted, sort=sort)
        return [run.id for run in bindings.post_SearchRuns(session, body=body).runs]

    first, second = made.trials
    assert found() == [first, second]
    assert found(sort="hp.size=desc") == [second, first]
    assert found(filtered(field("metadata.data.set", "=", "set-1", "LOCATION_TYPE_RUN_METADATA"))) == [second]
    assert found(filtered(field("hp.size", "=", 32, "LOCATION_TYPE_RUN_HYPERPARAMETERS"))) == [first]
    assert found(filtered(field("experimentName", "=", "net-0", "LOCATION_TYPE_RUN"))) == [first]
    assert found(filtered(field("training.loss.max", "=", 0.5, "LOCATION_TYPE_TRAINING"))) == [second]
    body = bindings.v1SearchRunsRequest(projectId=made.project)
    run = bindings.post_SearchRuns(session, body=body).runs[0]
    assert run.experiment and run.experiment.id == made.experiments[0]
    assert run.summaryMetrics and run.summaryMetrics["validation_metrics"]["loss"]["min"] == 0.5
    assert run.localId and run.localId.endswith(f"-{first}")
    values = bindings.get_GetMetadataValues(session, key="data.set", projectId=made.project).values
    assert values == ["set-0", "set-1"]


def project_tables(session: api.Session, made: Trials) -> None:
    kind = bindings.v1TableType
    columns = bindings.get_GetProjectColumns(session, id=made.project, tableType=kind.EXPERIMENT).columns
    named = {column.column: column for column in columns}
    assert named["validation.loss.min"].location == bindings.v1LocationType.VALIDATIONS
    assert named["hp.size"].type == bindings.v1ColumnType.NUMBER
    runs = {
        column.column for column in bindings.get_GetProjectColumns(session, id=made.project, tableType=kind.RUN).columns
    }
    assert {"experimentId", "training.loss.last", "hp.kind", "metadata.data.set"} <= runs
    ranges = bindings.get_GetProjectNumericMetricsRange(session, id=made.project).ranges
    assert [(each.min, each.max) for each in ranges or [] if each.metricsName == "validation.loss.min"] == [(0.25, 0.5)]


def charts(session: api.Session, made: Trials) -> None:
    experiment, trial = made.experiments[0], made.trials[0]
    [names] = bindings.get_ExpMetricNames(session, ids=made.experiments)
    assert names.validationMetrics == ["loss"] and names.searcherMetrics == ["loss"]
    kind = bindings.v1MetricType.VALIDATION
    [batches] = bindings.get_MetricBatches(session, experimentId=experiment, metricName="loss", metricType=kind)
    assert batches.batches == [10, 20]
    [sample] = bindings.get_TrialsSample(session, experimentId=experiment, metricName="loss", group="training")
    assert [(each.trialId, [point.batches for point in each.data]) for each in sample.trials] == [(trial, [10, 20])]
    assert sample.promotedTrials == [trial]
    [shot] = bindings.get_TrialsSnapshot(
        session, experimentId=experiment, metricName="loss", metricType=kind, batchesProcessed=19, batchesMargin=2
    )
    assert [(each.metric, each.batchesProcessed) for each in shot.trials] == [(0.5, 20)]
    refused(errors.APIException, bindings.get_MetricBatches, session, experimentId=experiment, metricName="loss")
    history = bindings.get_GetExperimentValidationHistory(session, experimentId=experiment).validationHistory
    assert [entry.searcherMetric for entry in history or []] == [1.0, 0.5]


def run_actions(session: api.Session, made: Trials) -> None:
    first, second = made.trials
    other = bindings.v1PostProjectRequest(name="other", workspaceId=made.workspace)
    elsewhere = bindings.post_PostProject(session, body=other, workspaceId=made.workspace).project.id

    def archived() -> list[bool]:
        body = bindings.v1SearchRunsRequest(projectId=made.project)
        return [run.archived for run in bindings.post_SearchRuns(session, body=body).runs]

    put_away = bindings.v1ArchiveRunsRequest(projectId=made.project, runIds=[first, 999])
    results = bindings.post_ArchiveRuns(session, body=put_away).results
    assert [(each.id, bool(each.error)) for each in results] == [(first, False), (999, True)]
    assert archived() == [True, False]
    back = bindings.v1UnarchiveRunsRequest(projectId=made.project, runIds=[], filter=filtered(archived=True))
    assert [each.error for each in bindings.post_UnarchiveRuns(session, body=back).results] == ["", ""]
    assert archived() == [False, False]
    # They have ended: there is nothing to kill, to pause or to resume.
    killed = bindings.post_KillRuns(session, body=bindings.v1KillRunsRequest(projectId=made.project, runIds=[first]))
    assert [each.error for each in killed.results] == [""]
    paused = bindings.post_PauseRuns(session, body=bindings.v1PauseRunsRequest(projectId=made.project, runIds=[first]))
    resumed = bindings.post_ResumeRuns(
        session, body=bindings.v1ResumeRunsRequest(projectId=made.project, runIds=[first])
    )
    assert all("has ended" in each.error for each in [*paused.results, *resumed.results])
    move = bindings.v1MoveRunsRequest(
        sourceProjectId=made.project, destinationProjectId=elsewhere, runIds=[second], skipMultitrial=True
    )
    assert [(each.id, each.error) for each in bindings.post_MoveRuns(session, body=move).results] == [(second, "")]
    assert bindings.get_GetExperiment(session, experimentId=made.experiments[1]).experiment.projectId == elsewhere
    delete = bindings.v1DeleteRunsRequest(projectId=elsewhere, runIds=[second])
    assert [(each.id, each.error) for each in bindings.post_DeleteRuns(session, body=delete).results] == [(second, "")]
    refused(errors.NotFoundException, bindings.get_GetTrial, session, trialId=second)


def code_of_an_experiment(session: api.Session) -> None:
    files = [file("train.py", "print(1)\n"), file("pkg/a.py", "x = 1\n")]
    config = {
        "name": "code",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "x"},
        "checkpoint_storage": {"type": "directory", "container_path": "/tmp/none"},
    }
    request = bindings.v1CreateExperimentRequest(config=json.dumps(config), modelDefinition=files, activate=False)
    experiment = bindings.post_CreateExperiment(session, body=request).experiment.id
    tree = bindings.get_GetModelDefTree(session, experimentId=experiment).files or []
    assert [(node.name, node.isDir, [inner.path for inner in node.files or []]) for node in tree] == [
        ("pkg", True, ["pkg/a.py"]),
        ("train.py", False, []),
    ]
    body = bindings.v1GetModelDefFileRequest(path="pkg/a.py")
    content = bindings.post_GetModelDefFile(session, body=body, experimentId=experiment).file
    assert content is not None and base64.b64decode(content) == b"x = 1\n"
    missing = bindings.v1GetModelDefFileRequest(path="../etc/passwd")
    refused(errors.NotFoundException, bindings.post_GetModelDefFile, session, body=missing, experimentId=experiment)
    bindings.post_KillExperiment(session, id=experiment)
