//! The audit log: who did what to what, when, from where, and how it ended. It is not Determined's.

use serde::{Deserialize, Serialize};

use crate::identifiers::UserId;
use crate::wire::Timestamp;

/// With which kind of token a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenKind {
    /// Without one.
    None,
    /// With one that is not valid.
    Invalid,
    /// A login's.
    Login,
    /// A task's.
    Task,
    /// An agent's.
    Agent,
}

impl TokenKind {
    /// Every kind.
    pub const ALL: [TokenKind; 5] =
        [TokenKind::None, TokenKind::Invalid, TokenKind::Login, TokenKind::Task, TokenKind::Agent];

    /// As it is stored and shown.
    pub fn word(self) -> &'static str {
        match self {
            TokenKind::None => "none",
            TokenKind::Invalid => "invalid",
            TokenKind::Login => "login",
            TokenKind::Task => "task",
            TokenKind::Agent => "agent",
        }
    }
}

/// What somebody did, or tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditRecord {
    /// Grows from record to record.
    pub id: i64,
    /// When it had ended.
    pub time: Timestamp,
    /// Whose token it was; none if it was nobody's.
    pub user_id: Option<UserId>,
    /// What that user was called then.
    pub username: Option<String>,
    /// Which kind of token.
    pub token: TokenKind,
    /// The task whose token it was.
    pub task_id: Option<String>,
    /// Where the request came from: an address, or `several`.
    pub address: String,
    /// By which the request is found in the master's log.
    pub request_id: String,
    /// What was wanted, such as `experiment.kill`; `read` for anything that changes nothing.
    pub action: String,
    /// What it was wanted of, such as `experiment 7`.
    pub subject: String,
    /// The status of the answer.
    pub status: i64,
    /// How many such requests there were: refusals that repeat within a minute are one record for the first and one for
    /// the rest.
    pub count: i64,
}

impl AuditRecord {
    /// How it ended, in a word.
    pub fn outcome(&self) -> &'static str {
        match self.status {
            401 | 403 | 429 => "refused",
            status if status < 400 => "done",
            _ => "failed",
        }
    }
}

/// `GET /master/audit`: the oldest first.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the name says it")]
pub struct AuditResponse {
    pub records: Vec<AuditRecord>,
}
