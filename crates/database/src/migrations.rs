//! The schema and its steps: numbered, forward only, each in one transaction.

use std::path::Path;

use instep_api::wire::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use crate::Opening;
use crate::error::{Error, Result};

/// Step n of the schema is entry n - 1.
const STEPS: &[&str] = &[include_str!("schema/0001.sql"), include_str!("schema/0002.sql")];

/// How SQLite spells what engines spell differently.
const SPELLINGS: &[(&str, &str)] = &[("{identity}", "INTEGER PRIMARY KEY AUTOINCREMENT"), ("{bytes}", "BLOB")];

/// Brings the schema up to date.
pub(crate) fn migrate(connection: &mut Connection, path: &Path, opening: &Opening) -> Result<()> {
    let unusable = |error: rusqlite::Error| Error::Unusable { path: path.to_owned(), why: error.to_string() };
    connection
        .execute_batch(
            "CREATE TABLE IF NOT EXISTS schema_steps (number BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL)",
        )
        .map_err(unusable)?;
    let found: i64 = connection.query_row("SELECT COALESCE(MAX(number), 0) FROM schema_steps", [], |row| row.get(0))?;
    let known = STEPS.len() as i64;
    if found > known {
        return Err(Error::TooNew { path: path.to_owned(), found, known });
    }
    for number in found + 1..=known {
        let transaction = connection.transaction()?;
        transaction.execute_batch(&spelled(STEPS[number as usize - 1]))?;
        if number == 1 {
            first_content(&transaction, opening)?;
        }
        transaction.execute("INSERT INTO schema_steps (number, applied_at) VALUES (?, ?)", [number, opening.now.0])?;
        transaction.commit()?;
    }
    Ok(())
}

fn spelled(step: &str) -> String {
    SPELLINGS.iter().fold(step.to_owned(), |text, (name, spelling)| text.replace(name, spelling))
}

/// What Determined has from the start: two users without passwords, and the workspace and project for everything else.
fn first_content(connection: &Connection, opening: &Opening) -> Result<()> {
    let Timestamp(now) = opening.now;
    connection.execute("INSERT INTO settings (name, value) VALUES ('cluster_id', ?)", params![opening.cluster_id])?;
    for (username, admin) in [("admin", true), ("determined", false)] {
        connection.execute(
            "INSERT INTO users (username, display_name, admin, active, remote, modified_at) \
             VALUES (?, '', ?, TRUE, FALSE, ?)",
            params![username, admin, now],
        )?;
    }
    connection.execute(
        "INSERT INTO workspaces (name, archived, immutable, user_id, created_at) \
         VALUES ('Uncategorized', FALSE, TRUE, 1, ?)",
        [now],
    )?;
    connection.execute(
        "INSERT INTO projects (workspace_id, name, description, key, archived, immutable, user_id, created_at) \
         VALUES (1, 'Uncategorized', '', 'UNC', FALSE, TRUE, 1, ?)",
        [now],
    )?;
    Ok(())
}

/// Makes this process the one that decides; gives its epoch.
pub(crate) fn take_lease(connection: &mut Connection, opening: &Opening) -> Result<i64> {
    let transaction = connection.transaction()?;
    let last: Option<i64> =
        transaction.query_row("SELECT epoch FROM lease WHERE name = 'master'", [], |row| row.get(0)).optional()?;
    let epoch = last.unwrap_or(0) + 1;
    transaction.execute(
        "INSERT INTO lease (name, epoch, holder, taken_at) VALUES ('master', ?1, ?2, ?3) \
         ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, holder = excluded.holder, taken_at = excluded.taken_at",
        params![epoch, opening.holder, opening.now.0],
    )?;
    transaction.commit()?;
    Ok(epoch)
}
