//! What all requests share.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use instep_api::users::User;
use instep_database::Database;
use tokio::sync::watch;

use crate::clock::now;
use crate::passwords::token_hash;
use crate::random;
use crate::telemetry::Telemetry;

/// How long a token that was looked up is believed without looking again. Changes that are made here are seen at once.
const BELIEVED: Duration = Duration::from_secs(5);
/// Tokens that are remembered at most; beyond it all are looked up again.
const REMEMBERED: usize = 10_000;

/// The master's state: everything that lasts is in the database.
pub(crate) struct Application {
    pub database: Database,
    /// Changes with every start.
    pub master_id: String,
    /// Host names, besides addresses and `localhost`, under which this master may be asked.
    pub allowed_hosts: Vec<String>,
    /// A hash to compare with when there is no such user, so that the answer takes as long.
    pub decoy_hash: String,
    /// How long a login lasts.
    pub session: Duration,
    pub telemetry: Telemetry,
    sessions: Mutex<HashMap<String, (User, Instant)>>,
    log_arrivals: watch::Sender<u64>,
}

impl Application {
    pub(crate) fn new(database: Database, allowed_hosts: Vec<String>, session: Duration) -> Application {
        let decoy_hash = crate::passwords::to_store(&random::token(), true).unwrap_or_default();
        Application {
            database,
            master_id: random::uuid(),
            allowed_hosts,
            decoy_hash,
            session,
            telemetry: Telemetry::new(),
            sessions: Mutex::new(HashMap::new()),
            log_arrivals: watch::Sender::new(0),
        }
    }

    /// Whom a token speaks for, if it is valid.
    pub(crate) async fn user_of_token(&self, token: &str) -> instep_database::Result<Option<User>> {
        let hash = token_hash(token);
        if let Some((user, when)) = self.remembered().get(&hash)
            && when.elapsed() < BELIEVED
        {
            return Ok(Some(user.clone()));
        }
        let found = self.database.session_user(hash.clone(), now()).await?;
        let mut remembered = self.remembered();
        match &found {
            Some(user) => {
                if remembered.len() >= REMEMBERED {
                    remembered.clear();
                }
                remembered.insert(hash, (user.clone(), Instant::now()));
            }
            None => {
                remembered.remove(&hash);
            }
        }
        Ok(found)
    }

    /// Looks every token up again, because users or sessions have changed.
    pub(crate) fn forget_sessions(&self) {
        self.remembered().clear();
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, HashMap<String, (User, Instant)>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those who follow logs.
    pub(crate) fn logs_arrived(&self) {
        self.log_arrivals.send_modify(|count| *count += 1);
    }

    /// To be woken when logs arrive.
    pub(crate) fn follow_logs(&self) -> watch::Receiver<u64> {
        self.log_arrivals.subscribe()
    }
}
