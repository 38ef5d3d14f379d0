//! What parts of the master let each other know: lines have arrived, tokens have changed, files are to be deleted.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use instep_database::Session;
use tokio::sync::{Notify, watch};

use crate::sync::lock;

/// How long a token that was looked up is believed without looking again. Changes that are made here are seen at once.
const BELIEVED: Duration = Duration::from_secs(5);
/// Tokens that are remembered at most; beyond it all are looked up again.
const REMEMBERED: usize = 10_000;

/// Shared by whoever has to know.
pub(crate) struct Notices {
    sessions: Mutex<HashMap<String, (Session, Instant)>>,
    log_arrivals: watch::Sender<u64>,
    deletions: Notify,
}

impl Default for Notices {
    fn default() -> Notices {
        Notices { sessions: Mutex::default(), log_arrivals: watch::Sender::new(0), deletions: Notify::new() }
    }
}

impl Notices {
    /// What the token of a hash stands for, if that was looked up a moment ago.
    pub(crate) fn remembered(&self, hash: &str) -> Option<Session> {
        let sessions = self.sessions();
        sessions.get(hash).filter(|(_, when)| when.elapsed() < BELIEVED).map(|(session, _)| session.clone())
    }

    /// Remembers what a token stands for, or that it stands for nothing.
    pub(crate) fn remember(&self, hash: String, session: Option<&Session>) {
        let mut sessions = self.sessions();
        match session {
            Some(session) => {
                if sessions.len() >= REMEMBERED {
                    sessions.clear();
                }
                sessions.insert(hash, (session.clone(), Instant::now()));
            }
            None => {
                sessions.remove(&hash);
            }
        }
    }

    /// Looks every token up again, because users or sessions have changed.
    pub(crate) fn forget_sessions(&self) {
        self.sessions().clear();
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, HashMap<String, (Session, Instant)>> {
        lock(&self.sessions)
    }

    /// Wakes those who follow logs.
    pub(crate) fn logs_arrived(&self) {
        self.log_arrivals.send_modify(|count| *count += 1);
    }

    /// To be woken when logs arrive.
    pub(crate) fn follow_logs(&self) -> watch::Receiver<u64> {
        self.log_arrivals.subscribe()
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
