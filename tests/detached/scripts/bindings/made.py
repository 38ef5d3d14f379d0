"""What all calls need: counting, refusals, and two trials that have ended."""

import base64
import json
import typing

from determined.common import api
from determined.common.api import bindings

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


def start_trial(session: api.Session, experiment: int) -> bindings.trialv1Trial:
    """A trial of an experiment that runs elsewhere, which has started."""
    made = bindings.v1CreateTrialRequest(experimentId=experiment, unmanaged=True)
    trial = bindings.post_CreateTrial(session, body=made).trial
    start = bindings.v1StartTrialRequest(trialId=trial.id, resume=False)
    bindings.post_StartTrial(session, body=start, trialId=trial.id)
    return trial


def file(path: str, text: str) -> bindings.v1File:
    """A file of a context."""
    content = base64.b64encode(text.encode()).decode()
    return bindings.v1File(content=content, gid=0, mode=0o644, mtime="1700000000", path=path, type=48, uid=0)
