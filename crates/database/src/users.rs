//! Users and their passwords' hashes.

use instep_api::identifiers::UserId;
use instep_api::users::User;
use instep_api::wire::Timestamp;
use serde_json::Value;

use crate::Database;
use crate::error::{Error, Result};
use crate::rows::{column, optional_json, optional_time, text_of};
use crate::sql::{self, Connection, OptionalExtension, Row, params};

/// A user together with what proves that it is them.
#[derive(Debug, Clone)]
pub struct Account {
    /// Who it is.
    pub user: User,
    /// The hash of the password; without one the user has none.
    pub password_hash: Option<String>,
}

/// A user to be made.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as in User")]
pub struct NewAccount {
    pub username: String,
    pub display_name: String,
    pub admin: bool,
    pub active: bool,
    pub remote: bool,
    pub password_hash: Option<String>,
    pub agent_user_group: Option<Value>,
}

/// What is to change; the rest stays.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "as in User")]
pub struct UserChange {
    pub username: Option<String>,
    pub display_name: Option<String>,
    pub admin: Option<bool>,
    pub active: Option<bool>,
    pub remote: Option<bool>,
    /// `Some(None)` takes the password away. Any change ends the user's sessions.
    pub password_hash: Option<Option<String>>,
    pub agent_user_group: Option<Value>,
}

pub(crate) fn user_of(row: &Row<'_>) -> sql::Result<User> {
    Ok(User {
        id: UserId(column(row, "id")?),
        username: column(row, "username")?,
        admin: column(row, "admin")?,
        active: column(row, "active")?,
        display_name: column(row, "display_name")?,
        agent_user_group: optional_json(row, "agent_user_group")?,
        remote: column(row, "remote")?,
        modified_at: optional_time(row, "modified_at")?,
        last_auth_at: optional_time(row, "last_auth_at")?,
    })
}

fn account_of(row: &Row<'_>) -> sql::Result<Account> {
    Ok(Account { user: user_of(row)?, password_hash: column(row, "password_hash")? })
}

fn user_by_id(connection: &Connection, id: UserId) -> Result<User> {
    connection
        .prepare_cached("SELECT * FROM users WHERE id = ?")?
        .query_row([id.0], user_of)
        .optional()?
        .ok_or_else(|| Error::not_found("user", id))
}

fn name_is_free(connection: &Connection, username: &str) -> Result<()> {
    let taken: bool =
        connection.query_row("SELECT EXISTS (SELECT 1 FROM users WHERE username = ?)", [username], |row| row.get(0))?;
    if taken { Err(Error::AlreadyExists(format!("user '{username}' already exists"))) } else { Ok(()) }
}

impl Database {
    /// The user of that name, if there is one.
    pub async fn account(&self, username: String) -> Result<Option<Account>> {
        self.executor
            .read(move |connection| {
                let mut statement = connection.prepare_cached("SELECT * FROM users WHERE username = ?")?;
                Ok(statement.query_row([username], account_of).optional()?)
            })
            .await
    }

    /// The user with that id.
    pub async fn user(&self, id: UserId) -> Result<User> {
        self.executor.read(move |connection| user_by_id(connection, id)).await
    }

    /// All users, by id.
    pub async fn users(&self) -> Result<Vec<User>> {
        self.executor
            .read(|connection| {
                let mut statement = connection.prepare_cached("SELECT * FROM users ORDER BY id")?;
                let users = statement.query_map([], user_of)?;
                Ok(users.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// Replaces the hash of a password by another of the same password; sessions go on.
    pub async fn renew_password_hash(&self, id: UserId, before: String, hash: String) -> Result<()> {
        self.executor
            .write(move |connection| {
                let sql = "UPDATE users SET password_hash = ? WHERE id = ? AND password_hash = ?";
                connection.execute(sql, params![hash, id.0, before])?;
                Ok(())
            })
            .await
    }

    /// The names of active users who have no password.
    pub async fn users_without_password(&self) -> Result<Vec<String>> {
        self.executor
            .read(|connection| {
                let sql = "SELECT username FROM users WHERE active AND password_hash IS NULL ORDER BY id";
                let mut statement = connection.prepare(sql)?;
                let names = statement.query_map([], |row| row.get(0))?;
                Ok(names.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// Makes a user.
    pub async fn create_user(&self, new: NewAccount, now: Timestamp) -> Result<User> {
        self.executor
            .write(move |connection| {
                name_is_free(connection, &new.username)?;
                let group = new.agent_user_group.as_ref().map(text_of).transpose()?;
                let id = connection.query_row(
                    "INSERT INTO users (username, display_name, admin, active, remote, password_hash, \
                     agent_user_group, modified_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
                    params![
                        new.username,
                        new.display_name,
                        new.admin,
                        new.active,
                        new.remote,
                        new.password_hash,
                        group,
                        now.0
                    ],
                    |row| row.get(0),
                )?;
                user_by_id(connection, UserId(id))
            })
            .await
    }

    /// Changes a user. A new password, or being made inactive, ends all of their sessions.
    pub async fn change_user(&self, id: UserId, change: UserChange, now: Timestamp) -> Result<User> {
        self.executor
            .write(move |connection| {
                let current = user_by_id(connection, id)?;
                if let Some(username) = change.username.as_ref().filter(|name| **name != current.username) {
                    name_is_free(connection, username)?;
                }
                let group = change.agent_user_group.or(current.agent_user_group).as_ref().map(text_of).transpose()?;
                connection.execute(
                    "UPDATE users SET username = ?, display_name = ?, admin = ?, active = ?, remote = ?, \
                     agent_user_group = ?, modified_at = ? WHERE id = ?",
                    params![
                        change.username.unwrap_or(current.username),
                        change.display_name.unwrap_or(current.display_name),
                        change.admin.unwrap_or(current.admin),
                        change.active.unwrap_or(current.active),
                        change.remote.unwrap_or(current.remote),
                        group,
                        now.0,
                        id.0
                    ],
                )?;
                if let Some(hash) = &change.password_hash {
                    connection.execute("UPDATE users SET password_hash = ? WHERE id = ?", params![hash, id.0])?;
                }
                if change.password_hash.is_some() || change.active == Some(false) {
                    // Tasks keep theirs, which end with their allocations; access tokens are revoked one by one, and
                    // count for nothing while their user is inactive.
                    let sql = "DELETE FROM sessions WHERE user_id = ? AND allocation_id IS NULL \
                               AND access_token_id IS NULL";
                    connection.execute(sql, [id.0])?;
                }
                user_by_id(connection, id)
            })
            .await
    }
}
