//! What a database holds already, as far as an import has to avoid or to find it.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Result;
use crate::sql::{self, Connection};

/// A user of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct KnownUser {
    pub id: i64,
    /// Nobody has ever given it a password or logged in: it is as the database made it.
    pub untouched: bool,
}

/// Names and ids that are taken.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Known {
    pub users: BTreeMap<String, KnownUser>,
    pub groups: BTreeMap<String, i64>,
    pub workspaces: BTreeMap<String, i64>,
    /// By workspace and name.
    pub projects: BTreeMap<(i64, String), i64>,
    pub project_keys: BTreeSet<String>,
    pub models: BTreeMap<String, i64>,
    pub templates: BTreeSet<String>,
    pub experiments: BTreeSet<i64>,
    pub trials: BTreeSet<i64>,
    pub model_versions: BTreeSet<i64>,
    /// Texts that only one experiment may have.
    pub external_ids: BTreeSet<String>,
    /// What was taken over from the cluster before: kind and id there, id here.
    pub imported: BTreeMap<(String, String), i64>,
    /// Changes whenever a master has had the database since.
    pub version: String,
}

impl Known {
    pub(super) fn of(connection: &Connection, cluster: &str) -> Result<Known> {
        let mut known = Known::default();
        each(connection, "SELECT username, id, password_hash IS NULL AND last_auth_at IS NULL FROM users", |row| {
            known.users.insert(row.get(0)?, KnownUser { id: row.get(1)?, untouched: row.get(2)? });
            Ok(())
        })?;
        for (sql, names) in [
            ("SELECT name, id FROM workspaces", &mut known.workspaces),
            ("SELECT name, id FROM models", &mut known.models),
            ("SELECT name, id FROM user_groups", &mut known.groups),
        ] {
            each_if_known(connection, sql, |row| {
                names.insert(row.get(0)?, row.get(1)?);
                Ok(())
            })?;
        }
        each(connection, "SELECT workspace_id, name, id, key FROM projects", |row| {
            known.projects.insert((row.get(0)?, row.get(1)?), row.get(2)?);
            known.project_keys.insert(row.get(3)?);
            Ok(())
        })?;
        for (sql, ids) in [
            ("SELECT id FROM experiments", &mut known.experiments),
            ("SELECT id FROM trials", &mut known.trials),
            ("SELECT id FROM model_versions", &mut known.model_versions),
        ] {
            each_if_known(connection, sql, |row| {
                ids.insert(row.get(0)?);
                Ok(())
            })?;
        }
        for (sql, texts) in [
            ("SELECT name FROM templates", &mut known.templates),
            ("SELECT external_id FROM experiments WHERE external_id IS NOT NULL", &mut known.external_ids),
        ] {
            each_if_known(connection, sql, |row| {
                texts.insert(row.get(0)?);
                Ok(())
            })?;
        }
        let sql = format!("SELECT kind, source_id, id FROM imported WHERE cluster = '{}'", cluster.replace('\'', "''"));
        each_if_known(connection, &sql, |row| {
            known.imported.insert((row.get(0)?, row.get(1)?), row.get(2)?);
            Ok(())
        })?;
        let cluster_id = "SELECT value FROM settings WHERE name = 'cluster_id'";
        let id: String = connection.query_row(cluster_id, [], |row| row.get(0))?;
        let epoch: i64 = connection.query_row("SELECT COALESCE(MAX(epoch), 0) FROM lease", [], |row| row.get(0))?;
        // A database that is yet to be made gets another id each time it is looked for.
        known.version = if epoch == 0 { "new".to_owned() } else { format!("{id} {epoch}") };
        known.version += &format!(" {}", known.imported.len());
        Ok(known)
    }
}

fn each(connection: &Connection, sql: &str, mut take: impl FnMut(&sql::Row<'_>) -> sql::Result<()>) -> Result<()> {
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        take(&row)?;
    }
    Ok(())
}

/// The same for a table that the schema of an earlier version may lack.
fn each_if_known(connection: &Connection, sql: &str, take: impl FnMut(&sql::Row<'_>) -> sql::Result<()>) -> Result<()> {
    let words: Vec<&str> = sql.split_whitespace().collect();
    let table = words.iter().skip_while(|word| **word != "FROM").nth(1).copied().unwrap_or_default();
    let there: bool = connection.query_row(
        "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?)",
        [table],
        |row| row.get(0),
    )?;
    if there { each(connection, sql, take) } else { Ok(()) }
}
