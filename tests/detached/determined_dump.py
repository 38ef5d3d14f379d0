"""Writes small plain dumps as `pg_dump` does, of the tables and columns that `instep import determined` reads.

They are a schema of our own: just enough of Determined's for the tests that run everywhere. Tests with Determined's own
migrations are in test_import_of_determined.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

LAST_MIGRATION = 20241024164947
CLUSTER = "c1"

# Columns in an order of our own: the importer finds them by name.
COLUMNS = {
    "gopg_migrations": "id version created_at",
    "cluster_id": "cluster_id cluster_heartbeat",
    "users": "id username password_hash admin active display_name modified_at remote last_auth_at",
    "agent_user_groups": "id user_id user_ uid group_ gid",
    "groups": "id group_name user_id",
    "user_group_membership": "user_id group_id",
    "role_assignment_scopes": "id scope_workspace_id",
    "role_assignments": "group_id role_id scope_id",
    "workspaces": "id name archived created_at user_id immutable state uid user_ gid group_ checkpoint_storage_config",
    "projects": "id name description archived created_at notes workspace_id user_id immutable key",
    "experiments": "id state config model_definition start_time end_time archived parent_id owner_id progress "
    "original_config notes job_id project_id unmanaged external_experiment_id",
    "runs": "id experiment_id state start_time end_time hparams warm_start_checkpoint_id runner_state restart_id "
    "restarts total_batches last_activity external_run_id log_retention_days archived log_policy_matched",
    "trials_v2": "run_id request_id seed",
    "runs_metadata": "run_id metadata",
    "run_id_task_id": "run_id task_id",
    "tasks": "task_id task_type start_time end_time",
    "allocations": "task_id allocation_id resource_pool start_time end_time slots exit_reason exit_error",
    "run_checkpoints": "run_id checkpoint_id",
    "checkpoints_v2": "id uuid task_id allocation_id report_time state resources metadata size storage_id",
    "storage_backend": "id shared_fs_id s3_id gcs_id azure_id directory_id",
    "storage_backend_s3": "id bucket access_key secret_key endpoint_url prefix",
    "models": "name description creation_time last_updated_time metadata id labels user_id archived notes workspace_id",
    "model_versions": "version checkpoint_uuid creation_time last_updated_time metadata model_id id name comment "
    "user_id labels notes",
    "templates": "name config workspace_id",
    "raw_steps": "trial_id end_time metrics total_batches trial_run_id archived id metric_group partition_type",
    "raw_validations": "id trial_id end_time metrics total_batches trial_run_id archived metric_group partition_type",
    "generic_metrics": "trial_id end_time metrics total_batches trial_run_id archived id metric_group partition_type",
    "task_logs": "id task_id allocation_id agent_id container_id rank_id source stdtype level timestamp log",
    "webhooks": "id url",
}

Row = dict[str, Any]
Tables = dict[str, list[Row]]
TIME = "2024-02-01 00:00:00+00"


def field(value: object) -> str:
    """A value as COPY writes it."""
    if value is None:
        return "\\N"
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, bytes):
        return "\\\\x" + value.hex()
    text = json.dumps(value) if isinstance(value, (dict, list)) else str(value)
    for plain, escaped in (("\\", "\\\\"), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return text


def written(tables: Tables, *, migration: int = LAST_MIGRATION) -> str:
    """The text of a dump."""
    tables = {
        "gopg_migrations": [{"id": 1, "version": 1}, {"id": 2, "version": migration}],
        "cluster_id": [{"cluster_id": CLUSTER}],
        **tables,
    }
    parts = ["--\n-- PostgreSQL database dump\n--\n\nSET client_encoding = 'UTF8';\n"]
    for name, columns in COLUMNS.items():
        names = columns.split()
        quoted = ", ".join(f'"{column}"' if column in ("timestamp", "version") else column for column in names)
        rows = tables.get(name, [])
        unknown = {key for row in rows for key in row} - set(names)
        assert not unknown, f"{name} has no columns {unknown}"
        lines = ["\t".join(field(row.get(column)) for column in names) + "\n" for row in rows]
        parts.append(f"COPY public.{name} ({quoted}) FROM stdin;\n{''.join(lines)}\\.\n\n")
    return "".join(parts) + "--\n-- PostgreSQL database dump complete\n--\n\n"


# Columns that are no text.
TYPES = {
    "timestamptz": "created_at modified_at last_auth_at start_time end_time last_activity report_time creation_time "
    "last_updated_time",
    "timestamp": "timestamp",
    # Determined's is jsonb, which would order keys anew.
    "json": "config hparams metadata resources metrics checkpoint_storage_config",
    "bytea": "model_definition log",
    "boolean": "admin active remote archived immutable unmanaged",
    "text[]": "labels",
    "integer": "id user_id group_id scope_id scope_workspace_id workspace_id owner_id project_id parent_id run_id "
    "experiment_id trial_id model_id storage_id uid gid seed restarts restart_id total_batches trial_run_id rank_id "
    "slots size",
}


def statements(tables: Tables) -> str:
    """The same tables for psql."""
    kinds = {name: kind for kind, names in TYPES.items() for name in names.split()}
    text = written(tables)
    made = []
    for name, columns in COLUMNS.items():
        typed = ", ".join(f'"{column}" {kinds.get(column, "text")}' for column in columns.split())
        made.append(f"CREATE TABLE {name} ({typed});\n")
    return "".join(made) + text


def experiment(number: int, state: str = "COMPLETED", **changes: object) -> Row:
    """A row of an experiment."""
    config = {
        "name": f"experiment {number}",
        "description": "a\tb\nc\\d",
        "labels": ["x", "y"],
        "searcher": {"name": "single", "metric": "loss", "smaller_is_better": True},
        "resources": {"resource_pool": "default"},
        "hyperparameters": {},
        "checkpoint_storage": {"type": "shared_fs", "host_path": "/data"},
    }
    return {
        "id": number,
        "state": state,
        "config": config,
        "model_definition": b"\x1f\x8bcode",
        "start_time": TIME,
        "end_time": None if state in ("ACTIVE", "PAUSED") else "2024-02-01 02:30:00.5+01:30",
        "archived": False,
        "owner_id": 3,
        "progress": 1,
        "original_config": f"name: experiment {number}\n",
        "notes": "some notes",
        "job_id": f"job-{number}",
        "project_id": 2,
        "unmanaged": False,
        **changes,
    }


def trial(number: int, of: int, **changes: object) -> Row:
    """A row of a trial."""
    return {
        "id": number,
        "experiment_id": of,
        "state": "COMPLETED",
        "start_time": TIME,
        "end_time": "2024-02-01 01:00:00+00",
        "hparams": {"lr": 0.1},
        "runner_state": "",
        "restart_id": 1,
        "restarts": 0,
        "total_batches": 30,
        "archived": False,
        **changes,
    }


def report(number: int, of: int, step: int, values: Row, **changes: object) -> Row:
    """A row of a report."""
    return {
        "id": number,
        "trial_id": of,
        "end_time": TIME,
        "metrics": {"avg_metrics": values, "batch_metrics": None},
        "total_batches": step,
        "trial_run_id": 1,
        "archived": False,
        **changes,
    }


def cluster(experiments: Sequence[Row] = ()) -> Tables:
    """A small cluster: one of everything."""
    uuid = "00000000-0000-4000-8000-000000000001"
    steps = [report(number, 21, number * 10, {"loss": 1 / number, "bad": "NaN"}) for number in (3, 1, 2)]
    changed = {"modified_at": TIME}
    return {
        "users": [
            {"id": 1, "username": "admin", "admin": True, "active": True, "remote": False, **changed},
            {"id": 2, "username": "determined", "admin": False, "active": True, "remote": False, **changed},
            {
                "id": 3,
                "username": "ann",
                "display_name": "Ann\\B",
                "admin": False,
                "active": True,
                "remote": False,
                **changed,
            },
        ],
        "agent_user_groups": [{"id": 1, "user_id": 3, "user_": "ann", "uid": 1003, "group_": "lab", "gid": 50}],
        "groups": [
            {"id": 3, "group_name": "3DeterminedPersonalGroup", "user_id": 3},
            {"id": 9, "group_name": "vision"},
        ],
        "user_group_membership": [{"user_id": 3, "group_id": 3}, {"user_id": 3, "group_id": 9}],
        "role_assignment_scopes": [{"id": 1}, {"id": 2, "scope_workspace_id": 2}],
        "role_assignments": [
            {"group_id": 9, "role_id": 5, "scope_id": 2},
            {"group_id": 3, "role_id": 4, "scope_id": 1},
        ],
        "workspaces": [
            {"id": 1, "name": "Uncategorized", "archived": False, "created_at": TIME, "user_id": 1, "immutable": True},
            {"id": 2, "name": "lab", "archived": False, "created_at": TIME, "user_id": 3, "immutable": False},
        ],
        "projects": [
            {"id": 1, "name": "Uncategorized", "archived": False, "created_at": TIME, "workspace_id": 1, "user_id": 1},
            {
                "id": 2,
                "name": "mnist",
                "description": "digits",
                "archived": False,
                "created_at": TIME,
                "notes": [{"name": "n", "contents": "c"}],
                "workspace_id": 2,
                "user_id": 3,
                "immutable": False,
                "key": "MNI",
            },
        ],
        "experiments": list(experiments) or [experiment(11), experiment(12, "PAUSED")],
        "runs": [trial(21, 11), trial(22, 12, state="PAUSED")],
        "trials_v2": [{"run_id": 21, "request_id": "r", "seed": 7}, {"run_id": 22, "request_id": "r", "seed": 7}],
        "runs_metadata": [{"run_id": 21, "metadata": {"k": "v"}}],
        "run_id_task_id": [{"run_id": 21, "task_id": "11.r"}, {"run_id": 22, "task_id": "12.r"}],
        "tasks": [
            {"task_id": "11.r", "task_type": "TRIAL", "start_time": "2024-02-01 00:00:00", "end_time": None},
            {"task_id": "12.r", "task_type": "TRIAL", "start_time": "2024-02-01 00:00:00", "end_time": None},
        ],
        "allocations": [
            {
                "task_id": "11.r",
                "allocation_id": "11.r.1",
                "resource_pool": "default",
                "start_time": "2024-02-01 00:00:00",
                "end_time": "2024-02-01 00:10:00",
                "slots": 2,
            }
        ],
        "checkpoints_v2": [
            {
                "id": 1,
                "uuid": uuid,
                "task_id": "11.r",
                "allocation_id": "11.r.1",
                "report_time": TIME,
                "state": "COMPLETED",
                "resources": {"model.pt": 5},
                "metadata": {"steps_completed": 30},
                "size": 5,
                "storage_id": 1,
            }
        ],
        "run_checkpoints": [{"run_id": 21, "checkpoint_id": uuid}],
        "storage_backend": [{"id": 1, "s3_id": 1}],
        "storage_backend_s3": [{"id": 1, "bucket": "b"}],
        "models": [
            {
                "id": 5,
                "name": "best",
                "creation_time": TIME,
                "metadata": {"m": 1},
                "labels": '{a,"b c"}',
                "user_id": 3,
                "archived": False,
                "workspace_id": 2,
            }
        ],
        "model_versions": [
            {
                "id": 6,
                "model_id": 5,
                "version": 1,
                "checkpoint_uuid": uuid,
                "creation_time": TIME,
                "user_id": 3,
                "comment": "c",
            }
        ],
        "templates": [{"name": "small", "config": {"resources": {"slots": 1}}, "workspace_id": 2}],
        "raw_steps": [
            *steps,
            report(4, 21, 20, {"loss": 99}, trial_run_id=0, archived=True),
            report(5, 22, 10, {"loss": 1}),
        ],
        "raw_validations": [
            report(6, 21, 30, {}, metrics={"validation_metrics": {"loss": 0.25}}, metric_group="validation")
        ],
        "generic_metrics": [report(7, 21, 30, {"bleu": 0.5}, metric_group="translation")],
        "task_logs": [
            {
                "id": 1,
                "task_id": "11.r",
                "rank_id": 0,
                "source": "task",
                "stdtype": "stdout",
                "level": "INFO",
                "timestamp": "2024-02-01 00:00:01.5",
                "log": b"hello\n",
            }
        ],
        "webhooks": [{"id": 1, "url": "https://example.org"}],
    }
