//! Sessions: which token speaks for whom, and until when. Tokens are known by their hashes only.

use instep_api::identifiers::UserId;
use instep_api::users::User;
use instep_api::wire::Timestamp;
use rusqlite::{OptionalExtension, params};

use crate::Database;
use crate::error::Result;
use crate::users::user_of;

impl Database {
    /// Remembers a session, and that its user was here. Forgets sessions that are over.
    pub async fn open_session(
        &self,
        token_hash: String,
        user: UserId,
        now: Timestamp,
        expires_at: Timestamp,
    ) -> Result<()> {
        self.engine
            .write(move |connection| {
                connection.execute("DELETE FROM sessions WHERE expires_at <= ?", [now.0])?;
                connection.execute(
                    "INSERT INTO sessions (token_hash, user_id, created_at, expires_at) VALUES (?, ?, ?, ?)",
                    params![token_hash, user.0, now.0, expires_at.0],
                )?;
                connection.execute("UPDATE users SET last_auth_at = ? WHERE id = ?", [now.0, user.0])?;
                Ok(())
            })
            .await
    }

    /// The active user whom a token speaks for, if it is valid now.
    pub async fn session_user(&self, token_hash: String, now: Timestamp) -> Result<Option<User>> {
        self.engine
            .read(move |connection| {
                let sql = "SELECT users.* FROM sessions JOIN users ON users.id = sessions.user_id \
                           WHERE token_hash = ? AND expires_at > ? AND users.active";
                let mut statement = connection.prepare_cached(sql)?;
                Ok(statement.query_row(params![token_hash, now.0], user_of).optional()?)
            })
            .await
    }

    /// Ends a session.
    pub async fn close_session(&self, token_hash: String) -> Result<()> {
        self.engine
            .write(move |connection| {
                connection.execute("DELETE FROM sessions WHERE token_hash = ?", [token_hash])?;
                Ok(())
            })
            .await
    }
}
