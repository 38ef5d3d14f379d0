"""What a script knows about the trial that it is, and about the cluster that it runs in, if it runs in one."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TrialInfo:
    """The trial that this script is."""

    trial_id: int
    experiment_id: int
    trial_seed: int
    hparams: dict[str, Any]
    _config: dict[str, Any] = field(default_factory=dict, repr=False)
    _steps_completed: int = 0
    _trial_run_id: int = 0


@dataclass(frozen=True)
class ClusterInfo:
    """Where this script runs, and what it goes on from."""

    master_url: str
    cluster_id: str
    task_id: str
    task_type: str
    agent_id: str = ""
    allocation_id: str = ""
    slot_ids: tuple[int, ...] = ()
    session_token: str = field(default="", repr=False)
    latest_checkpoint: str | None = None
    _trial_info: TrialInfo | None = None

    @property
    def trial(self) -> TrialInfo:
        """The trial; an error if this is a task of another kind."""
        if self._trial_info is None:
            raise RuntimeError(f"a task of type {self.task_type} has no trial")
        return self._trial_info

    @property
    def user_data(self) -> dict[str, Any]:
        """The `data` of the experiment's configuration."""
        data = self.trial._config.get("data")
        return data if isinstance(data, dict) else {}


def get_cluster_info() -> ClusterInfo | None:
    """What the cluster says about the task that runs this script; None for a script that somebody started by hand."""
    environment = os.environ
    if "DET_CLUSTER_ID" not in environment or "DET_TASK_ID" not in environment:
        return None
    trial = None
    if "DET_TRIAL_ID" in environment:
        trial = TrialInfo(
            trial_id=int(environment["DET_TRIAL_ID"]),
            experiment_id=int(environment["DET_EXPERIMENT_ID"]),
            trial_seed=int(environment.get("DET_TRIAL_SEED") or 0),
            hparams=json.loads(environment.get("DET_HPARAMS") or "{}"),
            _config=json.loads(environment.get("DET_EXPERIMENT_CONFIG") or "{}"),
            _steps_completed=int(environment.get("DET_STEPS_COMPLETED") or 0),
            _trial_run_id=int(environment.get("DET_TRIAL_RUN_ID") or 0),
        )
    return ClusterInfo(
        master_url=environment.get("DET_MASTER", ""),
        cluster_id=environment["DET_CLUSTER_ID"],
        task_id=environment["DET_TASK_ID"],
        task_type=environment.get("DET_TASK_TYPE", ""),
        agent_id=environment.get("DET_AGENT_ID", ""),
        allocation_id=environment.get("DET_ALLOCATION_ID", ""),
        slot_ids=tuple(json.loads(environment.get("DET_SLOT_IDS") or "[]")),
        session_token=environment.get("DET_SESSION_TOKEN", ""),
        latest_checkpoint=environment.get("DET_LATEST_CHECKPOINT") or None,
        _trial_info=trial,
    )
