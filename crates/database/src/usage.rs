//! Who had which slots, and for how long.

use instep_api::identifiers::{ExperimentId, UserId, WorkspaceId};
use instep_api::wire::Timestamp;

use crate::Database;
use crate::error::Result;
use crate::rows::{column, json, optional_time, time};
use crate::sql::{self, Connection, Row};

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

fn usage_of(row: &Row<'_>) -> sql::Result<Usage> {
    Ok(Usage {
        allocation: column(row, "allocation_id")?,
        task_kind: column(row, "task_kind")?,
        user: UserId(column(row, "user_id")?),
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

/// Notes what an allocation that is stored has used by now. Where that was, and whose, is noted when it gets its slots, and
/// stays.
pub(crate) fn note(connection: &Connection, allocation: &str) -> Result<()> {
    let sql = "UPDATE usages SET (slots, pool, started_at, ended_at) = \
               (SELECT slots, pool, started_at, ended_at FROM allocations WHERE id = ?1) WHERE allocation_id = ?1";
    if connection.prepare_cached(sql)?.execute([allocation])? == 0 {
        let sql = "INSERT INTO usages SELECT allocations.id, tasks.kind, \
                   COALESCE(experiments.user_id, commands.user_id), workspaces.id, workspaces.name, \
                   allocations.experiment_id, allocations.slots, allocations.pool, allocations.started_at, \
                   allocations.ended_at FROM allocations JOIN tasks ON tasks.id = allocations.task_id \
                   LEFT JOIN experiments ON experiments.id = allocations.experiment_id \
                   LEFT JOIN projects ON projects.id = experiments.project_id \
                   LEFT JOIN commands ON commands.task_id = tasks.id \
                   JOIN workspaces ON workspaces.id = COALESCE(projects.workspace_id, commands.workspace_id) \
                   WHERE allocations.id = ?";
        connection.prepare_cached(sql)?.execute([allocation])?;
    }
    Ok(())
}

impl Database {
    /// What was used between two moments, by when it began.
    pub async fn usage(&self, from: Timestamp, to: Timestamp) -> Result<Vec<Usage>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT usages.*, users.username, COALESCE(experiments.labels, '[]') AS labels \
                           FROM usages JOIN users ON users.id = usages.user_id \
                           LEFT JOIN experiments ON experiments.id = usages.experiment_id \
                           WHERE usages.started_at < ? AND (usages.ended_at IS NULL OR usages.ended_at > ?) \
                           ORDER BY usages.started_at, usages.allocation_id";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map([to.0, from.0], usage_of)?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }
}
