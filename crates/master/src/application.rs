//! What all requests share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use instep_api::identifiers::UserId;
use instep_database::{Database, Session};
use serde_json::Value;
use tokio::sync::watch;

use crate::attempts::Attempts;
use crate::audit::Audit;
use crate::clock::now;
use crate::cluster::{Cluster, ClusterOptions};
use crate::grants::{self, Grants};
use crate::http::cookies::CookieNames;
use crate::journal::Journal;
use crate::notices::Notices;
use crate::passwords::token_hash;
use crate::random;
use crate::sites::Sites;
use crate::standby::Term;
use crate::storage::StorageRoots;
use crate::strangers::Strangers;
use crate::task_access::TaskAccess;
use crate::telemetry::Telemetry;
use crate::webhooks::{LogPatterns, LogQueue, WebhookOptions};

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
    pub audit: Audit,
    /// How the master's cookies are called.
    pub cookies: CookieNames,
    /// Where browsers find the master and the pages of tasks.
    pub sites: Sites,
    /// Who may open the pages of tasks.
    pub task_access: Mutex<TaskAccess>,
    /// Who is connected to tasks without having said who they are.
    pub strangers: Arc<Strangers>,
    /// Whether roles decide who sees and does what; without them everybody reads, and owners change.
    pub roles: bool,
    /// How webhooks are told, and what they look for in logs.
    pub webhooks: WebhookOptions,
    pub log_patterns: LogPatterns,
    /// Lines in which that is looked for.
    pub log_queue: LogQueue,
    /// Days that logs are kept after their task has ended, unless it says otherwise; `None` for ever.
    pub log_retention_days: Option<i64>,
    /// Bytes that all the code which one user sent may take.
    pub user_context_limit: Option<u64>,
    /// The term, where there are several masters.
    pub term: Option<Arc<Term>>,
}

/// Who asks, and what they have been given.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub session: Session,
    /// `None` without roles.
    pub grants: Option<Arc<Grants>>,
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
    pub audit_retention_days: u32,
    pub log_retention_days: Option<u32>,
    pub webhooks: WebhookOptions,
    pub user_context_limit: Option<u64>,
    pub sites: Sites,
    pub roles: bool,
    pub term: Option<Arc<Term>>,
}

impl Application {
    /// Loads what there is, and goes on with it.
    pub(crate) async fn start(database: Database, told: ApplicationOptions) -> instep_database::Result<Application> {
        let decoy_hash = crate::passwords::to_store(&random::token(), true).unwrap_or_default();
        let (master_id, notices) = (random::uuid(), Arc::new(Notices::default()));
        let options = ClusterOptions { roles: told.roles, ..told.cluster };
        let cluster = Cluster::start(database.clone(), Arc::clone(&notices), master_id.clone(), options).await?;
        let cookies = CookieNames::of(database.cluster_id(), told.sites.is_encrypted());
        Ok(Application {
            audit: Audit::new(database.clone(), told.audit_retention_days),
            webhooks: told.webhooks,
            log_patterns: LogPatterns::default(),
            log_queue: LogQueue::default(),
            log_retention_days: told.log_retention_days.map(i64::from),
            user_context_limit: told.user_context_limit,
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
            cookies,
            sites: told.sites,
            task_access: Mutex::default(),
            strangers: Arc::default(),
            roles: told.roles,
            term: told.term,
        })
    }

    /// What a token stands for, if it is valid.
    pub(crate) async fn session_of_token(&self, token: &str) -> instep_database::Result<Option<Known>> {
        self.session_of_hash(token_hash(token)).await
    }

    /// The same for the hash of a token.
    pub(crate) async fn session_of_hash(&self, hash: String) -> instep_database::Result<Option<Known>> {
        if let Some(known) = self.notices.remembered(&hash) {
            return Ok(Some(known));
        }
        let changes = self.notices.session_changes();
        let found = match self.database.session(hash.clone(), now()).await? {
            None => None,
            Some(mut session) => {
                let grants = self.grants_of(session.user.id, session.user.admin).await?;
                // Whoever is an administrator of the cluster by a role is one.
                session.user.admin |= grants.as_ref().is_some_and(|grants| grants.administrates());
                Some(Known { session, grants })
            }
        };
        self.notices.remember(hash, found.as_ref(), changes);
        Ok(found)
    }

    /// What a user has been given; `None` without roles.
    pub(crate) async fn grants_of(
        &self,
        user: UserId,
        administrates: bool,
    ) -> instep_database::Result<Option<Arc<Grants>>> {
        if !self.roles {
            return Ok(None);
        }
        Ok(Some(Arc::new(grants::of(&self.database, user, administrates).await?)))
    }

    /// Looks every token up again, because users, sessions or roles have changed.
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
