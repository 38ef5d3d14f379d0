//! Remembers experiments, trials, metrics, logs, checkpoints and users: in one SQLite file, or in PostgreSQL.
//!
//! [`Database`] is the whole contract; only this crate contains SQL, and the drivers are private to it. The SQL keeps to
//! what both engines understand; what they spell differently is in `sql`.
//!
//! Invariants, cited by the tests:
//!
//! 1. A write is answered when it is on disk: WAL, `synchronous = FULL` or `synchronous_commit = on`, and the answer after
//!    the commit (`executor`).
//! 2. One process decides: a lock keeps a second one out (on a file beside a SQLite database, on the writer's session with
//!    PostgreSQL), and the lease row's epoch, checked in every writing transaction, refuses one that was replaced without
//!    noticing.
//! 3. A point of a metric is stored once: in the tail or in one chunk, moved between them in one transaction.
//! 4. Time and randomness are arguments.
//!
//! Threads: one writer, three readers, one that merges the tail of metrics into chunks. [`Database::close`] ends them in
//! the order merger, writer, readers; dropping the last handle does the same. Of several masters ([`Candidate`]), the one
//! that leads has one more, which renews its lease.

mod agents;
mod allocations;
mod audit;
mod backup;
mod candidate;
mod checkpoints;
mod collections;
mod commands;
mod deletions;
mod error;
mod executor;
mod experiments;
pub mod import;
mod leadership;
mod lock;
mod log_quota;
mod log_retention;
mod logs;
mod managed;
mod metrics;
mod migrations;
mod models;
mod ownership;
mod pools;
mod preferences;
mod projects;
mod queue;
mod renewal;
mod roles;
mod rows;
mod runs;
mod secrets;
mod sessions;
mod snapshots;
mod sql;
mod sync;
mod templates;
mod tokens;
mod transfer;
mod trial_sources;
mod trials;
mod usage;
mod users;
mod webhooks;
mod workspaces;
mod writable;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use agents::{AgentRow, AgentTokenRow};
pub use allocations::AllocationRow;
pub use audit::AuditFilter;
pub use backup::{back_up, holds_secrets, restore};
pub use candidate::{Candidate, Leadership};
pub use checkpoints::NewCheckpoint;
pub use collections::Collection;
pub use commands::{CommandFilter, CommandRow, NewCommand, ShownTrial};
pub use deletions::Deletion;
pub use error::{Error, Result};
use executor::Executor;
pub use executor::Load;
pub use experiments::{ExperimentFilter, ExperimentSort, NewExperiment};
pub use leadership::{AdvertisedEndpoint, LEASE, Leader};
use lock::Lock;
pub use lock::holder;
use log_quota::LogQuota;
pub use logs::LogQuery;
pub use managed::{
    Decision, ExperimentDecision, LiveExperiment, LiveTrial, NewManagedExperiment, NewManagedTrial, RevisedTrial,
    TaskSession, TrialDecision,
};
pub use metrics::chunk;
pub use metrics::downsample;
pub use metrics::history::Part as HistoryPart;
pub use ownership::{Ownership, Subject};
pub use roles::{Group, GroupChange, HeldRole, Holder};
pub use runs::Run;
pub use secrets::SecretScope;
pub use sessions::{Session, SessionTask};
pub use snapshots::{Snapshot, StoredState};
use sql::Place;
pub use sql::{Address as PostgresAddress, AddressError};
pub use tokens::{NewAccessToken, TokenFilter};
pub use transfer::{CopiedTable, CopyError, CopyObserver, CopySide, Transfer};
pub use trial_sources::{SourceOf, TrialSource};
pub use trials::NewTrial;
pub use usage::Usage;
pub use users::{Account, NewAccount, UserChange};
pub use webhooks::{DueEvent, NewWebhook, WebhookEvent, is_for};
pub use workspaces::WorkspaceChange;

use instep_api::wire::Timestamp;
use metrics::merger::Merger;
use renewal::Renewal;

/// How often it is asked whether the lease could be renewed.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What a process brings when it opens a database.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Opening {
    /// Names the process in the lease.
    pub holder: String,
    /// Becomes the cluster's id if the database is new.
    pub cluster_id: String,
    pub now: Timestamp,
}

/// Everything that the master knows. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    // In the order in which they end: the merger writes through the executor, and the file stays locked to the last.
    merger: Arc<Merger>,
    executor: Arc<Executor>,
    cluster_id: Arc<str>,
    path: Arc<Path>,
    /// Whether the path is the database itself, and its disk the database's.
    is_file: bool,
    epoch: i64,
    lock: Arc<Lock>,
    /// Renews the lease, where other masters may take over.
    renewal: Option<Arc<Renewal>>,
    log_quota: Arc<LogQuota>,
}

impl Database {
    /// Opens the file, makes it if there is none, and brings its schema up to date.
    pub fn open(path: &Path, opening: &Opening) -> Result<Database> {
        let lock = Lock::take(path, &opening.holder)?;
        let place = Place::from(path);
        let unusable = |error: sql::Error| Error::Unusable { path: path.to_owned(), why: error.to_string() };
        let mut writer = place.open_writer().map_err(unusable)?;
        transfer::refuse_incomplete(&writer, &path.display().to_string())?;
        migrations::migrate(&mut writer, path, opening)?;
        Database::start(path, &place, writer, lock, opening)
    }

    /// Opens a database in PostgreSQL, makes its schema if there is none, and brings it up to date. What belongs to it on
    /// this machine, such as the lock that other processes here look at, lies beside `path`, which is no file itself.
    ///
    /// Must not be called on a thread of an asynchronous runtime.
    pub fn open_postgres(path: &Path, address: PostgresAddress, opening: &Opening) -> Result<Database> {
        let lock = Lock::take(path, &opening.holder).map_err(|error| error.beside(address.place()))?;
        let place = Place::Postgres(Arc::new(address));
        let opened = place.open_writer().map_err(Error::from).and_then(|mut writer| {
            let shown = place.shown();
            transfer::refuse_incomplete(&writer, &shown.display().to_string())?;
            migrations::upgrade(&mut writer, &shown, opening)?;
            Database::start(path, &place, writer, lock, opening)
        });
        opened.map_err(|error| error.on_opening(&place))
    }

    fn start(
        path: &Path,
        place: &Place,
        mut writer: sql::Connection,
        lock: Lock,
        opening: &Opening,
    ) -> Result<Database> {
        let epoch = migrations::take_lease(&mut writer, opening, None)?;
        Database::serve(path, place, writer, Arc::new(lock), epoch)
    }

    /// Starts the threads of a process whose lease is `epoch`.
    fn serve(path: &Path, place: &Place, writer: sql::Connection, lock: Arc<Lock>, epoch: i64) -> Result<Database> {
        let cluster_id: String =
            writer.query_row("SELECT value FROM settings WHERE name = 'cluster_id'", [], |row| row.get(0))?;
        let executor = Arc::new(Executor::start(place, writer, epoch)?);
        let merger = Arc::new(Merger::start(place, Arc::clone(&executor))?);
        Ok(Database {
            merger,
            executor,
            cluster_id: cluster_id.into(),
            path: path.into(),
            is_file: matches!(place, Place::Sqlite(_)),
            epoch,
            lock,
            renewal: None,
            log_quota: Arc::default(),
        })
    }

    /// Lets what is queued finish, and ends the threads.
    pub fn close(&self) {
        self.merger.close();
        self.executor.close();
        self.renewal.iter().for_each(|renewal| renewal.close());
    }

    /// The number of this process's term: how often somebody began to decide with this database.
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Lets this process write nothing any more, because it must not go on with what it knows; for [`Database::ended`].
    pub fn end(&self, why: &str) {
        self.executor.end(why);
    }

    /// Why another process may lead by now, as far as this machine's clock says: a process that was stopped wakes with what
    /// it knew then.
    pub fn lease_lost(&self) -> Option<String> {
        self.renewal.as_ref()?.lost()
    }

    /// Waits until this process may not write any more, and says why. It has to begin anew, with what the database says.
    /// Where others may take over, a lease that cannot be renewed is noticed here.
    pub async fn ended(&self) -> String {
        if let Some(renewal) = &self.renewal {
            while tokio::time::timeout(LOOK_AGAIN, self.executor.ended()).await.is_err() {
                renewal.lost().iter().for_each(|why| self.end(why));
            }
        }
        self.executor.ended().await
    }

    /// How much there is to do.
    pub fn load(&self) -> Load {
        self.executor.load()
    }

    /// Says to whoever finds the file in use where this process can be reached; see [`holder`].
    pub fn announce(&self, words: &str) -> Result<()> {
        let path = self.path.to_path_buf();
        self.lock.announce(words).map_err(|source| Error::File { path, source })
    }

    /// The file; with PostgreSQL, where the files lie that belong to the database on this machine.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Identifies this cluster, for as long as its database lives.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }
}
