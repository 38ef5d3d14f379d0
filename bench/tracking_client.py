"""Measures how long the training thread spends in a report: our client, or MLflow's, in the interpreter that has it.

    INSTEP_MASTER=127.0.0.1:8080 PYTHON bench/tracking_client.py instep COUNT
    MLFLOW_TRACKING_URI=http://127.0.0.1:5000 PYTHON bench/tracking_client.py mlflow|mlflow-async COUNT

Ten metrics a report, a millisecond of "training" between two. Prints JSON: microseconds, the median and the 99th
percentile, and the seconds that the end took, when what is queued is delivered.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STEP_S = 0.001
WARM_UP = 50


@contextmanager
def ours() -> Iterator[Callable[[int, dict[str, float]], None]]:
    """Report through `instep.core`."""
    import instep.core

    with instep.core.init(config=instep.core.Config(name="bench")) as context:
        yield context.train.report_training_metrics


@contextmanager
def mlflow(synchronous: bool) -> Iterator[Callable[[int, dict[str, float]], None]]:
    """Report through `mlflow.log_metrics`."""
    import mlflow

    with mlflow.start_run():
        yield lambda step, metrics: mlflow.log_metrics(metrics, step=step, synchronous=synchronous)
        if not synchronous:
            mlflow.flush_async_logging()


def main(name: str, count: int) -> None:
    """Report, with a pause after each, and print the figures."""
    times = []
    client = ours() if name == "instep" else mlflow(synchronous=name == "mlflow")
    with client as report:
        for step in range(count + WARM_UP):
            metrics = {f"metric_{index}": 1.0 / (step + 1 + index) for index in range(10)}
            begin = time.perf_counter()
            report(step, metrics)
            times.append(time.perf_counter() - begin)
            time.sleep(STEP_S)
        end = time.perf_counter()
    found = sorted(times[WARM_UP:])
    figures = {"p50_us": found[len(found) // 2] * 1e6, "p99_us": found[len(found) * 99 // 100] * 1e6}
    print(json.dumps({**figures, "end_s": time.perf_counter() - end}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
