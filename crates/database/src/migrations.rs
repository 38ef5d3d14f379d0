//! The schema and its steps: numbered, forward only, each in one transaction.

use std::path::Path;

use instep_api::wire::Timestamp;

use crate::Opening;
use crate::backup::{self, with_suffix};
use crate::error::{Error, Result};
use crate::leadership::AdvertisedEndpoint;
use crate::sql::{self, Connection, OptionalExtension, params};
use crate::transfer;

/// Step n of the schema is entry n - 1.
const STEPS: &[&str] = &[
    include_str!("schema/0001.sql"),
    include_str!("schema/0002.sql"),
    include_str!("schema/0003.sql"),
    include_str!("schema/0004.sql"),
    include_str!("schema/0005.sql"),
    include_str!("schema/0006.sql"),
    include_str!("schema/0007.sql"),
    include_str!("schema/0008.sql"),
    include_str!("schema/0009.sql"),
    include_str!("schema/0010.sql"),
    include_str!("schema/0011.sql"),
    include_str!("schema/0012.sql"),
    include_str!("schema/0013.sql"),
    include_str!("schema/0014.sql"),
    include_str!("schema/0015.sql"),
    include_str!("schema/0016.sql"),
    include_str!("schema/0017.sql"),
    include_str!("schema/0018.sql"),
    include_str!("schema/0019.sql"),
    include_str!("schema/0020.sql"),
    include_str!("schema/0021.sql"),
];

/// The schema that this version works with.
pub(crate) const KNOWN: i64 = STEPS.len() as i64;

/// Brings the schema up to date. A database with content is copied first, to a file beside it that says in its name
/// which schema it has.
pub(crate) fn migrate(connection: &mut Connection, path: &Path, opening: &Opening) -> Result<()> {
    migrate_through(STEPS, connection, path, opening)
}

/// Brings the schema up to date, without a copy: of something that is itself one, or of what only its server copies.
pub(crate) fn upgrade(connection: &mut Connection, path: &Path, opening: &Opening) -> Result<()> {
    take_steps(STEPS, connection, path, opening, false)
}

fn migrate_through(steps: &[&str], connection: &mut Connection, path: &Path, opening: &Opening) -> Result<()> {
    take_steps(steps, connection, path, opening, true)
}

fn take_steps(
    steps: &[&str],
    connection: &mut Connection,
    path: &Path,
    opening: &Opening,
    keep_copy: bool,
) -> Result<()> {
    let unusable = |error: sql::Error| match error {
        // A server has its reasons, which are not in the database.
        error @ (sql::Error::Server { .. } | sql::Error::Lost { .. }) => Error::Engine(error),
        error => Error::Unusable { path: path.to_owned(), why: error.to_string() },
    };
    // PostgreSQL says a word about a table that is there, so it is looked for first.
    if version(connection).is_err() {
        let steps = "CREATE TABLE IF NOT EXISTS schema_steps (number BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL)";
        connection.execute_batch(steps).map_err(unusable)?;
    }
    let known = steps.len() as i64;
    let found = version(connection)?;
    if found > known {
        return Err(Error::TooNew { path: path.to_owned(), found, known });
    }
    if keep_copy && 0 < found && found < known {
        let copy = with_suffix(path, &format!(".schema-{found}"));
        match backup::copy(connection, &copy) {
            // One that is there is of an earlier attempt, before which nothing has changed either.
            Ok(()) | Err(Error::FileExists { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    for number in found + 1..=known {
        let transaction = connection.migration()?;
        transaction.execute_batch(&transaction.spelled(steps[number as usize - 1]))?;
        if number == 1 {
            first_content(&transaction, opening)?;
        }
        transaction.execute("INSERT INTO schema_steps (number, applied_at) VALUES (?, ?)", [number, opening.now.0])?;
        transaction.commit()?;
    }
    Ok(())
}

fn version(connection: &Connection) -> sql::Result<i64> {
    connection.query_row("SELECT COALESCE(MAX(number), 0) FROM schema_steps", [], |row| row.get(0))
}

/// The schema of a database that this version can use.
pub(crate) fn check_version(connection: &Connection, path: &Path) -> Result<i64> {
    let foreign = |_| Error::Unusable { path: path.to_owned(), why: "it is not a master's database".to_owned() };
    let (found, known) = (version(connection).map_err(foreign)?, KNOWN);
    transfer::refuse_incomplete(connection, &path.display().to_string())?;
    if found > known { Err(Error::TooNew { path: path.to_owned(), found, known }) } else { Ok(found) }
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

/// Makes this process the one that decides; gives its epoch. Where others may take over, they learn how to reach it.
pub(crate) fn take_lease(
    connection: &mut Connection,
    opening: &Opening,
    endpoint: Option<&AdvertisedEndpoint>,
) -> Result<i64> {
    let transaction = connection.transaction()?;
    let last: Option<i64> =
        transaction.query_row("SELECT epoch FROM lease WHERE name = 'master'", [], |row| row.get(0)).optional()?;
    let epoch = last.unwrap_or(0) + 1;
    transaction.execute(
        "INSERT INTO lease (name, epoch, holder, taken_at) VALUES ('master', ?1, ?2, ?3) \
         ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, holder = excluded.holder, taken_at = excluded.taken_at",
        params![epoch, opening.holder, opening.now.0],
    )?;
    transaction.execute("DELETE FROM leader", [])?;
    if let Some(endpoint) = endpoint {
        transaction.execute(
            "INSERT INTO leader (name, epoch, address, tasks_address, certificate, peer_secret, settings, renewed_at) \
             VALUES ('master', ?, ?, ?, ?, ?, ?, 0)",
            params![
                epoch,
                endpoint.address,
                endpoint.tasks_address,
                endpoint.certificate,
                endpoint.peer_secret,
                endpoint.settings
            ],
        )?;
        transaction.renew(epoch)?;
    }
    transaction.commit()?;
    Ok(epoch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::sqlite::{open_existing, open_writer};

    #[test]
    fn a_database_is_copied_before_its_schema_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let opening = Opening { holder: "test".into(), cluster_id: "x".into(), now: Timestamp(1) };
        let mut connection = open_writer(&path).unwrap();
        migrate_through(&STEPS[..1], &mut connection, &path, &opening).unwrap();
        let copy = folder.path().join("a.db.schema-1");
        assert!(!copy.exists(), "a new database has nothing to lose");
        connection.execute("UPDATE settings SET value = 'kept' WHERE name = 'cluster_id'", []).unwrap();

        let broken = [STEPS[0], "CREATE TABLE later (name TEXT); CREATE TABLE later (name TEXT);"];
        assert!(migrate_through(&broken, &mut connection, &path, &opening).is_err());
        assert_eq!(version(&connection).unwrap(), 1, "a step is done whole or not at all");
        let steps = [STEPS[0], "DELETE FROM settings;"];
        migrate_through(&steps, &mut connection, &path, &opening).unwrap();
        assert_eq!(version(&connection).unwrap(), 2);

        let copied = open_existing(&copy).unwrap();
        assert_eq!(version(&copied).unwrap(), 1);
        let kept: String = copied.query_row("SELECT value FROM settings", [], |row| row.get(0)).unwrap();
        assert_eq!(kept, "kept");
        let too_new = migrate_through(&STEPS[..1], &mut connection, &path, &opening);
        assert!(matches!(too_new, Err(Error::TooNew { found: 2, known: 1, .. })));
    }

    #[test]
    fn who_made_a_workspace_before_there_were_roles_administrates_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let opening = Opening { holder: "test".into(), cluster_id: "x".into(), now: Timestamp(1) };
        let mut connection = open_writer(&path).unwrap();
        let before = STEPS.iter().position(|step| step.contains("CREATE TABLE role_assignments")).unwrap();
        migrate_through(&STEPS[..before], &mut connection, &path, &opening).unwrap();
        let workspace = "INSERT INTO workspaces (name, archived, immutable, user_id, created_at) \
                         VALUES ('old', FALSE, FALSE, 2, 1)";
        connection.execute(workspace, []).unwrap();
        migrate_through(STEPS, &mut connection, &path, &opening).unwrap();
        let mut statement = connection.prepare("SELECT role, user_id, workspace_id FROM role_assignments").unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
        let held: Vec<(i64, i64, i64)> = rows.collect::<sql::Result<_>>().unwrap();
        assert_eq!(held, [(crate::roles::WORKSPACE_ADMIN, 2, 2)], "the first workspace belongs to nobody");
    }
}
