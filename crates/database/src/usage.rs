//! Who had which slots, and for how long.

use instep_api::identifiers::{ExperimentId, UserId, WorkspaceId};
use instep_api::wire::Timestamp;
use rusqlite::Row;

use crate::Database;
use crate::error::Result;
use crate::rows::{column, json, optional_time, time};

/// Slots that a task had.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Usage {
    pub allocation: String,
    /// As `TASK_TYPE_TRIAL`.
    pub task_kind: String,
    pub user: UserId,
    pub username: String,
    pub workspace: WorkspaceId,
    pub workspace_name: String,
    pub experiment: Option<ExperimentId>,
    pub labels: Vec<String>,
    pub slots: i64,
    pub pool: String,
    pub started_at: Timestamp,
    /// `None` while it has them.
    pub ended_at: Option<Timestamp>,
}

fn usage_of(row: &Row<'_>) -> rusqlite::Result<Usage> {
    Ok(Usage {
        allocation: column(row, "id")?,
        task_kind: column(row, "kind")?,
        user: UserId(column(row, "owner_id")?),
        username: column(row, "username")?,
        workspace: WorkspaceId(column(row, "workspace_id")?),
        workspace_name: column(row, "workspace_name")?,
        experiment: column::<Option<i64>>(row, "experiment_id")?.map(ExperimentId),
        labels: json(row, "labels")?,
        slots: column(row, "slots")?,
        pool: column(row, "pool")?,
        started_at: time(row, "started_at")?,
        ended_at: optional_time(row, "ended_at")?,
    })
}

impl Database {
    /// What was used between two moments, by when it began.
    pub async fn usage(&self, from: Timestamp, to: Timestamp) -> Result<Vec<Usage>> {
        self.engine
            .read(move |connection| {
                let sql = "SELECT allocations.id, tasks.kind, users.id AS owner_id, users.username, \
                           workspaces.id AS workspace_id, workspaces.name AS workspace_name, \
                           allocations.experiment_id, COALESCE(experiments.labels, '[]') AS labels, \
                           allocations.slots, allocations.pool, allocations.started_at, allocations.ended_at \
                           FROM allocations JOIN tasks ON tasks.id = allocations.task_id \
                           LEFT JOIN experiments ON experiments.id = allocations.experiment_id \
                           LEFT JOIN projects ON projects.id = experiments.project_id \
                           LEFT JOIN commands ON commands.task_id = allocations.task_id \
                           JOIN users ON users.id = COALESCE(experiments.user_id, commands.user_id) \
                           JOIN workspaces ON workspaces.id = COALESCE(projects.workspace_id, commands.workspace_id) \
                           WHERE allocations.started_at < ? \
                           AND (allocations.ended_at IS NULL OR allocations.ended_at > ?) \
                           ORDER BY allocations.started_at, allocations.id";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map([to.0, from.0], usage_of)?;
                Ok(found.collect::<rusqlite::Result<_>>()?)
            })
            .await
    }
}
