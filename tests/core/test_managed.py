"""`instep.core` in a task of a cluster: what it reads, what it says to the master, and that ranks stop together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Runner

from .conftest import SCRIPTS
from .fake_master import TOKEN, fake_master

ALLOCATION = "7.0b5b1a50-52e5-4e20-9b3e-0a8d1f3e0a11.2"
METRICS = "/api/v1/trials/9/(metrics|reports)"
CONFIG = {
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 50}},
    "data": {"set": "mnist"},
}


def task(tmp_path: Path, address: str, allocation: str = ALLOCATION) -> dict[str, str | None]:
    """The variables and files of a task of two machines, of which this is the first."""
    folder = tmp_path / "run" / "info"
    folder.mkdir(parents=True)
    (folder / "cluster.json").write_text(json.dumps({"allocation_id": allocation}))
    machines = {"container_addrs": ["127.0.0.1", "10.0.0.2"], "container_rank": 0, "container_slot_counts": [3, 3]}
    (folder / "rendezvous.json").write_text(json.dumps(machines))
    storage = {"type": "directory", "container_path": str(tmp_path / "storage"), "save_trial_best": 1}
    return {
        "DET_RUN_DIR": str(tmp_path / "run"),
        "DET_MASTER": address,
        "INSTEP_MASTER": None,
        "DET_CLUSTER_ID": "c",
        "DET_AGENT_ID": "agent-0",
        "DET_SLOT_IDS": "[0, 1, 2]",
        "DET_TASK_ID": ALLOCATION.rsplit(".", 1)[0],
        "DET_ALLOCATION_ID": ALLOCATION,
        "DET_SESSION_TOKEN": TOKEN,
        "DET_TASK_TYPE": "TRIAL",
        "DET_TRIAL_ID": "9",
        "DET_EXPERIMENT_ID": "7",
        "DET_TRIAL_RUN_ID": "2",
        "DET_TRIAL_SEED": "1234",
        "DET_HPARAMS": '{"rate": 0.1}',
        "DET_EXPERIMENT_CONFIG": json.dumps({**CONFIG, "checkpoint_storage": storage}),
        "DET_LATEST_CHECKPOINT": "5c0e7a4e-0000-4000-8000-000000000000",
        "HOME": str(tmp_path),
    }


@pytest.mark.parametrize("mode", ["WorkersAskChief", "ChiefOnly", "WorkersAskMaster"])
def test_all_ranks_stop_in_the_same_step(
    run: Runner, instep: Path, python: Path, tmp_path: Path, wait_until: Callable[..., None], mode: str
) -> None:
    with fake_master() as master:
        environment = {**task(tmp_path, master.address), "PYTHON_EXEC": str(python)}
        command = ("run", "--nproc-per-node=3", "--standalone", SCRIPTS / "managed.py", mode)
        running = run.start(instep, *command, env=environment)
        polls = 3 if mode == "WorkersAskMaster" else 1
        signals = rf"/api/v1/allocations/{ALLOCATION}/signals/"
        # Everybody has had a first answer and waits for the word.
        wait_until(lambda: len(master.asked(f"{signals}preemption")) >= 2 * polls, 60, "the ranks to ask")
        master.preempt.set()
        done = running.wait().expect(0)
        found = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '"stopped"' in line]
        assert sorted(each["rank"] for each in found) == [0, 1, 2]
        [step] = {each["stopped"] for each in found}
        assert step is not None
        assert not master.refused
        assert len(master.asked(f"{signals}ack_preemption")) == 1
        assert len(master.asked(f"{signals}preemption")) <= 3 * polls, "one long question at a time"
        for each in found:
            expected = 0 if each["rank"] == 0 else 5 if mode == "ChiefOnly" else 4
            assert len(each["refused"]) == expected, each["refused"]
            assert all("rank 0" in sentence and "hint:" in sentence for sentence in each["refused"])
            assert each["lengths"] == [50]
            assert (each["addresses"], each["machine"]) == (["127.0.0.1", "10.0.0.2"], 0)
            assert (each["slots"], each["hparams"], each["seed"]) == ([0, 1, 2], {"rate": 0.1}, 1234)
            assert (each["data"], each["latest"]) == ({"set": "mnist"}, "5c0e7a4e-0000-4000-8000-000000000000")
        [checkpoint] = master.asked("/api/v1/checkpoints")
        assert (checkpoint["allocationId"], checkpoint["storageId"]) == (ALLOCATION, 3)
        assert checkpoint["metadata"] == {"steps_completed": step}
        reports = master.asked(r"/api/v1/trials/9/(metrics|reports)")
        assert json.dumps(reports).count('"loss": 0.5') == 1
        assert not master.asked("/api/v1/trials/9"), "the cluster says how the trial ended, not the script"


def test_hyperparameters_that_make_no_sense_end_the_trial_well(run: Runner, python: Path, tmp_path: Path) -> None:
    script = (
        "import instep, instep.core\n"
        "with instep.core.init() as context:\n"
        "    raise instep.InvalidHP('rate is too large')\n"
    )
    with fake_master() as master:
        run(python, "-c", script, env=task(tmp_path, master.address)).expect(0)
        assert master.asked("/api/v1/trials/9/early_exit") == [{"reason": "EXITED_REASON_INVALID_HP"}]


def test_a_checkpoint_is_known_when_the_metrics_before_it_are(run: Runner, python: Path, tmp_path: Path) -> None:
    script = (
        "import instep.core\n"
        "with instep.core.init() as context:\n"
        "    context.train.report_training_metrics(1, {'x': 1})\n"
        "    with context.checkpoint.store_path({'steps_completed': 1}): pass\n"
    )
    with fake_master() as master:
        # A worker that is killed behind its checkpoint takes with it what it has not delivered.
        master.slow = METRICS
        run(python, "-c", script, env=task(tmp_path, master.address)).expect(0)
        order = [path for path in master.answered if re.fullmatch(f"{METRICS}|/api/v1/checkpoints", path)]
        assert len(order) == 2 and order[1] == "/api/v1/checkpoints"


def test_files_of_an_earlier_allocation_are_not_believed(run: Runner, python: Path, tmp_path: Path) -> None:
    script = "import instep; info = instep.get_cluster_info(); print(info.container_addrs)"
    environment = task(tmp_path, "http://127.0.0.1:1", allocation="7.other.1")
    failed = run(python, "-c", script, env=environment).expect(1)
    assert "have not met" in failed.stderr


def test_broken_files_are_named(run: Runner, python: Path, tmp_path: Path) -> None:
    script = "import instep; instep.get_cluster_info()"
    environment = task(tmp_path, "http://127.0.0.1:1")
    path = tmp_path / "run" / "info" / "rendezvous.json"
    for text, expected in (
        ("{", "cannot be read"),
        ("[]", "no JSON object"),
        ('{"container_rank": 4}', "which machine"),
    ):
        path.write_text(text)
        failed = run(python, "-c", script, env=environment).expect(1)
        assert str(path) in failed.stderr and expected in failed.stderr
