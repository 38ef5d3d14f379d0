"""The unmodified `determined` client against our master: what the API says afterwards is exact."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from conftest import Runner

from .conftest import SCRIPTS, Client, Master

Json = dict[str, Any]


def rows(api: Client, trial: int, group: str) -> dict[int, Json]:
    """Everything that a trial reported in a group, by step."""
    found: dict[int, Json] = {}
    kind = {"training": "training_metrics", "validation": "validation_metrics"}[group]
    for element in api.lines(f"/api/v1/trials/metrics/{kind}?trialIds={trial}"):
        for report in element["metrics"]:
            inner = report["metrics"]
            assert report["totalBatches"] not in found, "a step is there once"
            found[report["totalBatches"]] = inner.get("avg_metrics") or inner["validation_metrics"]
    return found


def recorded_by_ranks(api: Client, ranks: int) -> Json:
    """Compare what distributed.py must have recorded, however it was started; give its checkpoint."""
    experiment = api("GET", "/api/v1/experiments/1")["experiment"]
    assert (experiment["state"], experiment["numTrials"]) == ("STATE_COMPLETED", 1)
    training = rows(api, 1, "training")
    assert {step: row["rank"] for step, row in training.items()} == {step: step % ranks for step in range(100)}
    validation = rows(api, 1, "validation")
    assert {step: row["rank"] for step, row in validation.items()} == {step: step % ranks for step in range(9, 100, 10)}
    [checkpoint] = api("GET", "/api/v1/trials/1/checkpoints")["checkpoints"]
    assert checkpoint["metadata"] == {"steps_completed": 99, **{f"rank_{rank}": "ok" for rank in range(ranks)}}
    files = {name: size for name, size in checkpoint["resources"].items() if name != "metadata.json"}
    assert files == {f"state_{rank}": "4" for rank in range(ranks)}
    assert isinstance(checkpoint, dict)
    return checkpoint


def test_metrics_of_a_single_process(run: Runner, determined: Path, settings: dict[str, str], api: Client) -> None:
    done = run(determined, SCRIPTS / "singleton.py", env=settings).expect(0)
    assert f"See the experiment at: {settings['DET_MASTER']}/det/experiments/1" in done.stdout
    experiment = api("GET", "/api/v1/experiments/1")["experiment"]
    assert (experiment["name"], experiment["state"], experiment["progress"]) == ("singleton", "STATE_COMPLETED", 1.0)
    assert (experiment["labels"], experiment["trialIds"], experiment["unmanaged"]) == (["a", "b"], [1], True)
    assert (experiment["bestTrialId"], experiment["bestTrialSearcherMetric"]) == (1, 0.02)
    assert rows(api, 1, "training") == {step: {"loss": 1 / (step + 1), "step": step} for step in range(100)}
    assert rows(api, 1, "validation") == {step: {"loss": 2 / (step + 1)} for step in range(9, 100, 10)}
    trial = api("GET", "/api/v1/trials/1")["trial"]
    assert (trial["state"], trial["totalBatchesProcessed"], trial["hparams"]) == ("STATE_COMPLETED", 99, {"rate": 0.1})
    summary = trial["summaryMetrics"]
    steps = {"type": "number", "last": 99, "min": 0, "max": 99, "sum": 4950, "mean": 49.5, "count": 100}
    assert summary["avg_metrics"]["step"] == steps
    assert summary["validation_metrics"]["loss"]["min"] == 0.02
    assert trial["bestValidation"]["totalBatches"] == 99
    assert trial["latestValidation"]["metrics"]["avgMetrics"] == {"loss": 0.02}
    workloads = api("GET", "/api/v1/trials/1/workloads?limit=500")
    assert (len(workloads["workloads"]), workloads["pagination"]["total"]) == (110, 110)
    [log] = [line for line in api.lines("/api/v1/trials/1/logs") if "See the experiment" in line["log"]]
    assert (log["rankId"], log["trialId"]) == (0, 1)


def test_checkpoints_are_resumed_by_external_ids(
    run: Runner, forked_det: Path, settings: dict[str, str], api: Client, tmp_path: Path
) -> None:
    storage = tmp_path / "storage"
    script = SCRIPTS / "checkpoints.py"
    run(forked_det, script, str(storage), "0", "50", env=settings).expect(0)
    before = rows(api, 1, "training")
    assert sorted(before) == list(range(50))
    second = run(forked_det, script, str(storage), "40", "60", env=settings).expect(0)
    assert "initial step: 40" in second.stdout
    assert api("GET", "/api/v1/experiments?limit=-1")["pagination"]["total"] == 1
    experiment = api("GET", "/api/v1/experiments/1")["experiment"]
    assert (experiment["externalExperimentId"], experiment["trialIds"]) == ("tests/my experiment", [1])
    path = "/api/v1/trials/by-external-id/tests/my%20experiment/trial%20%C3%BC"
    assert api("GET", path)["trial"]["taskId"] == "1.trial ü"
    # The first run reached step 49; the second went back to 40 and says the last word on everything from there.
    expected = {step: {"loss": 50.0 if step < 40 else 60.0, "step": step} for step in range(60)}
    assert rows(api, 1, "training") == expected
    found = api("GET", "/api/v1/experiments/1/checkpoints?sortByAttr=SORT_BY_BATCH_NUMBER")["checkpoints"]
    assert [checkpoint["metadata"]["steps_completed"] for checkpoint in found] == [19, 39, 59]
    assert len({checkpoint["storageId"] for checkpoint in found}) == 1
    last = found[-1]
    names = {"metadata.json", "state", "folder/", "folder/inner"}
    assert set(last["resources"]) == names
    assert (last["resources"]["state"], last["resources"]["folder/inner"], last["state"]) == (
        "2",
        "5",
        "STATE_COMPLETED",
    )
    assert last["training"]["experimentConfig"]["checkpoint_storage"]["container_path"] == str(storage)
    assert last["training"]["trainingMetrics"]["avgMetrics"] == {"loss": 60.0, "step": 59}
    assert last["training"]["searcherMetric"] == 1 / 60
    assert (storage / last["uuid"] / "state").read_text() == "59"


def port(wanted: int) -> str:
    """The port of the tutorial's command line, or a free one where another job has it."""
    for number in (wanted, 0):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", number)) as probe:
            return str(probe.getsockname()[1])
    raise AssertionError("no port is free")


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.soak)])
@pytest.mark.parametrize("launcher", ["instep", "torch"])
def test_torch_distributed_with_sharded_checkpoints(
    run: Runner,
    instep: Path,
    forked_determined: Path,
    settings: dict[str, str],
    api: Client,
    launcher: str,
    ranks: int,
) -> None:
    # The command line of Determined's tutorial, word by word; `instep run` stands in for `torch.distributed.run`.
    program = (instep, "run") if launcher == "instep" else (forked_determined, "-m", "torch.distributed.run")
    options = (
        f"--nnodes=1 --nproc_per_node={ranks} --master_addr 127.0.0.1 --master_port {port(29400)} --max_restarts 0"
    )
    environment = {
        **settings,
        "PYTHON_EXEC": str(forked_determined),
        "OMP_NUM_THREADS": "1",
        "INTER_TRAIN_PROCESS_COMM_PORT_1": port(0),
        "INTER_TRAIN_PROCESS_COMM_PORT_2": port(0),
    }
    run(*program, *options.split(), SCRIPTS / "distributed.py", env=environment, timeout=150).expect(0)
    checkpoint = recorded_by_ranks(api, ranks)
    folder = Path(settings["XDG_DATA_HOME"]) / "determined" / "checkpoints" / checkpoint["uuid"]
    assert json.loads((folder / "metadata.json").read_text())["steps_completed"] == 99


def test_a_script_that_fails_ends_its_trial_in_error(
    run: Runner, determined: Path, settings: dict[str, str], api: Client
) -> None:
    script = (
        "from determined.experimental import core_v2\n"
        "core_v2.init(config=core_v2.Config(name='failing'))\n"
        "core_v2.train.report_training_metrics(steps_completed=1, metrics={'loss': float('nan')})\n"
        "raise RuntimeError('as planned')\n"
    )
    run(determined, "-c", script, env=settings).expect(1)
    assert api("GET", "/api/v1/trials/1")["trial"]["state"] == "STATE_ERROR"
    assert api("GET", "/api/v1/experiments/1")["experiment"]["state"] == "STATE_ERROR"
    assert rows(api, 1, "training") == {1: {"loss": "NaN"}}


def det(run: Runner, determined: Path, settings: dict[str, str], *commands: str) -> list[str]:
    """Run `det` command lines that must succeed; give their outputs."""
    words = json.dumps([command.split(" ") for command in commands])
    done = run(determined, SCRIPTS / "det.py", words, env=settings, timeout=150).expect(0)
    found = json.loads(done.stdout)
    assert [(command, each["status"]) for command, each in zip(commands, found, strict=True) if each["status"]] == [], (
        done
    )
    return [each["output"] for each in found]


def test_det_lists_describes_and_changes(
    run: Runner, forked_det: Path, settings: dict[str, str], api: Client, tmp_path: Path
) -> None:
    run(forked_det, SCRIPTS / "checkpoints.py", str(tmp_path / "storage"), "0", "40", env=settings).expect(0)
    [checkpoint, *_] = api("GET", "/api/v1/experiments/1/checkpoints")["checkpoints"]
    expected = {
        "version": "0.38.1",
        "experiment list": "checkpoints",
        "experiment describe 1 --metrics": "COMPLETED",
        "experiment describe 1 --json": "checkpoints",
        "experiment list-trials 1": "COMPLETED",
        "experiment list-checkpoints 1": checkpoint["uuid"],
        "experiment config 1": "container_path",
        "experiment logs 1": "initial step: 0",
        "experiment wait 1": "",
        "experiment label add 1 hello": "",
        "experiment set name 1 renamed": "",
        "experiment archive 1": "",
        "experiment unarchive 1": "",
        f"experiment download 1 -o {tmp_path / 'downloaded'}": "",
        "trial describe 1 --metrics": "loss",
        "trial logs 1 -f": "initial step: 0",
        f"checkpoint describe {checkpoint['uuid']}": checkpoint["uuid"],
        f"checkpoint download {checkpoint['uuid']} -o {tmp_path / 'one'}": "",
        "workspace create lab": "lab",
        "project create lab thesis": "thesis",
        "experiment move 1 lab thesis": "",
        "project list-experiments lab thesis": "renamed",
        "user whoami": "determined",
        "user list": "admin",
        "master info": "0.38.1",
    }
    outputs = det(run, forked_det, settings, *expected)
    for command, output in zip(expected, outputs, strict=True):
        assert expected[command] in output, (command, output)
    experiment = api("GET", "/api/v1/experiments/1")["experiment"]
    assert (experiment["labels"], experiment["projectName"]) == (["hello"], "thesis")
    assert (tmp_path / "one" / "folder" / "inner").read_text() == "inner"
    det(run, forked_det, settings, "experiment delete 1 --yes")
    assert api("GET", "/api/v1/experiments?limit=-1")["pagination"]["total"] == 0


def test_det_manages_users(
    run: Runner, forked_det: Path, settings: dict[str, str], api: Client, master: Master
) -> None:
    token = master.client.login("admin").token
    assert token is not None
    environment = {**settings, "DET_USER": "admin", "DET_USER_TOKEN": token}
    commands = [
        "user create ann --password Abcdefg1",
        "user edit ann --display-name Ann",
        "user deactivate ann",
        "user activate ann",
        "user rename ann anna",
        "user list",
    ]
    *_, users = det(run, forked_det, environment, *commands)
    assert "anna" in users
    assert master.client.login("anna", "Abcdefg1")("GET", "/api/v1/me")["user"]["displayName"] == "Ann"
    assert api("GET", "/api/v1/users/anna/by-username")["user"]["active"] is True
