"""The master itself: logs and how long they are kept, its configuration, pools, reports, and no Kubernetes."""

import json

from determined.common import api
from determined.common.api import bindings, errors
from experiments import managed
from made import Trials, refused, start_trial


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
    whole = bindings.v1OverwriteRPWorkspaceBindingsRequest(resourcePoolName="default", workspaceIds=[made.workspace])
    overwrite = bindings.put_OverwriteRPWorkspaceBindings
    assert "cannot be bound" in refused(errors.APIException, overwrite, admin, body=whole, resourcePoolName="default")
    away = bindings.v1UnbindRPFromWorkspaceRequest(resourcePoolName="default", workspaceIds=[made.workspace])
    unbind = bindings.delete_UnbindRPFromWorkspace
    refused(errors.ForbiddenException, unbind, session, body=away, resourcePoolName="default")
    assert bindings.get_ListWorkspacesBoundToRP(session, resourcePoolName="default").workspaceIds == []
    assert [each.name for each in bindings.get_GetResourcePools(session).resourcePools or []] == ["default"]
    assert bindings.get_ListRPsBoundToWorkspace(session, workspaceId=made.workspace).resourcePools == ["default"]


def older_reports(session: api.Session, project: int) -> None:
    config = {"name": "old", "searcher": {"name": "single", "metric": "loss"}}
    request = bindings.v1CreateExperimentRequest(config=json.dumps(config), unmanaged=True, projectId=project)
    experiment = bindings.post_CreateExperiment(session, body=request).experiment.id
    trial = start_trial(session, experiment).id
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
    bound = bindings.v1SetWorkspaceNamespaceBindingsRequest(workspaceId=made.workspace)
    assert "no Kubernetes" in refused(
        errors.APIException, bindings.post_SetWorkspaceNamespaceBindings, admin, body=bound, workspaceId=made.workspace
    )
    assert "no Kubernetes" in refused(
        errors.APIException, bindings.delete_DeleteWorkspaceNamespaceBindings, admin, workspaceId=made.workspace
    )
    several = bindings.v1BulkAutoCreateWorkspaceNamespaceBindingsRequest(workspaceIds=[made.workspace])
    assert "no Kubernetes" in refused(
        errors.APIException, bindings.post_BulkAutoCreateWorkspaceNamespaceBindings, admin, body=several
    )


def queue(session: api.Session, admin: api.Session) -> None:
    """Two jobs that wait for slots, which nobody lends."""
    first, second = (managed(session, name) for name in ("first", "second"))
    for experiment in (first, second):
        bindings.post_ActivateExperiment(session, id=experiment)

    def waiting() -> list[tuple[str, int | None]]:
        return [(job.name, job.priority) for job in bindings.get_GetJobs(session, resourcePool="default").jobs]

    assert [name for name, _ in waiting()] == ["first", "second"]
    jobs = {job.name: job.jobId for job in bindings.get_GetJobs(session, resourcePool="default").jobs}
    full = [job.full.name for job in bindings.get_GetJobsV2(session, resourcePool="default").jobs if job.full]
    assert full == ["first", "second"]
    ahead = bindings.v1QueueControl(jobId=jobs["second"], aheadOf=jobs["first"])
    bindings.post_UpdateJobQueue(admin, body=bindings.v1UpdateJobQueueRequest(updates=[ahead]))
    assert [name for name, _ in waiting()] == ["second", "first"]
    urgent = bindings.v1QueueControl(jobId=jobs["first"], priority=1)
    bindings.post_UpdateJobQueue(admin, body=bindings.v1UpdateJobQueueRequest(updates=[urgent]))
    assert waiting()[0] == ("first", 1)
    [stats] = bindings.get_GetJobQueueStats(session, resourcePools=["default"]).results
    assert (stats.resourcePool, stats.stats.queuedCount, stats.stats.scheduledCount) == ("default", 2, 0)
    summaries = bindings.get_GetTasks(session).allocationIdToSummary or {}
    assert sorted(each.name or "" for each in summaries.values())[0].startswith("Trial ")
    for experiment in (first, second):
        bindings.post_KillExperiment(session, id=experiment)
    assert waiting() == []
    assert bindings.get_GetAgents(session).agents == []
    assert bindings.get_health(session).status == bindings.HealthStatus.up
