"""Reporting how training goes."""

from __future__ import annotations

import enum
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from instep.core.errors import MasterRefused

if TYPE_CHECKING:
    from instep.core._tracking import Tracking

logger = logging.getLogger("instep.core")
# How long a managed trial waits until the search knows its validation; longer and it goes on unjudged.
JUDGED_S = 60.0


class EarlyExitReason(enum.Enum):
    """Why a trial ends before its time."""

    INVALID_HP = "EXITED_REASON_INVALID_HP"
    USER_REQUESTED_STOP = "EXITED_REASON_USER_REQUESTED_STOP"


class TrainContext:
    """Metrics, progress and other words about the trial.

    Every rank of a detached trial may report; in a trial that a cluster runs, rank 0 does.

    Reports are queued and return at once, in microseconds; a report that the master refuses is logged as a warning.
    Only validations of a managed trial wait until the master has them, because the search judges the trial by them.
    """

    def __init__(self, tracking: Tracking | None, tensorboard: Path) -> None:
        self._tracking = tracking
        self._reporter = tracking.reporter if tracking is not None else None
        self._tensorboard = tensorboard

    def report_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]] | None = None
    ) -> None:
        """Report metrics of training, and perhaps of single batches."""
        self._report("training", steps_completed, metrics, batch_metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of a validation."""
        self._report("validation", steps_completed, metrics, None)

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of a group of your own; reports at one step are joined, and a metric keeps its first value."""
        if not group or "." in group:
            raise ValueError(f"{group!r} cannot be a group of metrics: it must not be empty or contain a dot")
        self._report(group, steps_completed, metrics, None)

    def _report(self, group: str, step: int, metrics: dict[str, Any], batches: list[dict[str, Any]] | None) -> None:
        self._require_chief("context.train.report_metrics")
        if self._reporter is None:
            return
        news = self._reporter.report(group, step, metrics, batches)
        if group == "validation" and self._tracking is not None and self._tracking.managed:
            # A search judges by it: a trial that goes on has been judged by what it has reported.
            self._reporter.flush(JUDGED_S)
        if news:
            self._print_news()

    def _print_news(self) -> None:
        assert self._reporter is not None
        for sentence in self._reporter.news():
            logger.warning("%s", sentence)

    def report_progress(self, progress: float) -> None:
        """Say how far the training is, from 0 to 1."""
        self._require_chief("context.train.report_progress")
        if not 0 <= progress <= 1:
            raise ValueError(f"progress must be from 0 to 1, not {progress}")
        if self._reporter is not None and self._reporter.progress(progress):
            self._print_news()

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Tell the searcher why this trial of a cluster will end early; detached trials have no searcher to tell."""
        if self._tracking is None or not self._tracking.managed:
            return
        self._require_chief("context.train.report_early_exit")
        path = f"/api/v1/trials/{self._tracking.trial_id}/early_exit"
        self._tracking.call("POST", path, {"reason": EarlyExitReason(reason).value}, repeat=True)

    def _require_chief(self, what: str) -> None:
        if self._tracking is not None:
            self._tracking.require_chief(what)

    def set_status(self, status: str) -> None:
        """Say what the trial is doing, in a few words."""
        if self._tracking is not None:
            trial = self._tracking.trial_id
            self._tracking.call("POST", f"/api/v1/trials/{trial}/runner/metadata", {"state": status}, repeat=True)

    def set_metadata(self, metadata: dict[str, Any]) -> dict[str, Any] | None:
        """Replace the metadata of the trial; gives what is stored."""
        if self._tracking is None:
            return None
        path = f"/api/v1/runs/{self._tracking.trial_id}/metadata"
        answer = self._tracking.call("POST", path, {"metadata": metadata}, repeat=True)
        return _object(answer.get("metadata"))

    def get_metadata(self) -> dict[str, Any] | None:
        """Give the metadata of the trial."""
        if self._tracking is None:
            return None
        return _object(self._tracking.call("GET", f"/api/v1/runs/{self._tracking.trial_id}/metadata").get("metadata"))

    def get_experiment_best_validation(self) -> float | None:
        """Give the best value of the searcher's metric in the whole experiment so far; None before the first."""
        if self._tracking is None:
            return None
        path = f"/api/v1/experiments/{self._tracking.experiment_id}/searcher/best_searcher_validation_metric"
        try:
            return float(self._tracking.call("GET", path)["metric"])
        except MasterRefused as refused:
            if refused.status == 404:
                return None
            raise

    def get_tensorboard_path(self) -> Path:
        """Give a folder of this trial for TensorBoard's files; they stay where they are written."""
        self._tensorboard.mkdir(parents=True, exist_ok=True)
        return self._tensorboard


def _object(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None
