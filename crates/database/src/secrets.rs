//! Secrets, as the master has encrypted them: what they say is not known here.

use instep_api::identifiers::{UserId, WorkspaceId};
use instep_api::secrets::Secret;
use instep_api::wire::Timestamp;

use crate::Database;
use crate::error::{Error, Result};
use crate::rows::{column, time};
use crate::sql::{self, OptionalExtension, params};

/// Secrets of one owner at most.
const MOST: i64 = 100;

/// Whose a secret is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum SecretScope {
    User(UserId),
    Workspace(WorkspaceId),
}

impl SecretScope {
    fn columns(self) -> (&'static str, i64) {
        match self {
            SecretScope::User(id) => ("user", id.0),
            SecretScope::Workspace(id) => ("workspace", id.0),
        }
    }
}

impl Database {
    /// Sets a secret.
    pub async fn set_secret(
        &self,
        scope: SecretScope,
        name: String,
        content: Vec<u8>,
        by: UserId,
        now: Timestamp,
    ) -> Result<()> {
        self.executor
            .write(move |connection| {
                let (scope, owner) = scope.columns();
                let sql = "SELECT COUNT(*) FROM secrets WHERE scope = ? AND owner_id = ? AND name <> ?";
                let others: i64 = connection.query_row(sql, params![scope, owner, name], |row| row.get(0))?;
                if others >= MOST {
                    return Err(Error::Precondition(format!("there are {others} secrets already, and {MOST} at most")));
                }
                connection.execute(
                    "INSERT INTO secrets (scope, owner_id, name, content, changed_at, changed_by) \
                     VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (scope, owner_id, name) DO UPDATE SET \
                     content = excluded.content, changed_at = excluded.changed_at, changed_by = excluded.changed_by",
                    params![scope, owner, name, content, now.0, by.0],
                )?;
                Ok(())
            })
            .await
    }

    /// Deletes a secret.
    pub async fn delete_secret(&self, scope: SecretScope, name: String) -> Result<()> {
        self.executor
            .write(move |connection| {
                let (scope, owner) = scope.columns();
                let sql = "DELETE FROM secrets WHERE scope = ? AND owner_id = ? AND name = ?";
                match connection.execute(sql, params![scope, owner, name])? {
                    0 => Err(Error::not_found("secret", name)),
                    _ => Ok(()),
                }
            })
            .await
    }

    /// The secrets of an owner, by name, without their contents.
    pub async fn secrets(&self, scope: SecretScope) -> Result<Vec<Secret>> {
        self.executor
            .read(move |connection| {
                let (word, owner) = scope.columns();
                let workspace_id = match scope {
                    SecretScope::User(_) => None,
                    SecretScope::Workspace(id) => Some(id),
                };
                let sql = "SELECT secrets.name AS name, changed_at, users.username AS changed_by FROM secrets \
                           JOIN users ON users.id = changed_by WHERE scope = ? AND owner_id = ? ORDER BY secrets.name";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map(params![word, owner], |row| {
                    Ok(Secret {
                        name: column(row, "name")?,
                        workspace_id,
                        changed_at: time(row, "changed_at")?,
                        changed_by: column(row, "changed_by")?,
                    })
                })?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// Whether anybody has a secret.
    pub async fn has_secrets(&self) -> Result<bool> {
        self.executor
            .read(|connection| Ok(connection.query_row("SELECT EXISTS (SELECT 1 FROM secrets)", [], |row| row.get(0))?))
            .await
    }

    /// The content of a secret, of the first of the scopes that has one of this name.
    pub async fn secret_content(
        &self,
        scopes: Vec<SecretScope>,
        name: String,
    ) -> Result<Option<(SecretScope, Vec<u8>)>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT content FROM secrets WHERE scope = ? AND owner_id = ? AND name = ?";
                let mut statement = connection.prepare_cached(sql)?;
                for scope in scopes {
                    let (word, owner) = scope.columns();
                    let found = statement.query_row(params![word, owner, name], |row| row.get(0)).optional()?;
                    if let Some(content) = found {
                        return Ok(Some((scope, content)));
                    }
                }
                Ok(None)
            })
            .await
    }
}
