//! What users arrange for themselves: settings of the pages, pinned workspaces, projects that they looked at; and the
//! message that administrators show to everybody.

use std::collections::BTreeMap;

use instep_api::identifiers::{ProjectId, UserId, WorkspaceId};
use instep_api::preferences::{ClusterMessage, UserSetting};
use instep_api::wire::Timestamp;

use crate::Database;
use crate::error::{Error, Result};
use crate::rows::text_of;
use crate::sql::{self, OptionalExtension, params};

/// Settings that one user may have.
const MOST_SETTINGS: i64 = 10_000;
/// Letters of all settings of one user.
const MOST_LETTERS: i64 = 1 << 20;
/// Of the row that keeps the message.
const MESSAGE: &str = "cluster_message";

impl Database {
    /// The settings of a user, by path and key.
    pub async fn user_settings(&self, user: UserId) -> Result<Vec<UserSetting>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT key, value, storage_path FROM user_settings WHERE user_id = ? \
                           ORDER BY storage_path, key";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map([user.0], |row| {
                    Ok(UserSetting { key: row.get(0)?, value: row.get(1)?, storage_path: row.get(2)? })
                })?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// Sets settings of a user; an empty value removes one.
    pub async fn set_user_settings(&self, user: UserId, settings: Vec<UserSetting>) -> Result<()> {
        self.executor
            .write(move |connection| {
                for setting in settings {
                    let key = params![user.0, setting.storage_path, setting.key];
                    if setting.value.is_empty() {
                        let sql = "DELETE FROM user_settings WHERE user_id = ? AND storage_path = ? AND key = ?";
                        connection.prepare_cached(sql)?.execute(key)?;
                        continue;
                    }
                    connection
                        .prepare_cached(
                            "INSERT INTO user_settings (user_id, storage_path, key, value) VALUES (?, ?, ?, ?) \
                             ON CONFLICT (user_id, storage_path, key) DO UPDATE SET value = excluded.value",
                        )?
                        .execute(params![user.0, setting.storage_path, setting.key, setting.value])?;
                }
                let sql = "SELECT COUNT(*), COALESCE(SUM(LENGTH(storage_path) + LENGTH(key) + LENGTH(value)), 0) \
                           FROM user_settings WHERE user_id = ?";
                let (count, letters): (i64, i64) =
                    connection.query_row(sql, [user.0], |row| Ok((row.get(0)?, row.get(1)?)))?;
                if count > MOST_SETTINGS || letters > MOST_LETTERS {
                    return Err(Error::Invalid(format!(
                        "a user may have {MOST_SETTINGS} settings of {MOST_LETTERS} letters in all, not {count} of {letters}"
                    )));
                }
                Ok(())
            })
            .await
    }

    /// Removes all settings of a user.
    pub async fn reset_user_settings(&self, user: UserId) -> Result<()> {
        self.executor
            .write(move |connection| {
                connection.execute("DELETE FROM user_settings WHERE user_id = ?", [user.0])?;
                Ok(())
            })
            .await
    }

    /// The workspaces that a user has pinned, and when.
    pub async fn pinned_workspaces(&self, user: UserId) -> Result<BTreeMap<WorkspaceId, Timestamp>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT workspace_id, pinned_at FROM workspace_pins WHERE user_id = ?";
                let mut statement = connection.prepare_cached(sql)?;
                let found =
                    statement.query_map([user.0], |row| Ok((WorkspaceId(row.get(0)?), Timestamp(row.get(1)?))))?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// Pins a workspace for a user, or lets it go.
    pub async fn pin_workspace(
        &self,
        user: UserId,
        workspace: WorkspaceId,
        pinned: bool,
        now: Timestamp,
    ) -> Result<()> {
        self.executor
            .write(move |connection| {
                crate::workspaces::workspace_by_id(connection, workspace)?;
                if pinned {
                    connection.execute(
                        "INSERT INTO workspace_pins (user_id, workspace_id, pinned_at) VALUES (?, ?, ?) \
                         ON CONFLICT (user_id, workspace_id) DO NOTHING",
                        [user.0, workspace.0, now.0],
                    )?;
                } else {
                    let sql = "DELETE FROM workspace_pins WHERE user_id = ? AND workspace_id = ?";
                    connection.execute(sql, [user.0, workspace.0])?;
                }
                Ok(())
            })
            .await
    }

    /// Notes that a user looked at a project.
    pub async fn visit_project(&self, user: UserId, project: ProjectId, now: Timestamp) -> Result<()> {
        self.executor
            .write(move |connection| {
                crate::workspaces::project_by_id(connection, project)?;
                connection.execute(
                    "INSERT INTO project_visits (user_id, project_id, visited_at) VALUES (?, ?, ?) \
                     ON CONFLICT (user_id, project_id) DO UPDATE SET visited_at = excluded.visited_at",
                    [user.0, project.0, now.0],
                )?;
                Ok(())
            })
            .await
    }

    /// The projects that a user looked at, the last one first.
    pub async fn visited_projects(&self, user: UserId) -> Result<Vec<ProjectId>> {
        self.executor
            .read(move |connection| {
                let sql =
                    "SELECT project_id FROM project_visits WHERE user_id = ? ORDER BY visited_at DESC, project_id";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map([user.0], |row| row.get(0).map(ProjectId))?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// What administrators say to everybody, if they do.
    pub async fn cluster_message(&self) -> Result<Option<ClusterMessage>> {
        self.executor
            .read(|connection| {
                let mut statement = connection.prepare_cached("SELECT value FROM settings WHERE name = ?")?;
                let text: Option<String> = statement.query_row([MESSAGE], |row| row.get(0)).optional()?;
                let read = |text: String| serde_json::from_str(&text);
                text.map(read).transpose().map_err(|error| Error::Damaged(error.to_string()))
            })
            .await
    }

    /// Says something to everybody, or nothing any more.
    pub async fn set_cluster_message(&self, message: Option<ClusterMessage>) -> Result<()> {
        self.executor
            .write(move |connection| {
                connection.execute("DELETE FROM settings WHERE name = ?", [MESSAGE])?;
                if let Some(message) = message {
                    let sql = "INSERT INTO settings (name, value) VALUES (?, ?)";
                    connection.execute(sql, params![MESSAGE, text_of(&message)?])?;
                }
                Ok(())
            })
            .await
    }
}
