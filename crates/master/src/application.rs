//! What all requests share.

use std::sync::Arc;
use std::time::Duration;

use instep_database::{Database, Session};
use serde_json::Value;
use tokio::sync::watch;

use crate::attempts::Attempts;
use crate::clock::now;
use crate::cluster::{Cluster, ClusterOptions};
use crate::journal::Journal;
use crate::notices::Notices;
use crate::passwords::token_hash;
use crate::random;
use crate::storage::StorageRoots;
use crate::telemetry::Telemetry;

/// The master's state: everything that lasts is in the database.
pub(crate) struct Application {
    pub database: Database,
    /// Runs what the master itself runs.
    pub cluster: Cluster,
    /// Changes with every start.
    pub master_id: String,
    /// Host names, besides addresses and `localhost`, under which this master may be asked.
    pub allowed_hosts: Vec<String>,
    /// A hash to compare with when there is no such user, so that the answer takes as long.
    pub decoy_hash: String,
    /// How long a login lasts.
    pub session: Duration,
    /// What the master says for all experiments, as a configuration.
    pub defaults: Value,
    /// Where checkpoints are read and deleted.
    pub storage: StorageRoots,
    pub telemetry: Telemetry,
    /// What was logged recently.
    pub journal: Journal,
    pub notices: Arc<Notices>,
    /// Wrong passwords of the last minutes.
    pub attempts: Attempts,
}

/// What an application is told.
#[derive(Debug, Clone, Default)]
pub(crate) struct ApplicationOptions {
    pub allowed_hosts: Vec<String>,
    pub session: Duration,
    pub defaults: Value,
    pub storage: StorageRoots,
    pub cluster: ClusterOptions,
    pub journal: Journal,
}

impl Application {
    /// Loads what there is, and goes on with it.
    pub(crate) async fn start(database: Database, told: ApplicationOptions) -> instep_database::Result<Application> {
        let decoy_hash = crate::passwords::to_store(&random::token(), true).unwrap_or_default();
        let (master_id, notices) = (random::uuid(), Arc::new(Notices::default()));
        let cluster = Cluster::start(database.clone(), Arc::clone(&notices), master_id.clone(), told.cluster).await?;
        Ok(Application {
            database,
            cluster,
            master_id,
            allowed_hosts: told.allowed_hosts,
            decoy_hash,
            session: told.session,
            storage: told.storage,
            defaults: told.defaults,
            telemetry: Telemetry::new(),
            journal: told.journal,
            notices,
            attempts: Attempts::default(),
        })
    }

    /// What a token stands for, if it is valid.
    pub(crate) async fn session_of_token(&self, token: &str) -> instep_database::Result<Option<Session>> {
        let hash = token_hash(token);
        if let Some(session) = self.notices.remembered(&hash) {
            return Ok(Some(session));
        }
        let found = self.database.session(hash.clone(), now()).await?;
        self.notices.remember(hash, found.as_ref());
        Ok(found)
    }

    /// Looks every token up again, because users or sessions have changed.
    pub(crate) fn forget_sessions(&self) {
        self.notices.forget_sessions();
    }

    /// Wakes those who follow logs.
    pub(crate) fn logs_arrived(&self) {
        self.notices.logs_arrived();
    }

    /// To be woken when logs arrive.
    pub(crate) fn follow_logs(&self) -> watch::Receiver<u64> {
        self.notices.follow_logs()
    }
}
