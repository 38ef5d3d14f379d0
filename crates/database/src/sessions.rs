//! Sessions: which token speaks for whom, and until when. Tokens are known by their hashes only.

use instep_api::identifiers::{ExperimentId, TrialId, UserId};
use instep_api::users::User;
use instep_api::wire::Timestamp;

use crate::Database;
use crate::error::Result;
use crate::rows::{column, time};
use crate::sql::{self, OptionalExtension, Row, params};
use crate::users::user_of;

/// What a token stands for.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// For whom it speaks.
    pub user: User,
    /// Since when.
    pub opened_at: Timestamp,
    /// The task that was given it; `None` if its user logged in for it.
    pub task: Option<SessionTask>,
    /// It is an access token, which its user made for programs: nobody gave a password for it.
    pub is_access_token: bool,
}

/// The task whose token it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionTask {
    /// With which the token ends.
    pub allocation: String,
    /// Of the allocation.
    pub task: String,
    /// If it is a trial's.
    pub trial: Option<TrialId>,
    /// Of the trial.
    pub experiment: Option<ExperimentId>,
}

fn session_of(row: &Row<'_>) -> sql::Result<Session> {
    let allocation: Option<String> = column(row, "of_allocation")?;
    let task = match allocation {
        None => None,
        Some(allocation) => Some(SessionTask {
            task: column::<Option<String>>(row, "of_task")?.unwrap_or_default(),
            trial: column::<Option<i64>>(row, "of_trial")?.map(TrialId),
            experiment: column::<Option<i64>>(row, "of_experiment")?.map(ExperimentId),
            allocation,
        }),
    };
    let is_access_token = column::<Option<i64>>(row, "access_token")?.is_some();
    Ok(Session { user: user_of(row)?, opened_at: time(row, "opened_at")?, task, is_access_token })
}

impl Database {
    /// Remembers a session, and that its user was here. Forgets sessions that are over.
    pub async fn open_session(
        &self,
        token_hash: String,
        user: UserId,
        now: Timestamp,
        expires_at: Timestamp,
    ) -> Result<()> {
        self.executor
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

    /// What a token lets its bearer do, if it is valid now and its user is active.
    pub async fn session(&self, token_hash: String, now: Timestamp) -> Result<Option<Session>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT users.*, sessions.created_at AS opened_at, sessions.allocation_id AS of_allocation, \
                           sessions.access_token_id AS access_token, \
                           allocations.task_id AS of_task, allocations.trial_id AS of_trial, \
                           allocations.experiment_id AS of_experiment \
                           FROM sessions JOIN users ON users.id = sessions.user_id \
                           LEFT JOIN allocations ON allocations.id = sessions.allocation_id \
                           WHERE token_hash = ? AND expires_at > ? AND users.active";
                let mut statement = connection.prepare_cached(sql)?;
                Ok(statement.query_row(params![token_hash, now.0], session_of).optional()?)
            })
            .await
    }

    /// Ends a session.
    pub async fn close_session(&self, token_hash: String) -> Result<()> {
        self.executor
            .write(move |connection| {
                connection.execute("DELETE FROM sessions WHERE token_hash = ?", [token_hash])?;
                Ok(())
            })
            .await
    }
}
