"""The tutorial's later stages with `instep.core` and `instep experiment create`, and ranks that stop in step."""

from __future__ import annotations

import json
import re
import signal
from datetime import datetime
from pathlib import Path

from conftest import Result, Runner

from .conftest import CONTEXTS, SEARCH, Cluster, rows

OURS = CONTEXTS / "ours"


def tutorial(folder: Path) -> Path:
    """Write the tutorial's third stage with our imports in the place of Determined's; give its folder."""
    text = (CONTEXTS / "tutorial" / "checkpoints.py").read_text()
    for before, after in [
        ("import determined as det", "import instep as det"),
        ("from determined import core", "from instep import core"),
        ("tensorboard_mode=core.TensorboardMode.MANUAL", ""),
    ]:
        assert before in text
        text = text.replace(before, after)
    context = folder / "ours"
    context.mkdir()
    (context / "checkpoints.py").write_text(text)
    return context


def ours(run: Runner, instep: Path, cluster: Cluster, *words: str | Path, status: int = 0) -> Result:
    """Our own command line."""
    environment = {"INSTEP_MASTER": cluster.master.address, "HOME": str(cluster.master.database.parent)}
    return run(instep, *words, env=environment, timeout=150).expect(status)


def created(
    run: Runner,
    instep: Path,
    cluster: Cluster,
    config: dict[str, object],
    context: Path,
    *options: str,
    status: int = 0,
) -> Result:
    """Create an experiment with our own command."""
    return ours(run, instep, cluster, "e", "create", cluster.written(config), context, *options, status=status)


def test_interrupted_and_resumed(run: Runner, instep: Path, python: Path, cluster: Cluster, tmp_path: Path) -> None:
    cluster.agent("one", 1, python=python)
    config = cluster.config("python3 checkpoints.py 0.05", hyperparameters={"increment_by": 2})
    created(run, instep, cluster, config, tutorial(tmp_path))
    cluster.wait_until(lambda: cluster.trials(1), 30, "a trial")
    cluster.wait_for_steps(1, 20)
    cluster.api("POST", "/api/v1/experiments/1/pause")
    cluster.wait_until(lambda: "asked to stop behind" in cluster.text(1), 30, "the trial to stop")
    cluster.api("POST", "/api/v1/experiments/1/activate")
    cluster.wait_for(1, "STATE_COMPLETED")
    assert {step: row["x"] for step, row in rows(cluster.api, 1, "training").items()} == {
        step: 2 * step for step in range(10, 101, 10)
    }
    said = ours(run, instep, cluster, "experiment", "cancel", "1")
    assert said.stderr == "experiment 1 has already ended (completed)\n"


def test_search_is_followed_to_its_end(
    run: Runner, instep: Path, python: Path, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.agent("one", 4, python=python)
    config = cluster.config("python3 checkpoints.py 0", **SEARCH)
    said = created(run, instep, cluster, config, tutorial(tmp_path), "-f")
    cluster.wait_for(1, "STATE_COMPLETED")
    trials = cluster.trials(1)
    lines = said.stdout.splitlines()
    for trial in trials:
        own = [line for line in lines if line.startswith(f"trial {trial['id']} | ")]
        log = cluster.text(trial["id"]).splitlines()
        assert [line.partition(" | ")[2] for line in own] == log, "every line once, in its order"
    assert "\x1b" not in said.stdout, "colours are for terminals"
    logged = ours(run, instep, cluster, "e", "logs", "1").stdout.splitlines()
    assert sorted(logged) == sorted(line for line in lines if line.startswith("trial "))
    assert len(trials) == 10
    assert {trial["state"] for trial in trials} == {"STATE_COMPLETED"}


def test_more_important_work_takes_the_slots_and_gives_them_back(
    run: Runner, instep: Path, python: Path, cluster: Cluster, tmp_path: Path
) -> None:
    # As in Determined, nobody has to make room unless the master is told so.
    cluster.master.stop()
    cluster.master.start(cluster.wait_until, "--preemption")
    cluster.agent("one", 4, python=python)
    seen = tmp_path / "seen"
    seen.mkdir()
    environment = {"environment_variables": [f"SEEN={seen}"]}
    common = {"environment": environment, "resources": {"slots_per_trial": 4, "priority": 50}}
    created(run, instep, cluster, cluster.config("together.py", **common), OURS)
    cluster.wait_until(lambda: cluster.trials(1), 30, "a trial")
    cluster.wait_for_steps(1, 10)
    urgent = cluster.config(["sleep", "1"], resources={"slots_per_trial": 4, "priority": 10})
    created(run, instep, cluster, urgent, OURS)
    cluster.wait_for(2, "STATE_COMPLETED")
    cluster.wait_for(1, "STATE_COMPLETED")
    stopped = [(seen / f"stopped-{rank}").read_text() for rank in range(4)]
    assert len(set(stopped)) == 1, "all ranks stop in the same step"
    [trial] = cluster.trials(1)
    assert trial["restarts"] == 0
    # As if nothing had happened: 60 steps, each adding 0 + 1 + 2 + 3 and four times its number.
    assert {step: row["x"] for step, row in rows(cluster.api, 1, "validation").items()} == {
        60: 60 * 6 + 4 * sum(range(61))
    }


def test_searcher_metric_that_is_never_reported(run: Runner, instep: Path, cluster: Cluster, tmp_path: Path) -> None:
    cluster.agent("one", 2)
    context = tmp_path / "other"
    context.mkdir()
    (context / "train.py").write_text(
        "from determined import core\n"
        "with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:\n"
        "    context.train.report_validation_metrics(1, {'accuracy': 0.5})\n"
    )
    warning = "this trial has not reported `x`, the searcher's metric: it reported `accuracy`"
    # One trial is compared with nothing: it completes, and people are told.
    said = created(run, instep, cluster, cluster.config("python3 train.py"), context, "-f")
    assert f"WARNING: {warning}" in said.stdout
    assert "warning: no trial reported a number for `x`, the searcher's metric" in said.stderr
    # A search that has nothing to compare by has found nothing.
    searcher = {"name": "random", "metric": "x", "max_trials": 2}
    said = created(run, instep, cluster, cluster.config("python3 train.py", searcher=searcher), context, "-f", status=1)
    assert said.stdout.count(warning) == 2
    verdict = "the experiment fails: no trial reported `x`, the searcher's metric: the trials reported `accuracy`"
    assert f"ERROR: {verdict}" in said.stdout
    assert f"error: experiment 2 failed: {verdict.partition(': ')[2]}\nhint: see its logs" in said.stderr
    assert cluster.experiment(2)["state"] == "STATE_ERROR"
    assert {trial["state"] for trial in cluster.trials(2)} == {"STATE_COMPLETED"}
    assert warning in ours(run, instep, cluster, "master", "logs").stdout
    # Of the trials that fail with their search, one that has run is named: the others have nothing to tell.
    searcher = {"name": "adaptive_asha", "metric": "x", "max_trials": 8, "time_metric": "batches", "max_time": 4}
    said = created(run, instep, cluster, cluster.config("python3 train.py", searcher=searcher), context, "-f", status=1)
    named = int(said.stderr.rpartition("instep trial logs ")[2].strip(" `\n"))
    ran = [trial["id"] for trial in cluster.trials(3) if trial["firstRunTime"]]
    assert named in ran and len(ran) < len(cluster.trials(3)), said
    why = f"its search failed on trial {named}: a validation has no searcher metric `x`, only accuracy"
    assert f"error: experiment 3 failed: {why}\n" in said.stderr, said
    assert "on request" not in said.stderr and "more failed" not in said.stderr, said
    assert why in ours(run, instep, cluster, "experiment", "describe", "3").stdout
    assert f"it was stopped: {why}" in ours(run, instep, cluster, "trial", "describe", str(named)).stdout
    waited = next(trial["id"] for trial in cluster.trials(3) if not trial["firstRunTime"])
    assert ours(run, instep, cluster, "trial", "logs", str(waited)).stderr == "no log lines\n"


def test_logs_open_with_what_people_want_to_know(run: Runner, instep: Path, cluster: Cluster) -> None:
    cluster.agent("one", 1)
    hyperparameters = {"rate": 0.5, "layers": [1, 2]}
    config = cluster.config("echo output", hyperparameters=hyperparameters)
    created(run, instep, cluster, config, OURS, "-f")
    lines = [line["log"].rstrip("\n") for line in cluster.logs(1)]
    begun = next(place for place, line in enumerate(lines) if "New trial runner in" in line)
    assert lines[begun].endswith(") on agent one: layers=[1,2], rate=0.5")
    assert begun < lines.index("output")
    assert max(map(len, lines)) < 300
    # A command is said to have started before it writes anything, however short it is.
    for _ in range(5):
        said = ours(run, instep, cluster, "cmd", "run", "echo", "output").stdout
        assert 0 < said.index("this command has started on agent one") < said.index("output")


def test_time_in_the_queue_is_not_time_of_running(run: Runner, instep: Path, cluster: Cluster) -> None:
    created(run, instep, cluster, cluster.config("true"), OURS)
    cluster.wait_until(lambda: cluster.trials(1), 30, "the trial")
    cluster.wait_until(lambda: cluster.experiment(1)["duration"] >= 2, 30, "time to pass in the queue")
    [listed] = json.loads(ours(run, instep, cluster, "e", "list", "--json").stdout)
    assert listed["firstRunTime"] is None
    assert [trial["wallClockTime"] for trial in cluster.trials(1)] == [0]
    queued = ours(run, instep, cluster, "e", "describe", "1").stdout
    assert "Submitted:" in queued and "Started:" not in queued and "Took:" not in queued
    cluster.agent("one", 1)
    ended = cluster.wait_for(1, "STATE_COMPLETED")
    [trial] = cluster.trials(1)
    for found in (ended, trial):
        waited = moment(found["firstRunTime"]) - moment(found["startTime"])
        assert waited.total_seconds() >= 2
    ran = moment(trial["endTime"]) - moment(trial["firstRunTime"])
    assert 0 < trial["wallClockTime"] <= ran.total_seconds()
    described = ours(run, instep, cluster, "e", "describe", "1").stdout
    assert re.search(r"^Waited: +\d+s for slots$", described, re.MULTILINE), described


def test_an_agent_that_is_gone_is_offline(run: Runner, instep: Path, cluster: Cluster) -> None:
    cluster.agent("one", 1).send_signal(signal.SIGKILL)
    cluster.wait_until(
        lambda: not cluster.api("GET", "/api/v1/agents")["agents"][0]["connected"], 30, "the master to notice"
    )
    for kind in ("agent", "slot"):
        assert "offline" in ours(run, instep, cluster, kind, "list").stdout


def moment(text: str) -> datetime:
    """Read a time of the API."""
    return datetime.fromisoformat(text)
