//! Where experiments stand: their state machines, whole now and then, and what happened since.

use instep_api::identifiers::ExperimentId;
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Result;

/// What is stored of a state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Snapshot {
    /// All of it; what happened before is forgotten.
    Whole(String),
    /// What happened, numbered so that storing it twice changes nothing.
    Since(Vec<(i64, String)>),
}

/// What is read back of a state machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// All of it, as it was some time ago; `None` if the master ended before the first step.
    pub whole: Option<String>,
    /// What happened since, in its order.
    pub since: Vec<(i64, String)>,
}

pub(crate) fn put(connection: &Connection, id: ExperimentId, snapshot: &Snapshot) -> Result<()> {
    match snapshot {
        Snapshot::Whole(content) => {
            connection
                .prepare_cached(
                    "INSERT INTO experiment_snapshots (experiment_id, content) VALUES (?, ?) \
                     ON CONFLICT (experiment_id) DO UPDATE SET content = excluded.content",
                )?
                .execute(params![id.0, content])?;
            connection.prepare_cached("DELETE FROM experiment_events WHERE experiment_id = ?")?.execute([id.0])?;
        }
        Snapshot::Since(events) => {
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

pub(crate) fn get(connection: &Connection, id: ExperimentId) -> Result<Standing> {
    let whole = connection
        .prepare_cached("SELECT content FROM experiment_snapshots WHERE experiment_id = ?")?
        .query_row([id.0], |row| row.get(0))
        .optional()?;
    let sql = "SELECT number, content FROM experiment_events WHERE experiment_id = ? ORDER BY number";
    let mut statement = connection.prepare_cached(sql)?;
    let since = statement.query_map([id.0], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Standing { whole, since: since.collect::<rusqlite::Result<_>>()? })
}
