"""Compares an imported cluster with what determined_fill.sql says, through Determined's own client."""

import json
import math
import sys

from determined.common import api
from determined.common.api import bindings
from determined.experimental import client

numbers, password = json.loads(sys.argv[1]), sys.argv[2]
experiments, trials, steps = numbers["experiments"], numbers["trials"], numbers["steps"]
# The password is the one that Determined knew.
client.login(user="user4", password=password)
session = client._determined._session
found = client.list_experiments()
assert len(found) == experiments, len(found)
assert sorted(each.id for each in found) == list(range(1, experiments + 1))

for number in (1, 2, 97, 500, experiments):
    experiment = client.get_experiment(number)
    raw = bindings.get_GetExperiment(session, experimentId=number).experiment
    states = ("STATE_COMPLETED", "STATE_ERROR", "STATE_CANCELED")
    assert raw.state.value == ("STATE_CANCELED" if number % 97 == 0 else states[number % 3]), raw.state
    assert (raw.name, raw.notes) == (f"experiment {number}", f"notes of {number}")
    assert raw.description == "tab\tline\n"
    assert raw.labels == [f"even-{number % 2}", "x"]
    assert raw.archived == (number % 11 == 0)
    assert raw.userId == 3 + number % 20
    assert raw.projectId == 1 + number % 30
    assert raw.forkedFrom == (number - 1 if number % 5 == 0 else None)
    assert raw.originalConfig == f"name: experiment {number}\nlabels: [x]\n"
    assert raw.numTrials == 2
    assert sorted(trial.id for trial in experiment.list_trials()) == [2 * number - 1, 2 * number]

for number in (1, 10, 555, trials):
    trial = client.get_trial(number)
    assert trial.hparams == {"lr": number / 1000}, trial.hparams
    training = list(trial.iter_metrics("training"))
    assert [each.steps_completed for each in training] == [10 * step for step in range(1, steps + 1)]
    for each in (training[0], training[steps // 2], training[-1]):
        step = each.steps_completed // 10
        assert math.isclose(each.metrics["loss"], 1 / step + number, rel_tol=1e-9), each.metrics
        assert (each.metrics["step"], each.metrics["accuracy"]) == (step, step / 1e6)
    assert math.isnan(float(training[99].metrics["rate"]))
    validations = list(trial.iter_metrics("validation"))
    assert len(validations) == steps // 10
    assert math.isclose(validations[0].metrics["loss"], 0.2 + number % 5, rel_tol=1e-9)
    assert len(list(trial.iter_metrics("translation"))) == steps // 20
    assert len(trial.list_checkpoints()) == 2
    expected = [line for line in range(1, numbers["lines"] + 1) if 1 + line % trials == number]
    lines = list(trial.iter_logs())
    assert len(lines) == len(expected), (number, len(lines))
    assert f"line {expected[0]} \t\\" in lines[0], lines[0]

checkpoint = client.get_checkpoint("00000000-0000-4000-8000-000000000001")
assert checkpoint.training.trial_id == 1
resources = {name: int(size) for name, size in checkpoint.resources.items()}
assert resources == {"model.pt": 1000, "dir/": 0}, resources
assert bindings.get_GetTrial(session, trialId=3).trial.warmStartCheckpointUuid == checkpoint.uuid
models = client.list_models()
assert len(models) == 20
model = client.get_model("model7")
assert (model.model_id, model.labels, model.metadata) == (7, ["a b", 'c"d'], {"k": "v"})
assert sorted(version.model_version for version in model.list_versions()) == [1, 2, 3]
assert len(bindings.get_GetUsers(session).users) == 22
assert len(bindings.get_GetWorkspaces(session).workspaces) >= 10
try:
    client.Determined(user="user6", password="wrong").list_workspaces()
except api.errors.UnauthenticatedException:
    pass
else:
    raise AssertionError("a wrong password was right")
print("all is as it was")
