"""The tutorial's later stages with `instep.core` and `instep experiment create`, and ranks that stop in step."""

from __future__ import annotations

from pathlib import Path

from conftest import Runner

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


def created(
    run: Runner, instep: Path, cluster: Cluster, config: dict[str, object], context: Path, *options: str
) -> None:
    """Create an experiment with our own command."""
    environment = {"INSTEP_MASTER": cluster.master.address, "HOME": str(cluster.master.database.parent)}
    words: list[str | Path] = ["experiment", "create", cluster.written(config), context, *options]
    run(instep, *words, env=environment, timeout=150).expect(0)


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


def test_search_is_followed_to_its_end(
    run: Runner, instep: Path, python: Path, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.agent("one", 4, python=python)
    created(run, instep, cluster, cluster.config("python3 checkpoints.py 0", **SEARCH), tutorial(tmp_path), "-f")
    cluster.wait_for(1, "STATE_COMPLETED")
    trials = cluster.trials(1)
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
