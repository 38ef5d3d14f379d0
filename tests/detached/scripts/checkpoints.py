"""Detached mode with checkpoints, resumed by external ids. Follows Determined's second detached tutorial.

Run it twice: the second run goes on where the first one's last checkpoint is.
"""

import sys

from determined.experimental import core_v2


def main(storage: str, first: int, last: int) -> None:
    core_v2.init(
        config=core_v2.Config(
            name="checkpoints",
            external_experiment_id="tests/my experiment",
            external_trial_id="trial ü",
            searcher={"name": "single", "metric": "loss"},
        ),
        checkpoint_storage=storage,
    )
    assert core_v2.info is not None
    latest = core_v2.info.latest_checkpoint
    start = 0
    if latest is not None:
        with core_v2.checkpoint.restore_path(latest) as path:
            start = int((path / "state").read_text()) + 1
    print("initial step:", start)
    assert start == first
    for step in range(start, last):
        core_v2.train.report_training_metrics(steps_completed=step, metrics={"loss": float(last), "step": step})
        if (step + 1) % 10 == 0:
            core_v2.train.report_validation_metrics(steps_completed=step, metrics={"loss": 1 / (step + 1)})
        if (step + 1) % 20 == 0:
            with core_v2.checkpoint.store_path({"steps_completed": step}) as (path, _uuid):
                (path / "state").write_text(str(step))
                (path / "folder").mkdir()
                (path / "folder" / "inner").write_text("inner")
    core_v2.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
