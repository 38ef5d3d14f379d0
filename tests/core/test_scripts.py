"""Determined's scripts with our imports: what the API says afterwards is exact."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Runner
from detached.conftest import Client
from detached.test_scripts import recorded_by_ranks, rows
from ports import free_port

from .conftest import SCRIPTS

Settings = dict[str, str | None]


def test_metrics_of_a_single_process(
    run: Runner, python: Path, ours: Callable[[str], Path], settings: Settings, api: Client
) -> None:
    done = run(python, ours("singleton.py"), env=settings).expect(0)
    assert f"See the experiment at: {settings['INSTEP_MASTER']}/det/experiments/1" in done.stdout
    experiment = api("GET", "/api/v1/experiments/1")["experiment"]
    assert (experiment["name"], experiment["state"], experiment["progress"]) == ("singleton", "STATE_COMPLETED", 1.0)
    assert (experiment["labels"], experiment["trialIds"], experiment["unmanaged"]) == (["a", "b"], [1], True)
    assert (experiment["bestTrialId"], experiment["bestTrialSearcherMetric"]) == (1, 0.02)
    assert rows(api, 1, "training") == {step: {"loss": 1 / (step + 1), "step": step} for step in range(100)}
    assert rows(api, 1, "validation") == {step: {"loss": 2 / (step + 1)} for step in range(9, 100, 10)}
    trial = api("GET", "/api/v1/trials/1")["trial"]
    assert (trial["state"], trial["totalBatchesProcessed"], trial["hparams"]) == ("STATE_COMPLETED", 99, {"rate": 0.1})
    [log] = [line for line in api.lines("/api/v1/trials/1/logs") if "See the experiment" in line["log"]]
    assert (log["rankId"], log["stdtype"]) == (0, "stdout")


def test_init_says_where_to_look(run: Runner, python: Path, settings: Settings, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import instep\nwith instep.core.init():\n    print('training')\n")
    said = run(python, script, env=settings).expect(0)
    page = f"{settings['INSTEP_MASTER']}/det/experiments/1"
    assert said.stderr == f"instep: recording trial 1 of experiment 1: {page}\n"
    assert run(python, script, env={**settings, "INSTEP_QUIET": "1"}).expect(0).stderr == ""
    # Ranks of a job that do not know of each other.
    for rank in ("0", "1"):
        of_two = run(python, script, env={**settings, "WORLD_SIZE": "2", "RANK": rank}).expect(0).stderr
        assert ("every rank records an experiment of its own\nhint: pass distributed=" in of_two) == (rank == "0")
    alone = run(python, script, env={**settings, "INSTEP_MASTER": None}).expect(0)
    assert alone.stderr.endswith("metrics and output are not recorded\n")


def test_dir_shows_what_is_meant_to_be_used(run: Runner, python: Path) -> None:
    code = "import instep; print([name for name in dir(instep) if not name.startswith('_')])"
    names = ["ClusterInfo", "InvalidHP", "LOG_FORMAT", "core", "experimental", "get_cluster_info"]
    assert run(python, "-c", code).expect(0).stdout == f"{names}\n"


def test_checkpoints_are_resumed_by_external_ids(
    run: Runner, python: Path, ours: Callable[[str], Path], settings: Settings, api: Client, tmp_path: Path
) -> None:
    storage, script = tmp_path / "storage", ours("checkpoints.py")
    run(python, script, str(storage), "0", "50", env=settings).expect(0)
    second = run(python, script, str(storage), "40", "60", env=settings).expect(0)
    assert "initial step: 40" in second.stdout
    experiment = api("GET", "/api/v1/experiments/1")["experiment"]
    assert (experiment["externalExperimentId"], experiment["trialIds"]) == ("tests/my experiment", [1])
    expected = {step: {"loss": 50.0 if step < 40 else 60.0, "step": step} for step in range(60)}
    assert rows(api, 1, "training") == expected
    found = api("GET", "/api/v1/experiments/1/checkpoints?sortByAttr=SORT_BY_BATCH_NUMBER")["checkpoints"]
    assert [checkpoint["metadata"]["steps_completed"] for checkpoint in found] == [19, 39, 59]
    assert len({checkpoint["storageId"] for checkpoint in found}) == 1
    last = found[-1]
    assert set(last["resources"]) == {"metadata.json", "state", "folder/", "folder/inner"}
    assert (last["resources"]["state"], last["state"]) == ("2", "STATE_COMPLETED")
    assert last["training"]["experimentConfig"]["checkpoint_storage"]["container_path"] == str(storage)
    assert (storage / last["uuid"] / "state").read_text() == "59"
    assert sorted(path.name for path in storage.iterdir()) == sorted(each["uuid"] for each in found), "no leftovers"


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.soak)])
@pytest.mark.parametrize("launcher", ["instep", "torch"])
def test_torch_distributed_with_sharded_checkpoints(
    run: Runner,
    instep: Path,
    forked: Path,
    ours: Callable[[str], Path],
    settings: Settings,
    api: Client,
    launcher: str,
    ranks: int,
) -> None:
    options = (
        "--nnodes=1",
        f"--nproc_per_node={ranks}",
        "--master_addr",
        "127.0.0.1",
        "--master_port",
        str(free_port()),
    )
    program = (instep, "run") if launcher == "instep" else (forked, "-m", "torch.distributed.run")
    environment = {**settings, "PYTHON_EXEC": str(forked), "OMP_NUM_THREADS": "1"}
    run(*program, *options, "--max_restarts", "0", ours("distributed.py"), env=environment).expect(0)
    checkpoint = recorded_by_ranks(api, ranks)
    folder = Path(str(settings["XDG_DATA_HOME"])) / "instep" / "checkpoints" / checkpoint["uuid"]
    assert json.loads((folder / "metadata.json").read_text()) == checkpoint["metadata"]
    manifest = json.loads((folder / "instep-manifest.json").read_text())
    assert {entry["name"] for entry in manifest["files"]} == set(checkpoint["resources"])


def test_ranks_exchange_values_and_refuse_contradictions(
    run: Runner, instep: Path, python: Path, settings: Settings, api: Client, tmp_path: Path
) -> None:
    storage = tmp_path / "storage"
    environment = {**settings, "PYTHON_EXEC": str(python), "INTER_TRAIN_PROCESS_COMM_PORT_1": str(free_port())}
    command = (instep, "run", "--nproc-per-node=3", "--standalone", SCRIPTS / "exchanges.py", storage)
    done = run(*command, env=environment).expect(0)
    found = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '"errors"' in line]
    assert sorted(each["rank"] for each in found) == [0, 1, 2]
    for each in found:
        name, metadata, script = each["errors"]
        assert "both save `same`, with different content" in name
        assert "give different metadata for `key`" in metadata
        assert "as planned" in script
        assert each["found"] == ["instep-manifest.json", "metadata.json", "own_0", "own_1", "own_2"]
    assert [path.name for path in storage.iterdir()] == [found[0]["uuid"]], "what was refused left nothing"
    assert len(api("GET", "/api/v1/trials/1/checkpoints")["checkpoints"]) == 1


def test_the_stock_client_reads_our_checkpoints(
    run: Runner,
    python: Path,
    determined: Path,
    ours: Callable[[str], Path],
    settings: Settings,
    api: Client,
    tmp_path: Path,
) -> None:
    run(python, ours("checkpoints.py"), str(tmp_path / "storage"), "0", "20", env=settings).expect(0)
    [checkpoint] = api("GET", "/api/v1/experiments/1/checkpoints")["checkpoints"]
    script = (
        "import sys; from determined.experimental import client\n"
        "print(client.get_checkpoint(sys.argv[1]).download(sys.argv[2]))\n"
    )
    environment = {"DET_MASTER": settings["INSTEP_MASTER"], "HOME": str(tmp_path)}
    run(determined, "-c", script, checkpoint["uuid"], tmp_path / "copy", env=environment).expect(0)
    assert (tmp_path / "copy" / "folder" / "inner").read_text() == "inner"
    assert json.loads((tmp_path / "copy" / "metadata.json").read_text())["steps_completed"] == 19


def test_a_download_is_compared_with_what_was_saved(
    run: Runner,
    instep: Path,
    python: Path,
    ours: Callable[[str], Path],
    settings: Settings,
    api: Client,
    tmp_path: Path,
) -> None:
    storage = tmp_path / "storage"
    run(python, ours("checkpoints.py"), str(storage), "0", "20", env=settings).expect(0)
    [checkpoint] = api("GET", "/api/v1/experiments/1/checkpoints")["checkpoints"]
    uuid = checkpoint["uuid"]
    run(instep, "c", "rm", uuid, "--glob", "folder/*", "--yes", env=settings).expect(0)
    run(instep, "c", "download", uuid, "-o", tmp_path / "whole", env=settings).expect(0)
    assert (tmp_path / "whole" / "state").read_text() == "19", "what was removed on purpose is not missed"
    (storage / uuid / "state").write_text("91")
    refused = run(instep, "c", "download", uuid, "-o", tmp_path / "damaged", env=settings).expect(1)
    assert "`state` of checkpoint" in refused.stderr and "its content has changed" in refused.stderr, refused.stderr
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("damaged")]


def test_the_example_records_and_goes_on(
    run: Runner, instep: Path, forked: Path, settings: Settings, api: Client, tmp_path: Path
) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "detached" / "train.py"
    environment = {**settings, "PYTHON_EXEC": str(forked), "OMP_NUM_THREADS": "1"}
    arguments = ("--storage", tmp_path / "storage", "--steps")
    command = (instep, "run", "--standalone", "--nproc-per-node=2", example, *arguments)
    run(*command, "60", env=environment).expect(0)
    again = run(*command, "70", env=environment).expect(0)
    assert "rank 1 goes on from step 60" in again.stdout
    assert sorted(rows(api, 1, "training")) == list(range(1, 71))
    found = api("GET", "/api/v1/experiments/1/checkpoints?sortByAttr=SORT_BY_BATCH_NUMBER")["checkpoints"]
    assert [each["metadata"]["steps_completed"] for each in found] == [50, 60, 70]
    assert set(found[0]["resources"]) == {"metadata.json", "model.pt", "random_0.pt", "random_1.pt"}
