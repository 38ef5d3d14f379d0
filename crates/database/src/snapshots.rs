//! The state machines of experiments: a snapshot now and then, and the events since.

use instep_api::identifiers::ExperimentId;

use crate::error::Result;
use crate::sql::{self, Connection, OptionalExtension, params};

/// What is stored of a state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Snapshot {
    /// All of it; what happened before is forgotten.
    Full(String),
    /// What happened, numbered so that storing it twice changes nothing.
    Events(Vec<(i64, String)>),
}

/// What is read back of a state machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredState {
    /// All of it, as it was some time ago; `None` if the master ended before the first step.
    pub snapshot: Option<String>,
    /// What happened since, in its order.
    pub events: Vec<(i64, String)>,
}

pub(crate) fn put(connection: &Connection, id: ExperimentId, snapshot: &Snapshot) -> Result<()> {
    match snapshot {
        Snapshot::Full(content) => {
            connection
                .prepare_cached(
                    "INSERT INTO experiment_snapshots (experiment_id, content) VALUES (?, ?) \
                     ON CONFLICT (experiment_id) DO UPDATE SET content = excluded.content",
                )?
                .execute(params![id.0, content])?;
            connection.prepare_cached("DELETE FROM experiment_events WHERE experiment_id = ?")?.execute([id.0])?;
        }
        Snapshot::Events(events) => {
            let mut statement = connection.prepare_cached(
                "INSERT INTO experiment_events (experiment_id, number, content) VALUES (?, ?, ?) \
                 ON CONFLICT (experiment_id, number) DO NOTHING",
            )?;
            for (number, content) in events {
                statement.execute(params![id.0, number, content])?;
            }
        }
    }
    Ok(())
}

pub(crate) fn get(connection: &Connection, id: ExperimentId) -> Result<StoredState> {
    let snapshot = connection
        .prepare_cached("SELECT content FROM experiment_snapshots WHERE experiment_id = ?")?
        .query_row([id.0], |row| row.get(0))
        .optional()?;
    let sql = "SELECT number, content FROM experiment_events WHERE experiment_id = ? ORDER BY number";
    let mut statement = connection.prepare_cached(sql)?;
    let events = statement.query_map([id.0], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(StoredState { snapshot, events: events.collect::<sql::Result<_>>()? })
}
