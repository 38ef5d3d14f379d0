"""Calls functions of Determined's bindings against a master, each with what it is for, and reads back what they change.

Prints, as its last line, how many functions there are and which were called.
"""

import base64
import json
import sys
import typing

from determined.common import api
from determined.common.api import authentication, bindings, errors

VERBS = ("get_", "post_", "put_", "patch_", "delete_")
CALLED: set[str] = set()


def count_calls() -> int:
    """Let every function note that it was called and answered; how many there are."""
    names = [name for name in vars(bindings) if name.startswith(VERBS)]
    for name in names:
        setattr(bindings, name, counted(name, getattr(bindings, name)))
    return len(names)


def counted(name: str, function: typing.Callable[..., typing.Any]) -> typing.Callable[..., typing.Any]:
    def call(*words: object, **named: object) -> object:
        answer = function(*words, **named)
        if hasattr(answer, "__next__"):
            answer = list(answer)
        CALLED.add(name)
        return answer

    return call


def refused(kind: type[Exception], function: typing.Callable[..., object], *words: object, **named: object) -> str:
    """What is said to a call that must fail."""
    try:
        function(*words, **named)
    except kind as error:
        return str(error)
    raise AssertionError(f"{function} was not refused")


def field(column: str, operator: str, value: object, location: str = "LOCATION_TYPE_EXPERIMENT") -> dict[str, object]:
    return {"kind": "field", "columnName": column, "operator": operator, "value": value, "location": location}


def filtered(*fields: dict[str, object], conjunction: str = "and", archived: bool = False) -> str:
    group = {"kind": "group", "conjunction": conjunction, "children": list(fields)}
    return json.dumps({"filterGroup": group, "showArchived": archived})


class Trials(typing.NamedTuple):
    """Two experiments in a project of their own, each with one trial that has ended."""

    workspace: int
    project: int
    experiments: list[int]
    trials: list[int]


def make_trials(session: api.Session) -> Trials:
    workspace = bindings.post_PostWorkspace(session, body=bindings.v1PostWorkspaceRequest(name="lab")).workspace.id
    body = bindings.v1PostProjectRequest(name="thesis", workspaceId=workspace)
    project = bindings.post_PostProject(session, body=body, workspaceId=workspace).project.id
    experiments, trials = [], []
    for number, loss in enumerate((0.5, 0.25)):
        config = {
            "name": f"net-{number}",
            "labels": ["vision"] if number else [],
            "hyperparameters": {"size": {"type": "const", "val": 32 * (number + 1)}, "kind": "plain"},
            "searcher": {"name": "single", "metric": "loss", "smaller_is_better": True},
        }
        request = bindings.v1CreateExperimentRequest(config=json.dumps(config), unmanaged=True, projectId=project)
        experiment = bindings.post_CreateExperiment(session, body=request).experiment.id
        hparams = {"size": 32 * (number + 1), "kind": "plain"}
        made = bindings.v1CreateTrialRequest(experimentId=experiment, hparams=hparams, unmanaged=True)
        trial = bindings.post_CreateTrial(session, body=made).trial.id
        start = bindings.v1StartTrialRequest(trialId=trial, resume=False)
        bindings.post_StartTrial(session, body=start, trialId=trial)
        for step, value in ((10, loss * 2), (20, loss)):
            for group in ("training", "validation"):
                metrics = bindings.v1Metrics(avgMetrics={"loss": value})
                report = bindings.v1TrialMetrics(metrics=metrics, trialId=trial, trialRunId=1, stepsCompleted=step)
                wrapped = bindings.v1ReportTrialMetricsRequest(group=group, metrics=report)
                bindings.post_ReportTrialMetrics(session, body=wrapped, metrics_trialId=trial)
        metadata = bindings.v1PostRunMetadataRequest(metadata={"data": {"set": f"set-{number}"}}, runId=trial)
        bindings.post_PostRunMetadata(session, body=metadata, runId=trial)
        change = bindings.v1PatchTrialRequest(trialId=trial, state=bindings.trialv1State.COMPLETED)
        bindings.patch_PatchTrial(session, body=change, trialId=trial)
        experiments.append(experiment)
        trials.append(trial)
    return Trials(workspace, project, experiments, trials)


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
    # They have ended, and nobody but their own script could pause them.
    killed = bindings.post_KillRuns(session, body=bindings.v1KillRunsRequest(projectId=made.project, runIds=[first]))
    assert [each.error for each in killed.results] == [""]
    paused = bindings.post_PauseRuns(session, body=bindings.v1PauseRunsRequest(projectId=made.project, runIds=[first]))
    resumed = bindings.post_ResumeRuns(
        session, body=bindings.v1ResumeRunsRequest(projectId=made.project, runIds=[first])
    )
    assert all("runs elsewhere" in each.error for each in [*paused.results, *resumed.results])
    move = bindings.v1MoveRunsRequest(
        sourceProjectId=made.project, destinationProjectId=elsewhere, runIds=[second], skipMultitrial=True
    )
    assert [(each.id, each.error) for each in bindings.post_MoveRuns(session, body=move).results] == [(second, "")]
    assert bindings.get_GetExperiment(session, experimentId=made.experiments[1]).experiment.projectId == elsewhere
    delete = bindings.v1DeleteRunsRequest(projectId=elsewhere, runIds=[second])
    assert [(each.id, each.error) for each in bindings.post_DeleteRuns(session, body=delete).results] == [(second, "")]
    refused(errors.NotFoundException, bindings.get_GetTrial, session, trialId=second)


def code_of_an_experiment(session: api.Session) -> None:
    files = [
        bindings.v1File(
            content=base64.b64encode(text.encode()).decode(),
            gid=0,
            mode=0o644,
            mtime="1700000000",
            path=path,
            type=48,
            uid=0,
        )
        for path, text in (("train.py", "print(1)\n"), ("pkg/a.py", "x = 1\n"))
    ]
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


def projects(session: api.Session, admin: api.Session, made: Trials) -> None:
    note = bindings.v1Note(name="first", contents="words")
    assert bindings.post_AddProjectNote(session, body=note, projectId=made.project).notes[0].contents == "words"
    whole = bindings.v1PutProjectNotesRequest(notes=[note, note], projectId=made.project)
    assert len(bindings.put_PutProjectNotes(session, body=whole, projectId=made.project).notes) == 2
    found = bindings.get_GetProject(session, id=made.project).project
    assert [each.name for each in found.notes] == ["first", "first"]
    assert bindings.get_GetProjectByKey(session, key=found.key).project.id == made.project
    refused(errors.NotFoundException, bindings.get_GetProjectByKey, session, key="NONE")
    kinds = {"activityType": bindings.v1ActivityType.GET, "entityType": bindings.v1EntityType.PROJECT}
    bindings.post_PostUserActivity(session, body=bindings.v1PostUserActivityRequest(entityId=made.project, **kinds))
    seen = bindings.get_GetProjectsByUserActivity(session, limit=5).projects or []
    assert [project.id for project in seen] == [made.project]
    bindings.post_PinWorkspace(session, id=made.workspace)
    assert [each.id for each in bindings.get_GetWorkspaces(session, pinned=True).workspaces] == [made.workspace]
    assert not bindings.get_GetWorkspace(admin, id=made.workspace).workspace.pinned
    bindings.post_UnpinWorkspace(session, id=made.workspace)
    assert not bindings.get_GetWorkspace(session, id=made.workspace).workspace.pinned
    other = bindings.post_PostWorkspace(session, body=bindings.v1PostWorkspaceRequest(name="away")).workspace.id
    move = bindings.v1MoveProjectRequest(destinationWorkspaceId=other, projectId=made.project)
    bindings.post_MoveProject(session, body=move, projectId=made.project)
    assert bindings.get_GetProject(session, id=made.project).project.workspaceId == other
    back = bindings.v1MoveProjectRequest(destinationWorkspaceId=made.workspace, projectId=made.project)
    bindings.post_MoveProject(session, body=back, projectId=made.project)


def settings(session: api.Session, admin: api.Session) -> None:
    setting = bindings.v1UserWebSetting(key="theme", value="dark", storagePath="shell")
    bindings.post_PostUserSetting(session, body=bindings.v1PostUserSettingRequest(settings=[setting]))
    assert [each.to_json() for each in bindings.get_GetUserSetting(session).settings] == [setting.to_json()]
    assert bindings.get_GetUserSetting(admin).settings == []
    bindings.post_ResetUserSetting(session)
    assert bindings.get_GetUserSetting(session).settings == []


def messages(session: api.Session, admin: api.Session) -> None:
    body = bindings.v1SetClusterMessageRequest(
        message="closed on Friday", startTime="2026-01-01T00:00:00Z", duration="5200w"
    )
    refused(errors.ForbiddenException, bindings.put_SetClusterMessage, session, body=body)
    bindings.put_SetClusterMessage(admin, body=body)
    found = bindings.get_GetClusterMessage(session).clusterMessage
    assert found and found.message == "closed on Friday" and found.endTime
    shown = bindings.get_GetMaster(session).clusterMessage
    assert shown and shown.message == found.message
    bindings.delete_DeleteClusterMessage(admin)
    assert bindings.get_GetClusterMessage(session).clusterMessage is None
    past = bindings.v1SetClusterMessageRequest(
        message="x", startTime="2026-01-01T00:00:00Z", endTime="2026-01-02T00:00:00Z"
    )
    refused(errors.APIException, bindings.put_SetClusterMessage, admin, body=past)


def tokens(session: api.Session, admin: api.Session, address: str) -> None:
    user = bindings.get_GetMe(session).user
    administrator = bindings.get_GetMe(admin).user
    assert user.id and administrator.id
    body = bindings.v1PostAccessTokenRequest(userId=user.id, lifespan="48h", description="for a job")
    made = bindings.post_PostAccessToken(session, body=body)
    assert made.token and made.tokenId
    program = api.Session(address, user.username, made.token, None)
    assert bindings.get_GetMe(program).user.username == user.username
    [found] = bindings.get_GetAccessTokens(session).tokenInfo
    assert found.id == made.tokenId and found.description == "for a job" and not found.revoked and found.expiry
    assert found.tokenType == bindings.v1TokenType.ACCESS_TOKEN
    others = bindings.v1PostAccessTokenRequest(userId=administrator.id)
    refused(errors.ForbiddenException, bindings.post_PostAccessToken, session, body=others)
    hidden = bindings.post_PostAccessToken(
        admin, body=bindings.v1PostAccessTokenRequest(userId=administrator.id, lifespan="-1")
    )
    assert hidden.tokenId
    change = bindings.v1PatchAccessTokenRequest(tokenId=hidden.tokenId, setRevoked=True)
    refused(errors.NotFoundException, bindings.patch_PatchAccessToken, session, body=change, tokenId=hidden.tokenId)
    edit = bindings.v1PatchAccessTokenRequest(tokenId=made.tokenId, description="better", setRevoked=False)
    changed = bindings.patch_PatchAccessToken(session, body=edit, tokenId=made.tokenId).tokenInfo
    assert changed and changed.description == "better"
    revoke = bindings.v1PatchAccessTokenRequest(tokenId=made.tokenId, setRevoked=True)
    bindings.patch_PatchAccessToken(session, body=revoke, tokenId=made.tokenId)
    refused(errors.UnauthenticatedException, bindings.get_GetMe, program)
    assert bindings.get_GetAccessTokens(session).tokenInfo == []
    [dead] = bindings.get_GetAccessTokens(session, showInactive=True).tokenInfo
    assert dead.revoked


def users(session: api.Session, admin: api.Session, address: str) -> None:
    new = bindings.v1User(username="eve", active=True, admin=False)
    user = bindings.post_PostUser(
        admin, body=bindings.v1PostUserRequest(user=new, password="Secret12345", isHashed=False)
    ).user
    assert user and user.id
    body = bindings.v1PatchUsersRequest(activate=False, userIds=[user.id, 999])
    refused(errors.ForbiddenException, bindings.patch_PatchUsers, session, body=body)
    results = bindings.patch_PatchUsers(admin, body=body).results
    assert [(each.id, bool(each.error)) for each in results] == [(user.id, False), (999, True)]
    assert not bindings.get_GetUser(session, userId=user.id).user.active
    by_name = bindings.v1PatchUsersRequest(activate=True, userIds=[], filters=bindings.v1UserFilters(name="EVE"))
    assert [each.id for each in bindings.patch_PatchUsers(admin, body=by_name).results] == [user.id]
    assert bindings.get_GetUser(session, userId=user.id).user.active
    refused(errors.ForbiddenException, bindings.post_SetUserPassword, session, body="Another12345", userId=user.id)
    bindings.post_SetUserPassword(admin, body="Another12345", userId=user.id)
    assert authentication.login(address, "eve", "Another12345").username == "eve"


def logs(session: api.Session, admin: api.Session, made: Trials) -> None:
    experiment, trial = made.experiments[0], made.trials[0]
    task = bindings.get_GetTrial(session, trialId=trial).trial.taskId
    assert task
    line = bindings.v1TaskLog(taskId=task, timestamp="2026-01-01T00:00:00Z", log="words\n")
    bindings.post_PostTaskLogs(session, body=bindings.v1PostTaskLogsRequest(logs=[line]))

    def lines() -> int:
        return len(bindings.get_TaskLogs(session, taskId=task))

    def left() -> int | None:
        return bindings.get_GetTrialRemainingLogRetentionDays(session, id=trial).remainingDays

    assert left() == -1 and lines() == 1
    keep = bindings.v1PutTrialRetainLogsRequest(numDays=5)
    bindings.put_PutTrialRetainLogs(session, body=keep, trialId=trial)
    assert left() == 5 and bindings.get_GetTrial(session, trialId=trial).trial.logRetentionDays == 5
    body = bindings.v1PutExperimentRetainLogsRequest(experimentId=experiment, numDays=7)
    bindings.put_PutExperimentRetainLogs(session, body=body, experimentId=experiment)
    config = bindings.get_GetExperiment(session, experimentId=experiment).experiment.config
    assert left() == 7 and config["retention_policy"]["log_retention_days"] == 7
    refused(errors.ForbiddenException, bindings.post_CleanupLogs, session)
    assert bindings.post_CleanupLogs(admin).removedCount == "0" and lines() == 1
    several = bindings.v1PutExperimentsRetainLogsRequest(
        experimentIds=[experiment, 999], numDays=0, projectId=made.project
    )
    results = bindings.put_PutExperimentsRetainLogs(session, body=several, projectId=made.project).results
    assert [bool(each.error) for each in results] == [False, True]
    assert bindings.post_CleanupLogs(admin).removedCount == "1" and lines() == 0
    wrong = bindings.v1PutTrialRetainLogsRequest(numDays=-2)
    refused(errors.APIException, bindings.put_PutTrialRetainLogs, session, body=wrong, trialId=trial)


def small_things(session: api.Session, made: Trials) -> None:
    assert bindings.get_GetExperimentLabels(session, projectId=made.project).labels == ["vision"]
    assert not bindings.get_GetTelemetry(session).enabled
    counts = bindings.get_GetActiveTasksCount(session)
    assert (counts.commands, counts.notebooks, counts.shells, counts.tensorboards) == (0, 0, 0, 0)
    task = bindings.get_GetTrial(session, trialId=made.trials[0]).trial.taskId
    assert task and bindings.get_GetTaskAcceleratorData(session, taskId=task).acceleratorData == []
    refused(errors.NotFoundException, bindings.get_GetAllocation, session, allocationId=f"{task}.1")
    raw = bindings.get_ResourceAllocationRaw(
        session, timestampAfter="2026-01-01T00:00:00Z", timestampBefore="2026-01-02T00:00:00Z"
    )
    assert raw.resourceEntries == []
    daily = bindings.v1ResourceAllocationAggregationPeriod.DAILY
    days = {"startDate": "2026-01-01", "endDate": "2026-01-31"}
    assert bindings.get_ResourceAllocationAggregated(session, period=daily, **days).resourceEntries == []


def config_policies(session: api.Session, admin: api.Session, made: Trials) -> None:
    kind = "EXPERIMENT"
    text = "invariant_config: {resources: {weight: 3}, environment: {environment_variables: [HF_TOKEN=hush]}}\n"
    everywhere = bindings.v1PutGlobalConfigPoliciesRequest(configPolicies=text, workloadType=kind)
    refused(
        errors.ForbiddenException, bindings.put_PutGlobalConfigPolicies, session, body=everywhere, workloadType=kind
    )
    bindings.put_PutGlobalConfigPolicies(admin, body=everywhere, workloadType=kind)
    found = bindings.get_GetGlobalConfigPolicies(session, workloadType=kind).configPolicies
    assert found and found["invariant_config"]["resources"] == {"weight": 3} and "hush" not in str(found)
    limits = (
        "invariant_config: {resources: {weight: 9}}\nconstraints: {resources: {max_slots: 2}, priority_limit: 10}\n"
    )
    here = bindings.v1PutWorkspaceConfigPoliciesRequest(
        configPolicies=limits, workloadType=kind, workspaceId=made.workspace
    )
    bindings.put_PutWorkspaceConfigPolicies(session, body=here, workloadType=kind, workspaceId=made.workspace)
    found = bindings.get_GetWorkspaceConfigPolicies(
        session, workloadType=kind, workspaceId=made.workspace
    ).configPolicies
    assert found and found["constraints"] == {"resources": {"max_slots": 2}, "priority_limit": 10}

    def create(project: int, **resources: int) -> dict[str, typing.Any]:
        config = {
            "name": "ruled",
            "entrypoint": "true",
            "searcher": {"name": "single", "metric": "x"},
            "resources": resources,
            "checkpoint_storage": {"type": "directory", "container_path": "/tmp/none"},
        }
        request = bindings.v1CreateExperimentRequest(config=json.dumps(config), activate=False, projectId=project)
        experiment = bindings.post_CreateExperiment(session, body=request).experiment
        bindings.post_KillExperiment(session, id=experiment.id)
        made_of: dict[str, typing.Any] = experiment.config["resources"]
        return made_of

    ruled = create(made.project, weight=1)
    assert (ruled["weight"], ruled["max_slots"]) == (3, 2)
    assert create(1, slots_per_trial=3)["weight"] == 3
    assert "exceed the limit" in refused(errors.APIException, create, made.project, slots_per_trial=3)
    assert "exceeds the limit" in refused(errors.APIException, create, made.project, priority=5)
    bindings.delete_DeleteWorkspaceConfigPolicies(session, workloadType=kind, workspaceId=made.workspace)
    bindings.delete_DeleteGlobalConfigPolicies(admin, workloadType=kind)
    assert bindings.get_GetGlobalConfigPolicies(session, workloadType=kind).configPolicies == {}
    assert create(made.project, slots_per_trial=3)["weight"] == 1
    wrong = bindings.v1PutGlobalConfigPoliciesRequest(configPolicies="constraints: {x: 1}", workloadType=kind)
    assert "no constraint" in refused(
        errors.APIException, bindings.put_PutGlobalConfigPolicies, admin, body=wrong, workloadType=kind
    )


def webhooks(session: api.Session, admin: api.Session, made: Trials) -> None:
    trigger = bindings.v1Trigger(
        triggerType=bindings.v1TriggerType.EXPERIMENT_STATE_CHANGE, condition={"state": "COMPLETED"}
    )
    hook = bindings.v1Webhook(
        name="hook",
        url="https://example.org/hook",
        webhookType=bindings.v1WebhookType.SLACK,
        mode=bindings.v1WebhookMode.WORKSPACE,
        triggers=[trigger],
    )
    refused(errors.ForbiddenException, bindings.post_PostWebhook, session, body=hook)
    number = bindings.post_PostWebhook(admin, body=hook).webhook.id
    assert number
    bindings.patch_PatchWebhook(admin, body=bindings.v1PatchWebhook(url="http://127.0.0.1:1/hook"), id=number)
    [found] = bindings.get_GetWebhooks(admin).webhooks
    assert (
        found.url == "http://127.0.0.1:1/hook"
        and found.triggers
        and found.triggers[0].condition == {"state": "COMPLETED"}
    )
    assert bindings.get_GetWebhooks(session).webhooks == []
    assert "private network" in refused(errors.APIException, bindings.post_TestWebhook, admin, id=number)
    data = bindings.v1CustomWebhookEventData(title="words")
    event = bindings.v1PostWebhookEventDataRequest(experimentId=made.experiments[0], data=data)
    bindings.post_PostWebhookEventData(session, body=event)
    bindings.delete_DeleteWebhook(admin, id=number)
    assert bindings.get_GetWebhooks(admin).webhooks == []


def without_kubernetes(session: api.Session, admin: api.Session, made: Trials) -> None:
    """There is no Kubernetes under this master: lists are empty, and changes are refused."""
    assert bindings.get_GetKubernetesResourceManagers(session).resourceManagers == []
    assert bindings.get_GetKubernetesResourceQuotas(session, id=made.workspace).resourceQuotas == {}
    assert bindings.get_ListWorkspaceNamespaceBindings(session, id=made.workspace).namespaceBindings == {}
    assert bindings.get_GetWorkspacesWithDefaultNamespaceBindings(session).workspaceIds == []
    quota = bindings.v1SetResourceQuotasRequest(id=made.workspace, clusterQuotaPairs={"x": 1})
    assert "no Kubernetes" in refused(
        errors.APIException, bindings.post_SetResourceQuotas, admin, body=quota, id=made.workspace
    )


def master_config(session: api.Session, admin: api.Session) -> None:
    def change(level: bindings.v1LogLevel) -> bindings.v1PatchMasterConfigRequest:
        return bindings.v1PatchMasterConfigRequest(
            config=bindings.v1Config(log=bindings.v1LogConfig(level=level)),
            fieldMask=bindings.protobufFieldMask(paths=["log.level"]),
        )

    refused(
        errors.ForbiddenException, bindings.patch_PatchMasterConfig, session, body=change(bindings.v1LogLevel.DEBUG)
    )
    for level, lines in ((bindings.v1LogLevel.DEBUG, True), (bindings.v1LogLevel.WARNING, False)):
        bindings.patch_PatchMasterConfig(admin, body=change(level))
        config = bindings.get_GetMasterConfig(admin).config
        assert config["log"]["level"] == level.name.lower()
        before = len(bindings.get_MasterLogs(admin))
        bindings.get_GetMe(session)
        assert (len(bindings.get_MasterLogs(admin)) > before) == lines


def pools(session: api.Session, admin: api.Session, made: Trials) -> None:
    """Without agents there is only the default pool, which is everybody's."""
    body = bindings.v1BindRPToWorkspaceRequest(resourcePoolName="default", workspaceIds=[made.workspace])
    refused(errors.ForbiddenException, bindings.post_BindRPToWorkspace, session, body=body, resourcePoolName="default")
    said = refused(errors.APIException, bindings.post_BindRPToWorkspace, admin, body=body, resourcePoolName="default")
    assert "cannot be bound" in said
    refused(errors.NotFoundException, bindings.post_BindRPToWorkspace, admin, body=body, resourcePoolName="none")
    assert bindings.get_ListWorkspacesBoundToRP(session, resourcePoolName="default").workspaceIds == []
    assert bindings.get_ListRPsBoundToWorkspace(session, workspaceId=made.workspace).resourcePools == ["default"]


def older_reports(session: api.Session, project: int) -> None:
    config = {"name": "old", "searcher": {"name": "single", "metric": "loss"}}
    request = bindings.v1CreateExperimentRequest(config=json.dumps(config), unmanaged=True, projectId=project)
    experiment = bindings.post_CreateExperiment(session, body=request).experiment.id
    trial = bindings.post_CreateTrial(
        session, body=bindings.v1CreateTrialRequest(experimentId=experiment, unmanaged=True)
    ).trial.id
    bindings.post_StartTrial(session, body=bindings.v1StartTrialRequest(trialId=trial, resume=False), trialId=trial)
    report = bindings.v1TrialMetrics(
        metrics=bindings.v1Metrics(avgMetrics={"loss": 3.0}), trialId=trial, trialRunId=1, stepsCompleted=1
    )
    bindings.post_ReportTrialTrainingMetrics(session, body=report, trainingMetrics_trialId=trial)
    bindings.post_ReportTrialValidationMetrics(session, body=report, validationMetrics_trialId=trial)
    for stream in (bindings.get_GetTrainingMetrics, bindings.get_GetValidationMetrics):
        [answer] = stream(session, trialIds=[trial])
        assert [each.totalBatches for each in answer.metrics] == [1]
    change = bindings.v1PatchTrialRequest(trialId=trial, state=bindings.trialv1State.COMPLETED)
    bindings.patch_PatchTrial(session, body=change, trialId=trial)
    delete = bindings.v1DeleteExperimentsRequest(experimentIds=[experiment, 999], projectId=project)
    results = bindings.delete_DeleteExperiments(session, body=delete, projectId=project).results
    assert [(each.id, bool(each.error)) for each in results] == [(experiment, False), (999, True)]
    refused(errors.NotFoundException, bindings.get_GetExperiment, session, experimentId=experiment)


def main(address: str) -> None:
    session = authentication.login(address, "determined", "")
    admin = authentication.login(address, "admin", "")
    count = count_calls()
    made = make_trials(session)
    search_experiments(session, made)
    search_runs(session, made)
    project_tables(session, made)
    charts(session, made)
    projects(session, admin, made)
    small_things(session, made)
    logs(session, admin, made)
    older_reports(session, made.project)
    run_actions(session, made)
    config_policies(session, admin, made)
    pools(session, admin, made)
    webhooks(session, admin, made)
    without_kubernetes(session, admin, made)
    master_config(session, admin)
    code_of_an_experiment(session)
    settings(session, admin)
    messages(session, admin)
    tokens(session, admin, address)
    users(session, admin, address)
    print(json.dumps({"all": count, "called": sorted(CALLED)}))


if __name__ == "__main__":
    main(sys.argv[1])
