"""Trials: what they report, and what is shown of them."""

import json

from determined.common import api
from determined.common.api import bindings, errors
from made import Trials, refused, start_trial


def trials(session: api.Session, made: Trials) -> None:
    """What is shown of two that have ended."""
    first, second = made.trials
    experiment = made.experiments[0]
    assert [each.id for each in bindings.get_GetExperimentTrials(session, experimentId=experiment).trials] == [first]
    assert bindings.get_GetRunMetadata(session, runId=first).metadata == {"data": {"set": "set-0"}}
    assert bindings.get_GetBestSearcherValidationMetric(session, experimentId=experiment).metric == 0.5
    compared = bindings.get_CompareTrials(
        session, trialIds=[first, second], metricNames=["loss"], metricType=bindings.v1MetricType.VALIDATION
    ).trials
    assert [each.trial.id for each in compared] == [first, second]
    [series] = compared[1].metrics
    assert [(point.batches, (point.values or {})["loss"]) for point in series.data] == [(10, 0.5), (20, 0.25)]
    [answer] = bindings.get_GetMetrics(session, group="validation", trialIds=[first])
    assert [each.totalBatches for each in answer.metrics] == [10, 20]
    workloads = bindings.get_GetTrialWorkloads(session, trialId=first).workloads
    validations = [each.validation for each in workloads if each.validation]
    assert [each.totalBatches for each in validations] == [10, 20]
    assert [(each.metrics.avgMetrics or {})["loss"] for each in validations] == [1.0, 0.5]
    refused(errors.NotFoundException, bindings.get_GetTrialWorkloads, session, trialId=999)


def reports(session: api.Session) -> None:
    """What one says that still runs."""
    config = json.dumps({"name": "outside", "searcher": {"name": "single", "metric": "loss"}})
    request = bindings.v1CreateExperimentRequest(config=config, unmanaged=True)
    experiment = bindings.put_PutExperiment(session, body=request, externalExperimentId="ours/7").experiment
    again = bindings.put_PutExperiment(session, body=request, externalExperimentId="ours/7").experiment
    assert again.id == experiment.id and again.externalExperimentId == "ours/7"
    new = bindings.v1CreateTrialRequest(experimentId=experiment.id, hparams={"size": 1}, unmanaged=True)
    body = bindings.v1PutTrialRequest(createTrialRequest=new, externalTrialId="one")
    trial = bindings.put_PutTrial(session, body=body).trial
    assert bindings.put_PutTrial(session, body=body).trial.id == trial.id
    found = bindings.get_GetTrialByExternalID(session, externalExperimentId="ours/7", externalTrialId="one").trial
    assert found.id == trial.id
    bindings.post_StartTrial(
        session, body=bindings.v1StartTrialRequest(trialId=trial.id, resume=False), trialId=trial.id
    )
    bindings.post_RunPrepareForReporting(session, body=bindings.v1RunPrepareForReportingRequest(runId=trial.id))
    bindings.post_PostTrialRunnerMetadata(
        session, body=bindings.v1TrialRunnerMetadata(state="warming up"), trialId=trial.id
    )
    assert bindings.get_GetTrial(session, trialId=trial.id).trial.runnerState == "warming up"
    progress = bindings.v1ReportTrialProgressRequest(trialId=trial.id, progress=0.25)
    bindings.post_ReportTrialProgress(session, body=progress, trialId=trial.id)
    assert bindings.get_GetExperiment(session, experimentId=experiment.id).experiment.progress == 0.25
    reason = bindings.v1TrialEarlyExit(reason=bindings.v1TrialEarlyExitExitedReason.INVALID_HP)
    bindings.post_ReportTrialSearcherEarlyExit(session, body=reason, trialId=trial.id)
    assert found.taskId
    line = bindings.v1TaskLog(
        taskId=found.taskId, timestamp="2026-01-01T00:00:00Z", log="words\n", rankId=3, stdtype="stderr", agentId="a"
    )
    bindings.post_PostTaskLogs(session, body=bindings.v1PostTaskLogsRequest(logs=[line]))
    assert [each.message for each in bindings.get_TrialLogs(session, trialId=trial.id) if "words" in each.message]
    assert not list(bindings.get_TrialLogs(session, trialId=trial.id, rankIds=[4]))
    for fields in (
        bindings.get_TrialLogsFields(session, trialId=trial.id),
        bindings.get_TaskLogsFields(session, taskId=found.taskId),
    ):
        last = list(fields)[-1]
        assert last.rankIds == [3] and last.stdtypes == ["stderr"] and last.agentIds == ["a"]
    task = bindings.get_GetTask(session, taskId=found.taskId).task
    assert task.taskType == bindings.v1TaskType.TRIAL and task.taskState is None and task.endTime is None
    assert "runs elsewhere" in refused(errors.APIException, bindings.post_KillTrial, session, id=trial.id)
    other = start_trial(session, experiment.id)
    assert other.id != trial.id
    refused(errors.NotFoundException, bindings.post_KillTrial, session, id=999)
