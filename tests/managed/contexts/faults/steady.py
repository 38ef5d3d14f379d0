"""Adds up its steps, saves now and then, can be held at certain moments, and never runs twice at the same time.

The test sees and steers it through the folder WATCH: `hold-MOMENT` holds it there, `reached-MOMENT` says that it is,
`die-saved` makes it kill itself right behind its first checkpoint, `runs` gets the step behind which every run begins,
`twice` appears if two processes run the same trial.
"""

import fcntl
import logging
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import TextIO

import instep
from instep import core

STEPS = 12
SAVE_EVERY = 4
WATCH = pathlib.Path(os.environ["WATCH"])


def alone(trial: int) -> TextIO:
    """Hold a lock for as long as this process lives."""
    file = (WATCH / f"lock-{trial}").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        (WATCH / "twice").write_text(f"trial {trial}\n")
        sys.exit("the trial runs already")
    return file


def pass_by(moment: str, trial: int) -> None:
    """Wait here for as long as the test wants."""
    if (WATCH / f"hold-{moment}").exists():
        (WATCH / f"reached-{moment}").write_text(f"{trial}\n")
    while (WATCH / f"hold-{moment}").exists():
        time.sleep(0.01)


def die(moment: str) -> None:
    """End at once, if the test wants that, and only the first time."""
    wanted = WATCH / f"die-{moment}"
    if wanted.exists():
        wanted.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def main(context: core.Context, info: core.ClusterInfo) -> None:
    trial = info.trial.trial_id
    x, begin = 0, 0
    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as folder:
            x, begin = (int(word) for word in (folder / "state").read_text().split(","))
    with (WATCH / "runs").open("a") as file:
        file.write(f"{trial} {begin}\n")
    for step in range(begin + 1, STEPS + 1):
        x += step
        time.sleep(0.02)
        context.train.report_training_metrics(step, {"x": x})
        if step == SAVE_EVERY + 2:
            pass_by("training", trial)
        if step % SAVE_EVERY == 0:
            with context.checkpoint.store_path({"steps_completed": step}) as (folder, _):
                (folder / "state").write_text(f"{x},{step}")
                if step == 2 * SAVE_EVERY:
                    pass_by("saving", trial)
            die("saved")
    context.train.report_validation_metrics(STEPS, {"x": x})
    pass_by("ending", trial)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=instep.LOG_FORMAT)
    if "STUBBORN" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    cluster = instep.get_cluster_info()
    assert cluster is not None, "it runs on a cluster only"
    lock = alone(cluster.trial.trial_id)
    # Something that nobody ends: it must not outlive the task, however that ends.
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    with core.init() as core_context:
        main(core_context, cluster)
