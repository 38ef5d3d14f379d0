//! Collections of checkpoints: the master's work of deleting files, shown as tasks of the experiment they belonged to.

use instep_api::identifiers::ExperimentId;
use instep_api::wire::Timestamp;

use crate::Database;
use crate::error::Result;
use crate::rows::time;
use crate::sql::{self, Connection, params};

const KIND: &str = "TASK_TYPE_CHECKPOINT_GC";
/// How long a collection is shown after its end, in microseconds.
const SHOWN_AFTERWARDS: i64 = 1_000_000;

/// A collection that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Collection {
    pub task: String,
    pub experiment: ExperimentId,
    pub started_at: Timestamp,
}

/// Forgets the collections of an experiment, with their logs.
pub(crate) fn forget(connection: &Connection, id: ExperimentId) -> Result<()> {
    for sql in [
        "DELETE FROM task_logs WHERE task_id IN (SELECT id FROM tasks WHERE experiment_id = ?)",
        "DELETE FROM tasks WHERE experiment_id = ?",
    ] {
        connection.execute(sql, [id.0])?;
    }
    Ok(())
}

impl Database {
    /// Begins a collection, unless its experiment is gone; whether it has begun.
    pub async fn begin_collection(&self, begun: Collection) -> Result<bool> {
        let Collection { task, experiment, started_at } = begun;
        self.executor
            .write(move |connection| {
                let sql = "INSERT INTO tasks (id, kind, experiment_id, started_at) SELECT ?, ?, id, ? \
                           FROM experiments WHERE id = ?";
                Ok(connection.execute(sql, params![task, KIND, started_at.0, experiment.0])? == 1)
            })
            .await
    }

    /// Ends the collection that is under way, and whatever an earlier master did not get to end.
    pub async fn end_collections(&self, now: Timestamp) -> Result<()> {
        self.executor
            .write(move |connection| {
                let sql = "UPDATE tasks SET ended_at = ? WHERE kind = ? AND ended_at IS NULL";
                connection.execute(sql, params![now.0, KIND])?;
                Ok(())
            })
            .await
    }

    /// The collections that are under way, or have ended in the last moment: most take less time than those who wait for
    /// one need to look twice.
    pub async fn collections(&self, now: Timestamp) -> Result<Vec<Collection>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT * FROM tasks WHERE kind = ? AND (ended_at IS NULL OR ended_at > ?) \
                           ORDER BY started_at, id";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map(params![KIND, now.0 - SHOWN_AFTERWARDS], |row| {
                    Ok(Collection {
                        task: row.get("id")?,
                        experiment: ExperimentId(row.get("experiment_id")?),
                        started_at: time(row, "started_at")?,
                    })
                })?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }
}
