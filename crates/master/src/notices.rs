//! What parts of the master let each other know: lines have arrived, tokens have changed or gone, files are to be deleted.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use crate::application::Known;
use crate::sync::lock;

/// How long a token that was looked up is believed without looking again. Changes that are made here are seen at once.
const BELIEVED: Duration = Duration::from_secs(5);
/// Tokens that are remembered at most; beyond it all are looked up again.
const REMEMBERED: usize = 10_000;

/// What tokens stand for, and how often all were looked up again.
#[derive(Default)]
struct Sessions {
    known: HashMap<String, (Known, Instant)>,
    changes: u64,
}

/// Shared by whoever has to know.
pub(crate) struct Notices {
    sessions: Mutex<Sessions>,
    log_arrivals: watch::Sender<u64>,
    deletions: Notify,
    agent_tokens: watch::Sender<()>,
}

impl Default for Notices {
    fn default() -> Notices {
        Notices {
            sessions: Mutex::default(),
            log_arrivals: watch::Sender::new(0),
            deletions: Notify::new(),
            agent_tokens: watch::Sender::new(()),
        }
    }
}

impl Notices {
    /// What the token of a hash stands for, if that was looked up a moment ago.
    pub(crate) fn remembered(&self, hash: &str) -> Option<Known> {
        let sessions = lock(&self.sessions);
        sessions.known.get(hash).filter(|(_, when)| when.elapsed() < BELIEVED).map(|(known, _)| known.clone())
    }

    /// How often all tokens were looked up again: asked before a look, and told when it is over.
    pub(crate) fn session_changes(&self) -> u64 {
        lock(&self.sessions).changes
    }

    /// Remembers what a token stands for, or that it stands for nothing. What was read before the last change is not
    /// remembered: it may be what was changed.
    pub(crate) fn remember(&self, hash: String, known: Option<&Known>, changes: u64) {
        let mut sessions = lock(&self.sessions);
        match known {
            Some(known) if sessions.changes == changes => {
                if sessions.known.len() >= REMEMBERED {
                    sessions.known.clear();
                }
                sessions.known.insert(hash, (known.clone(), Instant::now()));
            }
            Some(_) => {}
            None => {
                sessions.known.remove(&hash);
            }
        }
    }

    /// Looks every token up again, because users, sessions or roles have changed.
    pub(crate) fn forget_sessions(&self) {
        let mut sessions = lock(&self.sessions);
        sessions.known.clear();
        sessions.changes += 1;
    }

    /// Wakes those who follow logs.
    pub(crate) fn logs_arrived(&self) {
        self.log_arrivals.send_modify(|count| *count += 1);
    }

    /// To be woken when logs arrive.
    pub(crate) fn follow_logs(&self) -> watch::Receiver<u64> {
        self.log_arrivals.subscribe()
    }

    /// Has connected agents' tokens looked up again, because one was revoked.
    pub(crate) fn agent_token_revoked(&self) {
        self.agent_tokens.send_replace(());
    }

    /// To be woken when an agent's token was revoked.
    pub(crate) fn follow_agent_tokens(&self) -> watch::Receiver<()> {
        self.agent_tokens.subscribe()
    }

    /// The database has noted files that are to be deleted.
    pub(crate) fn deletions_wanted(&self) {
        self.deletions.notify_one();
    }

    /// Waits until there is something to delete.
    pub(crate) async fn next_deletions(&self) {
        self.deletions.notified().await;
    }
}
