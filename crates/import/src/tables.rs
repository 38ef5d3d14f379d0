//! The tables of Determined: what is read of each, and why the others are not.

use crate::source::Table;

const fn table(name: &'static str, columns: &'static [&'static str]) -> Table {
    Table { name, columns, order: None }
}

/// One that is too large for one transaction.
const fn large(name: &'static str, columns: &'static [&'static str]) -> Table {
    Table { name, columns, order: Some("id") }
}

pub(crate) const USERS: Table = table(
    "users",
    &["id", "username", "password_hash", "admin", "active", "display_name", "modified_at", "remote", "last_auth_at"],
);
pub(crate) const AGENT_USER_GROUPS: Table = table("agent_user_groups", &["user_id", "user_", "uid", "group_", "gid"]);
pub(crate) const GROUPS: Table = table("groups", &["id", "group_name", "user_id"]);
pub(crate) const MEMBERS: Table = table("user_group_membership", &["user_id", "group_id"]);
pub(crate) const ROLES: Table = table("role_assignments", &["group_id", "role_id", "scope_id"]);
pub(crate) const SCOPES: Table = table("role_assignment_scopes", &["id", "scope_workspace_id"]);
pub(crate) const WORKSPACES: Table = table(
    "workspaces",
    &[
        "id",
        "name",
        "archived",
        "created_at",
        "user_id",
        "immutable",
        "uid",
        "user_",
        "gid",
        "group_",
        "checkpoint_storage_config",
    ],
);
pub(crate) const PROJECTS: Table = table(
    "projects",
    &["id", "name", "description", "archived", "created_at", "notes", "workspace_id", "user_id", "immutable", "key"],
);
pub(crate) const EXPERIMENT_STATES: Table = table("experiments", &["id", "state", "project_id", "owner_id"]);
pub(crate) const EXPERIMENTS: Table = large(
    "experiments",
    &[
        "id",
        "state",
        "config",
        "model_definition",
        "start_time",
        "end_time",
        "archived",
        "parent_id",
        "owner_id",
        "progress",
        "original_config",
        "notes",
        "job_id",
        "project_id",
        "unmanaged",
        "external_experiment_id",
    ],
);
pub(crate) const TRIAL_IDS: Table = table("runs", &["id", "experiment_id", "warm_start_checkpoint_id"]);
pub(crate) const TRIALS: Table = large(
    "runs",
    &[
        "id",
        "experiment_id",
        "state",
        "start_time",
        "end_time",
        "hparams",
        "runner_state",
        "restart_id",
        "restarts",
        "total_batches",
        "last_activity",
        "external_run_id",
        "log_retention_days",
        "archived",
        "log_policy_matched",
    ],
);
pub(crate) const TRIAL_REQUESTS: Table = table("trials_v2", &["run_id", "request_id", "seed"]);
pub(crate) const TRIAL_METADATA: Table = table("runs_metadata", &["run_id", "metadata"]);
pub(crate) const TRIAL_TASKS: Table = table("run_id_task_id", &["run_id", "task_id"]);
pub(crate) const TASKS: Table = table("tasks", &["task_id", "task_type", "start_time", "end_time"]);
pub(crate) const ALLOCATIONS: Table = table(
    "allocations",
    &["task_id", "allocation_id", "resource_pool", "start_time", "end_time", "slots", "exit_reason", "exit_error"],
);
pub(crate) const TRIAL_CHECKPOINTS: Table = table("run_checkpoints", &["run_id", "checkpoint_id"]);
pub(crate) const CHECKPOINTS: Table = table(
    "checkpoints_v2",
    &["id", "uuid", "task_id", "allocation_id", "report_time", "state", "resources", "metadata", "size", "storage_id"],
);
pub(crate) const STORAGES: Table =
    table("storage_backend", &["id", "shared_fs_id", "s3_id", "gcs_id", "azure_id", "directory_id"]);
/// Where checkpoints lie, by the column of [`STORAGES`] that refers to it and the word in configurations.
pub(crate) const STORAGE_KINDS: &[(&str, &str, Table)] = &[
    (
        "shared_fs_id",
        "shared_fs",
        table(
            "storage_backend_shared_fs",
            &[
                "id",
                "host_path",
                "container_path",
                "checkpoint_path",
                "tensorboard_path",
                "storage_path",
                "propagation",
            ],
        ),
    ),
    (
        "s3_id",
        "s3",
        table("storage_backend_s3", &["id", "bucket", "access_key", "secret_key", "endpoint_url", "prefix"]),
    ),
    ("gcs_id", "gcs", table("storage_backend_gcs", &["id", "bucket", "prefix"])),
    (
        "azure_id",
        "azure",
        table("storage_backend_azure", &["id", "container", "connection_string", "account_url", "credential"]),
    ),
    ("directory_id", "directory", table("storage_backend_directory", &["id", "container_path"])),
];
pub(crate) const MODELS: Table = table(
    "models",
    &[
        "name",
        "description",
        "creation_time",
        "last_updated_time",
        "metadata",
        "id",
        "labels",
        "user_id",
        "archived",
        "notes",
        "workspace_id",
    ],
);
pub(crate) const MODEL_VERSIONS: Table = table(
    "model_versions",
    &[
        "version",
        "checkpoint_uuid",
        "creation_time",
        "last_updated_time",
        "metadata",
        "model_id",
        "id",
        "name",
        "comment",
        "user_id",
        "labels",
        "notes",
    ],
);
pub(crate) const TEMPLATES: Table = table("templates", &["name", "config", "workspace_id"]);
const REPORT: &[&str] =
    &["id", "trial_id", "end_time", "metrics", "total_batches", "trial_run_id", "archived", "metric_group"];
/// Reports, which Determined keeps in parts of one table, and the group of those that name none.
pub(crate) const REPORTS: &[(Table, &str)] = &[
    (large("raw_steps", REPORT), "training"),
    (large("raw_validations", REPORT), "validation"),
    (large("generic_metrics", REPORT), "inference"),
    (large("system_metrics", REPORT), "cpu"),
];
pub(crate) const TASK_LOGS: Table = large(
    "task_logs",
    &[
        "id",
        "task_id",
        "allocation_id",
        "agent_id",
        "container_id",
        "rank_id",
        "source",
        "stdtype",
        "level",
        "timestamp",
        "log",
    ],
);
pub(crate) const TRIAL_LOGS: Table = large(
    "trial_logs",
    &[
        "id",
        "trial_id",
        "message",
        "agent_id",
        "container_id",
        "rank_id",
        "log",
        "timestamp",
        "level",
        "source",
        "stdtype",
    ],
);

/// Tables that are not read, and what is lost with them. Those with no rows lose nothing and are not mentioned.
pub(crate) const LEFT: &[(&str, &str)] = &[
    ("activity", "when users last looked at a project"),
    ("cluster_messages", "the message to all users: set it again"),
    ("command_state", "commands, notebooks, shells and TensorBoards cannot be resumed"),
    ("config_files", "files of generic tasks"),
    ("local_id_redirect", "earlier numbers of runs in projects; their ids are kept"),
    ("log_policy_dont_retry", "exclusions of machines by log policies"),
    ("log_policy_retry_on_different_node", "exclusions of machines by log policies"),
    ("rp_workspace_bindings", "which pools are for which workspaces: bind them again"),
    ("task_config_policies", "configuration policies: set them again"),
    ("task_context_directory", "code of commands, notebooks, shells and TensorBoards"),
    ("trial_profiler_metrics", "profiling in the form that Determined gave up with 0.36"),
    ("trial_source_infos", "which trials evaluated which checkpoints"),
    ("trials_collections", "saved selections of trials"),
    ("user_profile_images", "pictures of users"),
    ("user_sessions", "logins and access tokens: log in again, make tokens again"),
    ("user_web_settings", "settings of Determined's pages"),
    ("webhook_triggers", "part of webhooks"),
    ("webhooks", "make them again"),
    ("workspace_namespace_bindings", "namespaces of Kubernetes"),
    ("workspace_pins", "pinned workspaces"),
];

/// Tables that hold what follows from others, or what only a running master of Determined needs. Nobody misses them.
pub(crate) const NEEDLESS: &[&str] = &[
    "agent_stats",
    "allocation_accelerators",
    "allocation_resources",
    "allocation_sessions",
    "allocation_workspace_info",
    "auth_token_keypair",
    "cert_and_key_info",
    "cluster_id",
    "experiment_snapshots",
    "gopg_migrations",
    "jobs",
    "metrics",
    "notebook_sessions",
    "permission_assignments",
    "permissions",
    "project_hparams",
    "provisioner_instance_stats",
    "resource_aggregates",
    "resourcemanagers_agent_agentstate",
    "resourcemanagers_agent_containers",
    "resourcemanagers_dispatcher_dispatches",
    "resourcemanagers_dispatcher_rm_state",
    "roles",
    "run_hparams",
    "runs_metadata_index",
    "task_stats",
    "views_and_triggers_hash",
    "webhook_events_queue",
    "webhook_task_log_triggers",
];

/// Tables whose rows are counted where they are read, or that are read for the sake of others.
pub(crate) const READ: &[&str] = &[
    "agent_user_groups",
    "allocations",
    "checkpoints_v2",
    "experiments",
    "generic_metrics",
    "groups",
    "model_versions",
    "models",
    "projects",
    "raw_steps",
    "raw_validations",
    "role_assignment_scopes",
    "role_assignments",
    "run_checkpoints",
    "run_id_task_id",
    "runs",
    "runs_metadata",
    "storage_backend",
    "storage_backend_azure",
    "storage_backend_directory",
    "storage_backend_gcs",
    "storage_backend_s3",
    "storage_backend_shared_fs",
    "system_metrics",
    "task_logs",
    "tasks",
    "templates",
    "trial_logs",
    "trials_v2",
    "user_group_membership",
    "users",
    "workspaces",
];
