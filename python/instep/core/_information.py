"""What a script knows about the trial that it is, and about the cluster that it runs in, if it runs in one.

A task finds what the cluster says about it in its environment and in the files of `DET_RUN_DIR`/info
(`/run/determined/info`), under Determined's names. The variables of this very process decide whether it is a task at
all, and which: a file that speaks of another allocation is left from an earlier one and is not believed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RUN_FOLDER = "/run/determined"


@dataclass(frozen=True)
class RendezvousInfo:
    """The machines of an allocation, in the order of their ranks, and which of them this is."""

    container_addrs: tuple[str, ...]
    container_rank: int
    container_slot_counts: tuple[int, ...] = ()


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
    master_cert_name: str | None = None
    master_cert_file: str | None = None
    _trial_info: TrialInfo | None = None
    _rendezvous_info: RendezvousInfo | None = None
    _gpu_uuids: tuple[str, ...] = ()

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

    @property
    def container_addrs(self) -> list[str]:
        """The addresses of all machines of this allocation, in the order of their ranks."""
        return list(self._rendezvous().container_addrs)

    @property
    def container_rank(self) -> int:
        """Which of those machines this is."""
        return self._rendezvous().container_rank

    @property
    def container_slot_counts(self) -> list[int]:
        """How many slots each of those machines lends."""
        return list(self._rendezvous().container_slot_counts)

    @property
    def gpu_uuids(self) -> list[str]:
        """The GPUs of this machine that the task may use, as the driver names them."""
        return list(self._gpu_uuids)

    def _rendezvous(self) -> RendezvousInfo:
        if self._rendezvous_info is None:
            raise RuntimeError(f"the machines of this task ({self.task_id}) have not met: addresses are unknown")
        return self._rendezvous_info


def get_cluster_info() -> ClusterInfo | None:
    """What the cluster says about the task that runs this script; None for a script that somebody started by hand."""
    return read_cluster_info(os.environ)


def read_cluster_info(environment: Mapping[str, str]) -> ClusterInfo | None:
    """Put together what variables and files say; None if the variables do not speak of a task."""
    if "DET_CLUSTER_ID" not in environment or "DET_TASK_ID" not in environment:
        return None
    folder = Path(environment.get("DET_RUN_DIR") or RUN_FOLDER) / "info"
    cluster = _read(folder / "cluster.json")
    allocation = environment.get("DET_ALLOCATION_ID", "")
    ours = cluster.get("allocation_id", allocation) == allocation
    rendezvous = _read(folder / "rendezvous.json") if ours else {}
    resources = _read(folder / "resources.json") if ours else {}
    return ClusterInfo(
        master_url=environment.get("DET_MASTER", ""),
        cluster_id=environment["DET_CLUSTER_ID"],
        task_id=environment["DET_TASK_ID"],
        task_type=environment.get("DET_TASK_TYPE", ""),
        agent_id=environment.get("DET_AGENT_ID", ""),
        allocation_id=allocation,
        slot_ids=tuple(_json(environment, "DET_SLOT_IDS", "[]")),
        session_token=environment.get("DET_SESSION_TOKEN", ""),
        latest_checkpoint=environment.get("DET_LATEST_CHECKPOINT") or None,
        master_cert_name=environment.get("DET_MASTER_CERT_NAME") or None,
        master_cert_file=environment.get("DET_MASTER_CERT_FILE") or None,
        _trial_info=_trial(environment) if "DET_TRIAL_ID" in environment else None,
        _rendezvous_info=_machines(folder / "rendezvous.json", rendezvous) if rendezvous else None,
        _gpu_uuids=tuple(str(uuid) for uuid in resources.get("gpu_uuids") or ()),
    )


def _trial(environment: Mapping[str, str]) -> TrialInfo:
    return TrialInfo(
        trial_id=int(environment["DET_TRIAL_ID"]),
        experiment_id=int(environment["DET_EXPERIMENT_ID"]),
        trial_seed=int(environment.get("DET_TRIAL_SEED") or 0),
        hparams=_json(environment, "DET_HPARAMS", "{}"),
        _config=_json(environment, "DET_EXPERIMENT_CONFIG", "{}"),
        _steps_completed=int(environment.get("DET_STEPS_COMPLETED") or 0),
        _trial_run_id=int(environment.get("DET_TRIAL_RUN_ID") or 0),
    )


def _machines(path: Path, found: dict[str, Any]) -> RendezvousInfo:
    addresses, rank = found.get("container_addrs"), found.get("container_rank")
    if not isinstance(addresses, list) or not isinstance(rank, int) or not 0 <= rank < len(addresses):
        raise RuntimeError(f"{path} does not say which machine this is: {json.dumps(found)}")
    counts = found.get("container_slot_counts") or ()
    return RendezvousInfo(tuple(map(str, addresses)), rank, tuple(map(int, counts)))


def _json(environment: Mapping[str, str], name: str, empty: str) -> Any:  # noqa: ANN401
    try:
        return json.loads(environment.get(name) or empty)
    except ValueError as error:
        raise RuntimeError(f"{name} is not JSON: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    """Read a file that may be missing: a task that needs no meeting has no list of machines."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RuntimeError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise RuntimeError(f"{path} contains no JSON object")
    return found
