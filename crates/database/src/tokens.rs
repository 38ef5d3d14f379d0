//! Access tokens: what users make for programs, to be used in place of a login.

use instep_api::identifiers::UserId;
use instep_api::tokens::TokenInfo;
use instep_api::wire::Timestamp;

use crate::Database;
use crate::error::{Error, Result};
use crate::rows::{column, optional_time, time};
use crate::sql::{self, Connection, OptionalExtension, Row, params};

/// Later than any token is asked about.
const NEVER: i64 = i64::MAX;

/// A token to be made.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as in TokenInfo")]
pub struct NewAccessToken {
    pub token_hash: String,
    pub user: UserId,
    pub description: String,
    /// `None`: never.
    pub expires_at: Option<Timestamp>,
}

/// Which tokens are wanted; what is not given wants all.
#[derive(Debug, Clone, Default)]
pub struct TokenFilter {
    /// These.
    pub ids: Vec<i64>,
    /// Of this user.
    pub user: Option<UserId>,
    /// Those that are revoked or have expired, too.
    pub inactive: bool,
}

fn token_of(row: &Row<'_>) -> sql::Result<TokenInfo> {
    Ok(TokenInfo {
        id: column(row, "id")?,
        user_id: UserId(column(row, "user_id")?),
        description: column(row, "description")?,
        created_at: time(row, "created_at")?,
        expiry: optional_time(row, "expires_at")?,
        revoked: column(row, "revoked")?,
        token_type: "TOKEN_TYPE_ACCESS_TOKEN".to_owned(),
    })
}

fn token_by_id(connection: &Connection, id: i64) -> Result<TokenInfo> {
    let mut statement = connection.prepare_cached("SELECT * FROM access_tokens WHERE id = ?")?;
    statement.query_row([id], token_of).optional()?.ok_or_else(|| Error::not_found("token", id))
}

impl Database {
    /// Makes a token; its number.
    pub async fn create_access_token(&self, new: NewAccessToken, now: Timestamp) -> Result<i64> {
        self.executor
            .write(move |connection| {
                let expires_at = new.expires_at.map(|time| time.0);
                let id: i64 = connection.query_row(
                    "INSERT INTO access_tokens (user_id, description, created_at, expires_at, revoked) \
                     VALUES (?, ?, ?, ?, FALSE) RETURNING id",
                    params![new.user.0, new.description, now.0, expires_at],
                    |row| row.get(0),
                )?;
                connection.execute(
                    "INSERT INTO sessions (token_hash, user_id, created_at, expires_at, access_token_id) \
                     VALUES (?, ?, ?, ?, ?)",
                    params![new.token_hash, new.user.0, now.0, expires_at.unwrap_or(NEVER), id],
                )?;
                Ok(id)
            })
            .await
    }

    /// The tokens that a filter lets through, by number.
    pub async fn access_tokens(&self, filter: TokenFilter, now: Timestamp) -> Result<Vec<TokenInfo>> {
        self.executor
            .read(move |connection| {
                let mut statement = connection.prepare_cached("SELECT * FROM access_tokens ORDER BY id")?;
                let found = statement.query_map([], token_of)?.collect::<sql::Result<Vec<TokenInfo>>>()?;
                let is_wanted = |token: &TokenInfo| {
                    let is_active = !token.revoked && token.expiry.is_none_or(|expiry| expiry > now);
                    (filter.ids.is_empty() || filter.ids.contains(&token.id))
                        && filter.user.is_none_or(|user| user == token.user_id)
                        && (filter.inactive || is_active)
                };
                Ok(found.into_iter().filter(is_wanted).collect())
            })
            .await
    }

    /// One token.
    pub async fn access_token(&self, id: i64) -> Result<TokenInfo> {
        self.executor.read(move |connection| token_by_id(connection, id)).await
    }

    /// Describes a token, or revokes it for ever.
    pub async fn change_access_token(&self, id: i64, description: Option<String>, revoke: bool) -> Result<TokenInfo> {
        self.executor
            .write(move |connection| {
                let current = token_by_id(connection, id)?;
                if current.revoked {
                    let what = format!("token {id} is revoked and cannot be changed\nhint: make a new one");
                    return Err(Error::Precondition(what));
                }
                connection.execute(
                    "UPDATE access_tokens SET description = ?, revoked = ? WHERE id = ?",
                    params![description.unwrap_or(current.description), revoke, id],
                )?;
                if revoke {
                    connection.execute("DELETE FROM sessions WHERE access_token_id = ?", [id])?;
                }
                token_by_id(connection, id)
            })
            .await
    }
}
