"""Reports step after step, metrics of the machine and output too, without ever looking at the master.

Its arguments are how many steps to report, and a file: when that exists, it ends.
"""

import sys
import time
from pathlib import Path

import instep.core


def main(steps: int, signal: Path) -> None:
    with instep.core.init(config=instep.core.Config(name="steady")) as context:
        for step in range(steps):
            batches = [{"inner": step}]
            context.train.report_training_metrics(steps_completed=step, metrics={"value": step}, batch_metrics=batches)
            context.train.report_metrics("other", steps_completed=step, metrics={"value": -step})
            print("line", step)
            time.sleep(0.001)
        while not signal.exists():
            time.sleep(0.01)
        context.train.report_validation_metrics(steps_completed=steps, metrics={"loss": 0.5})


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
