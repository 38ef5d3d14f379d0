//! What a master does besides answering, from when it leads to when it ends.

use std::sync::Arc;
use std::time::Duration;

use instep_database::Database;
use tokio::task::JoinHandle;

use super::site::Site;
use super::{Options, ServeError};
use crate::application::{Application, ApplicationOptions};
use crate::audit;
use crate::clock::now;
use crate::cluster::ClusterOptions;
use crate::engines::options::{EngineKind, EnginePool};
use crate::engines::slurm::missing_commands;
use crate::heartbeat;
use crate::standby::Term;
use crate::storage::StorageRoots;

/// How often logs whose time is over are looked for.
const CLEANING: Duration = Duration::from_secs(3600);

/// What a master does besides answering.
pub(super) struct Work {
    pub application: Arc<Application>,
    watches: Vec<JoinHandle<()>>,
    deletions: JoinHandle<()>,
}

impl Work {
    /// Goes on with what the database says.
    pub(super) async fn begin(
        options: &Options,
        database: &Database,
        site: &Site,
        term: Option<Arc<Term>>,
    ) -> Result<Work, ServeError> {
        database.limit_logs(options.task_log_limit);
        let told = ApplicationOptions {
            allowed_hosts: site.allowed_hosts.clone(),
            session: options.session,
            defaults: defaults(options),
            storage: StorageRoots::of(
                &options.storage_roots,
                &options.checkpoints,
                site.address.ip().to_canonical().is_loopback(),
            ),
            cluster: cluster(options, &site.reached_at(options))?,
            journal: options.journal.clone(),
            audit_retention_days: options.audit_retention_days,
            webhooks: options.webhooks.clone(),
            log_retention_days: options.log_retention_days,
            user_context_limit: options.user_context_limit,
            sites: site.sites.clone(),
            roles: options.roles,
            term,
        };
        if options.roles {
            say_who_sees_nothing(database).await?;
        }
        let application = Arc::new(Application::start(database.clone(), told).await?);
        // What an earlier master did not get to delete. If it fails again, the next deletion or start tries once more.
        let deletions = tokio::spawn({
            let application = Arc::clone(&application);
            async move {
                loop {
                    if let Err(error) = crate::deletions::carry_out(&application).await {
                        tracing::error!(%error, "cannot finish pending deletions");
                    }
                    application.notices.next_deletions().await;
                }
            }
        });
        let watches = vec![
            tokio::spawn(heartbeat::watch(Arc::clone(&application))),
            tokio::spawn(audit::watch(Arc::clone(&application))),
            tokio::spawn(crate::webhooks::watch(Arc::clone(&application))),
            tokio::spawn(crate::webhooks::watch_logs(Arc::clone(&application))),
            tokio::spawn(clean_logs(Arc::clone(&application))),
        ];
        Ok(Work { application, watches, deletions })
    }

    pub(super) async fn end(self) {
        self.watches.iter().for_each(JoinHandle::abort);
        self.application.audit.finish().await;
        self.deletions.abort();
    }
}

/// How the cluster is run, with what its engines need to know of this master.
pub(super) fn cluster(options: &Options, address: &str) -> Result<ClusterOptions, ServeError> {
    let mut cluster = options.cluster.clone();
    let is_slurm = |pool: &&EnginePool| pool.engine.kind() == EngineKind::Slurm;
    if let Some(pool) = cluster.engines.pools.iter().find(is_slurm) {
        let missing = missing_commands();
        if !missing.is_empty() {
            return Err(ServeError::NoSlurm { pool: pool.pool_name.clone(), commands: missing.join(", ") });
        }
        if options.roles {
            tracing::warn!(
                pool = pool.pool_name,
                "roles do not keep users of this pool apart: its jobs run as the account of this master, and may change what that \
                 account can reach"
            );
        }
    }
    address.clone_into(&mut cluster.engines.address);
    cluster.engines.binary = std::env::current_exe().map_err(ServeError::System)?;
    Ok(cluster)
}

/// Warns of users who see nothing yet, and says what gives them what they had without roles.
async fn say_who_sees_nothing(database: &Database) -> Result<(), ServeError> {
    let users = database.users_without_role().await?;
    if users.is_empty() {
        tracing::info!("roles are on");
        return Ok(());
    }
    tracing::warn!(
        users = users.join(", "),
        "roles are on, and these users have none: they see nothing. What everybody has without roles is given by \
         `instep workspace share --everywhere --everyone --role editor`, and the right to create workspaces by \
         the same with `--role creator`"
    );
    Ok(())
}

/// What the master says for all experiments.
fn defaults(options: &Options) -> serde_json::Value {
    serde_json::json!({"checkpoint_storage": {"type": "shared_fs", "host_path": options.checkpoints}})
}

/// Deletes logs whose time is over, every hour.
async fn clean_logs(application: Arc<Application>) {
    loop {
        match application.database.clean_logs(application.log_retention_days, now()).await {
            Ok(0) => {}
            Ok(lines) => tracing::info!(lines, "deleted logs that are kept no longer"),
            Err(error) => tracing::error!(%error, "cannot delete old logs"),
        }
        tokio::time::sleep(CLEANING).await;
    }
}
