"""What a script says about itself, and where its checkpoints go."""

from __future__ import annotations

import enum
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Storage = str | dict[str, Any]


class TensorboardMode(enum.Enum):
    """Whether TensorBoard's files are uploaded; taken for scripts that say it, and nothing is uploaded in any mode."""

    AUTO = "AUTO"
    MANUAL = "MANUAL"


@dataclass
class Config:
    """What an experiment is called, and how its trials are found again."""

    name: str | None = None
    hparams: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    description: str | None = None
    labels: list[str] | None = None
    workspace: str | None = None
    project: str | None = None
    checkpoint_storage: Storage | None = None
    searcher: dict[str, Any] | None = None
    # A script that is started again with the same two goes on with its trial.
    external_experiment_id: str | None = None
    external_trial_id: str | None = None

    def __post_init__(self) -> None:
        """Refuse what could not be found again."""
        if self.external_trial_id is not None and self.external_experiment_id is None:
            raise ValueError(
                "external_trial_id identifies a trial within an experiment\nhint: give external_experiment_id too"
            )

    def text(self, storage: dict[str, Any]) -> str:
        """Give the experiment's configuration; the master reads YAML, of which JSON is a part."""
        script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c") else "detached"
        return json.dumps(
            {
                "name": self.name or script,
                "data": self.data,
                "description": self.description,
                "labels": self.labels,
                "searcher": self.searcher or {"name": "single", "metric": "unmanaged"},
                "workspace": self.workspace,
                "project": self.project,
                "checkpoint_storage": storage,
            }
        )


def data_folder() -> Path:
    """Where this user's data is kept unless somebody says otherwise."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "instep"


def storage_config(given: Storage | None) -> dict[str, Any]:
    """The storage as the master is told: a path becomes a folder's configuration."""
    if given is None:
        return {"type": "directory", "container_path": str(data_folder() / "checkpoints")}
    if isinstance(given, dict):
        storage_root(given)
        return given
    if "://" in given:
        raise ValueError(f"checkpoints cannot be stored in {given} yet\nhint: give the path of a folder")
    return {"type": "directory", "container_path": str(Path(given).absolute())}


def storage_root(config: dict[str, Any]) -> Path:
    """The folder that a storage's configuration means."""
    kind = config.get("type")
    if kind == "directory" and isinstance(config.get("container_path"), str):
        return Path(config["container_path"])
    if kind == "shared_fs" and isinstance(config.get("host_path"), str):
        root = Path(config["host_path"])
        inner = config.get("storage_path") or ""
        found = Path(os.path.normpath(root / inner))
        if not found.is_relative_to(root):
            raise ValueError(f"storage_path {inner!r} is outside host_path {str(root)!r}")
        return found
    raise ValueError(
        f"checkpoints cannot be stored in {kind!r} yet\n"
        "hint: {'type': 'directory', 'container_path': ...} or {'type': 'shared_fs', 'host_path': ...}"
    )
