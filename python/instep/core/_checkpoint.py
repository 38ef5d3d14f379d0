"""Saving and restoring checkpoints, by one rank or by all together.

A checkpoint is a folder named by a UUID in the storage's folder, as Determined has it. It appears at once, when all
ranks have written, with a list of its files and their hashes, which is verified when it is restored.
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from instep import _ledger
from instep._native import CheckpointFolder
from instep.core._tracking import on_all, on_chief

if TYPE_CHECKING:
    from instep.core._distributed import DistributedContext
    from instep.core._tracking import Tracking

logger = logging.getLogger("instep.core")
# How long a checkpoint waits for metrics that are on their way; without them it is still better than none.
DELIVERED_S = 60.0
Selector = Callable[[str], bool]
METADATA = "metadata.json"
MANIFEST = "instep-manifest.json"


class DownloadMode(enum.Enum):
    """Whether the ranks of a machine restore a checkpoint together, which all must call then, or each for itself."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Saves to and restores from a folder that all ranks share."""

    def __init__(self, distributed: DistributedContext, root: Path, tracking: Tracking | None) -> None:
        self._distributed = distributed
        self._root = root
        self._folder = CheckpointFolder(str(root))
        self._tracking = tracking

    @contextlib.contextmanager
    def store_path(self, metadata: dict[str, Any] | None = None, *, shard: bool = False) -> Iterator[tuple[Path, str]]:
        """Give a folder to write into, and the checkpoint's UUID; at the end of the block it becomes a checkpoint.

        `metadata` must have `steps_completed`. With `shard`, all ranks call this, each writes into a folder of its own,
        and the checkpoint holds the files of all; two ranks must not save different content under one name, nor
        different values under one key of the metadata. Without it, rank 0 alone calls this.
        """
        if not shard:
            self._only_chief("store_path")
        ranks = _Together(self._distributed) if shard else _Alone()
        with _ledger.during(_ledger.CHECKPOINT), self._saving(ranks, metadata) as place:
            yield place

    def upload(
        self,
        ckpt_dir: str | os.PathLike[str] | None,
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Selector | None = None,
    ) -> str:
        """Make a checkpoint of a folder's content, or of what `selector` picks by name; gives its UUID.

        With `shard`, all ranks call this; those with nothing to save give None.
        """
        if ckpt_dir is None and (not shard or selector is not None):
            raise ValueError("upload needs a folder, except on ranks that have nothing to save, with shard=True")
        with self.store_path(metadata, shard=shard) as (path, storage_id):
            if ckpt_dir is not None:
                # The new checkpoint's own are given, and not copied.
                _copy(Path(ckpt_dir), path, selector, without=frozenset({MANIFEST, METADATA}))
        return storage_id

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> Iterator[Path]:
        """Give the folder of a checkpoint, its files verified: all, or those that any rank's `selector` picks."""
        with _ledger.during(_ledger.CHECKPOINT):
            if DownloadMode(download_mode) is DownloadMode.NoSharedDownload:
                yield self._open(storage_id, self._picked(storage_id, selector))
            else:
                yield self._open_together(storage_id, selector)

    def download(
        self,
        storage_id: str,
        ckpt_dir: str | os.PathLike[str],
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Copy a checkpoint into a folder, its files verified: all, or those that any rank's `selector` picks."""
        with _ledger.during(_ledger.CHECKPOINT):
            self._download(storage_id, Path(ckpt_dir), download_mode, selector)

    def _download(self, storage_id: str, target: Path, download_mode: DownloadMode, selector: Selector | None) -> None:
        if DownloadMode(download_mode) is DownloadMode.NoSharedDownload:
            source = self._open(storage_id, self._picked(storage_id, selector))
            _copy(source, target, selector, without=frozenset({MANIFEST}))
            return
        source, names = self._chosen_together(storage_id, selector)

        def copy() -> None:
            if self._distributed.local_rank == 0:
                picked = None if names is None else set(names).__contains__
                _copy(source, target, picked, without=frozenset({MANIFEST}))

        _on_machine(self._distributed, copy)

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """Give the metadata that a checkpoint was saved with."""
        if self._tracking is not None:
            answer = self._tracking.call("GET", f"/api/v1/checkpoints/{storage_id}")
            metadata = answer["checkpoint"]["metadata"]
        else:
            path, _ = self._folder.open(storage_id, [METADATA])
            metadata = json.loads((Path(path) / METADATA).read_text())
        assert isinstance(metadata, dict)
        return metadata

    def delete(self, storage_id: str) -> None:
        """Delete a checkpoint's files, and tell the master."""
        self._folder.delete(storage_id)
        if self._tracking is not None:
            body = {"checkpoints": [{"uuid": storage_id, "resources": {"resources": {}}}]}
            self._tracking.call("PATCH", "/api/v1/checkpoints", body)

    def _only_chief(self, what: str) -> None:
        if self._distributed.rank != 0:
            raise RuntimeError(
                f"{what} without shard=True is for rank 0, and this is rank {self._distributed.rank}\n"
                "hint: call it on rank 0 only, or on all ranks with shard=True"
            )

    @contextlib.contextmanager
    def _saving(self, ranks: _Ranks, metadata: dict[str, Any] | None) -> Iterator[tuple[Path, str]]:
        storage_id = ranks.on_chief(lambda: str(uuid.uuid4()))
        given = dict(metadata or {})
        try:
            places = ranks.on_all(lambda: [self._folder.begin(storage_id, ranks.rank)])
            place = Path(places[ranks.rank][0])
            failure: BaseException | None = None
            try:
                yield place, storage_id
            except BaseException as error:
                failure = error
            if failure is not None and not isinstance(failure, Exception):
                # Ctrl-C or an exit: nobody waits for anybody any more.
                raise failure
            self._finish(ranks, storage_id, given, failure)
        except BaseException:
            # Every rank may do this; whoever comes second finds nothing.
            with contextlib.suppress(OSError):
                self._folder.abandon(storage_id)
            raise

    def _finish(self, ranks: _Ranks, storage_id: str, metadata: dict[str, Any], failure: BaseException | None) -> None:
        def sealed() -> tuple[list[tuple[str, int, str]], str]:
            if failure is not None:
                raise failure
            return self._folder.seal(storage_id, ranks.rank), json.dumps(metadata)

        lists = ranks.on_all(sealed)
        merged = merge_metadata([json.loads(text) for _, text in lists])
        if not _is_whole(merged.get("steps_completed")):
            raise ValueError(
                "the metadata of a checkpoint must have steps_completed, a whole number\n"
                "hint: store_path({'steps_completed': step})"
            )
        files, brought = CheckpointFolder.merge([[(n, s, h) for n, s, h in listed] for listed, _ in lists])
        ranks.on_all(lambda: self._folder.join(storage_id, ranks.rank, brought[ranks.rank]))

        def commit() -> None:
            text = json.dumps(merged, indent=2) + "\n"
            resources = self._folder.commit(storage_id, text, files)
            self._report(storage_id, merged, resources)

        ranks.on_chief(commit)

    def _report(self, storage_id: str, metadata: dict[str, Any], resources: list[tuple[str, int]]) -> None:
        tracking = self._tracking
        if tracking is None:
            return
        body = {
            "uuid": storage_id,
            "taskId": tracking.task_id,
            "allocationId": tracking.info.allocation_id or None,
            "state": "STATE_COMPLETED",
            "storageId": tracking.storage_id,
            "reportTime": datetime.datetime.now(datetime.timezone.utc).isoformat(),
            "metadata": metadata,
            "resources": {name: str(size) for name, size in resources},
            "training": {},
        }
        # A run that goes on from here reports what comes behind it: what came before must be there by then.
        tracking.reporter.flush(DELIVERED_S)
        # The UUID makes saying it twice the same as saying it once.
        tracking.call("POST", "/api/v1/checkpoints", body, repeat=True)

    def _picked(self, storage_id: str, selector: Selector | None) -> list[str] | None:
        if selector is None:
            return None
        return [name for name, _ in self._folder.files(storage_id) if selector(name)]

    def _open(self, storage_id: str, names: list[str] | None) -> Path:
        path, verified = self._folder.open(storage_id, names)
        if not verified:
            logger.info("checkpoint %s has no list of its files, so they are not verified", storage_id)
        return Path(path)

    def _chosen_together(self, storage_id: str, selector: Selector | None) -> tuple[Path, list[str] | None]:
        """Let the first rank of the machine verify what any of its ranks wants."""
        picks = _on_machine(self._distributed, lambda: self._picked(storage_id, selector))
        names = None if any(pick is None for pick in picks) else sorted({name for pick in picks for name in pick or ()})

        def verify() -> str:
            return str(self._open(storage_id, names)) if self._distributed.local_rank == 0 else ""

        return Path(_on_machine(self._distributed, verify)[0]), names

    def _open_together(self, storage_id: str, selector: Selector | None) -> Path:
        return self._chosen_together(storage_id, selector)[0]


class _Ranks:
    """Those who save together."""

    rank: int

    def on_chief(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401
        raise NotImplementedError

    def on_all(self, work: Callable[[], Any]) -> list[Any]:
        raise NotImplementedError


class _Alone(_Ranks):
    rank = 0

    def on_chief(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401
        return work()

    def on_all(self, work: Callable[[], Any]) -> list[Any]:
        return [work()]


class _Together(_Ranks):
    def __init__(self, distributed: DistributedContext) -> None:
        self._distributed = distributed
        self.rank = distributed.rank

    def on_chief(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401
        return on_chief(self._distributed, work)

    def on_all(self, work: Callable[[], Any]) -> list[Any]:
        return on_all(self._distributed.allgather, work)


def merge_metadata(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the metadata of all ranks: dictionaries key by key; another value must be the same on all that have it."""
    merged: dict[str, Any] = {}
    origin: dict[str, int] = {}

    def join(into: dict[str, Any], given: dict[str, Any], rank: int, path: str) -> None:
        for key, value in given.items():
            here = f"{path}{key}"
            if isinstance(value, dict) and isinstance(into.setdefault(key, {}), dict):
                origin.setdefault(here, rank)
                join(into[key], value, rank, f"{here}/")
            elif key not in into:
                into[key], origin[here] = value, rank
            elif into[key] != value:
                raise ValueError(
                    f"ranks {origin.get(here, 0)} and {rank} give different metadata for `{here}`: "
                    f"{into[key]!r} and {value!r}"
                )

    for rank, given in enumerate(ranks):
        join(merged, given, rank, "")
    return merged


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _on_machine(distributed: DistributedContext, work: Callable[[], Any]) -> list[Any]:
    """Let every rank of this machine do something; an error of one is raised on all."""
    return on_all(distributed.allgather_local, work, "local rank")


def _copy(source: Path, target: Path, selector: Selector | None, *, without: frozenset[str]) -> None:
    """Copy a folder's content, or what is picked of it, without some names at its top."""
    target.mkdir(parents=True, exist_ok=True)
    for folder, folders, files in os.walk(source):
        inner = Path(folder).relative_to(source)
        for name in folders:
            relative = f"{(inner / name).as_posix()}/"
            if selector is None or selector(relative):
                (target / inner / name).mkdir(parents=True, exist_ok=True)
        for name in files:
            relative = (inner / name).as_posix()
            if relative in without:
                continue
            if selector is None or selector(relative):
                (target / inner).mkdir(parents=True, exist_ok=True)
                shutil.copy2(Path(folder) / name, target / inner / name)
