//! Binding, serving, ending.

mod several;
mod site;
mod work;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use instep_database::{Candidate, Database, Opening, PostgresAddress};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::agreement::Agreed;
use crate::clock::now;
use crate::cluster::ClusterOptions;
use crate::encryption::{Encryption, EncryptionError};
use crate::http::router::{router, task_router};
use crate::journal::Journal;
use crate::presence::Presence;
use crate::random;
use crate::webhooks::WebhookOptions;
use several::stand_by;
use site::{Bound, resolve};
use work::Work;

/// How long requests may take to finish once the master is told to end.
const GRACE: Duration = Duration::from_secs(5);
/// What to do where files cannot be made: those of a database in PostgreSQL are beside no file that was named.
pub const NO_FILES: &str =
    "choose a writable folder: with --db, or with the variable XDG_DATA_HOME if the database is in PostgreSQL";

/// What the master needs to know.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address or name to serve on.
    pub host: String,
    /// Port to serve on; 0 takes any free one.
    pub port: u16,
    /// Port for the pages of tasks; 0 takes any free one, none the next one after `port` that is free.
    pub proxy_port: Option<u16>,
    /// The origin at which browsers reach that port, if it is not this host and port.
    pub proxy_url: Option<String>,
    /// The database file, made if there is none; of a database in PostgreSQL, what its files here are named after.
    pub database: PathBuf,
    /// Where the database is, if it is in PostgreSQL.
    pub postgres: Option<PostgresAddress>,
    /// Where other masters of the same database reach this one, if there may be others.
    pub advertise: Option<String>,
    /// Folders that a master must see before it takes over from another one.
    pub shared_folders: Vec<PathBuf>,
    /// What all masters of the database must have set alike.
    pub agreed: Agreed,
    /// Further names under which the master may be asked.
    pub allowed_hosts: Vec<String>,
    /// How long a login lasts.
    pub session: Duration,
    /// Whether connections are encrypted, and with what.
    pub encryption: Option<Encryption>,
    /// Where checkpoints go of experiments that do not say: a folder.
    pub checkpoints: PathBuf,
    /// The folders in which the master reads and deletes checkpoints; none says: the default ones.
    pub storage_roots: Vec<PathBuf>,
    /// How the cluster is run.
    pub cluster: ClusterOptions,
    /// How many days the audit log is kept.
    pub audit_retention_days: u32,
    /// How webhooks are told.
    pub webhooks: WebhookOptions,
    /// How many days logs are kept after their task has ended, unless it says otherwise; `None` for ever.
    pub log_retention_days: Option<u32>,
    /// Bytes that the log of one task may take in the database.
    pub task_log_limit: Option<u64>,
    /// Bytes that all the code which one user sent may take in the database.
    pub user_context_limit: Option<u64>,
    /// Where to find what is logged.
    pub journal: Journal,
    /// Whether roles decide who sees and does what.
    pub roles: bool,
}

impl Options {
    /// How people call the database.
    pub fn shown_database(&self) -> String {
        match &self.postgres {
            Some(address) => address.place().to_owned(),
            None => self.database.display().to_string(),
        }
    }
}

/// Why the master does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The database cannot be used.
    #[error("cannot use the database")]
    Database(#[from] instep_database::Error),
    /// What is to be restored cannot be.
    #[error("cannot restore this file")]
    Backup(#[source] instep_database::Error),
    /// The file for a copy cannot be written.
    #[error("cannot write the backup")]
    Copy(#[source] instep_database::Error),
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Encryption(#[from] EncryptionError),
    /// The host has no address.
    #[error("`{host}` does not resolve")]
    Host {
        /// As it was given.
        host: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The port is taken, or may not be used.
    #[error("cannot listen on {address}")]
    Bind {
        /// Where it was to serve.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The same for the port of the tasks' pages.
    #[error("cannot listen on {address}, for the pages of tasks")]
    BindProxy {
        /// Where they were to be served.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// Other machines could log in without a password.
    #[error("refusing to listen on {address}, where other machines can reach it: without a password are {users}")]
    Unsafe {
        /// Where it was to serve.
        address: SocketAddr,
        /// Who has no password.
        users: String,
    },
    /// It may not decide anything any more.
    #[error("stepped down: {why}")]
    SteppedDown {
        /// What happened to its database.
        why: String,
    },
    /// A pool's work is to be run by something that is not here.
    #[error("pool {pool} of `resource_pools` is Slurm's, and this machine has no {commands}")]
    NoSlurm {
        /// The first such pool.
        pool: String,
        /// What is missing.
        commands: String,
    },
    /// The runtime or its signals cannot be set up.
    #[error("cannot start")]
    System(#[source] std::io::Error),
}

impl ServeError {
    /// What to do next.
    pub fn hint(&self) -> &'static str {
        use instep_database::Error;
        match self {
            ServeError::Bind { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
                "stop what uses this port (a master: `instep down`, with its --db), or choose another --port; 0 is any free one"
            }
            ServeError::Bind { .. } | ServeError::Host { .. } => "choose another --host or --port",
            ServeError::BindProxy { .. } => "choose another --proxy-port, or 0 for any free port",
            ServeError::Unsafe { .. } => {
                "start it on 127.0.0.1, log in (`instep login admin`), give each of them a password (`instep user change-password USER`, \
                 admin last), then start it again"
            }
            ServeError::Database(Error::InUse { .. }) => "stop it with `instep down`, or choose another --db",
            ServeError::Database(Error::InUseHere { .. }) => {
                "stop it with `instep down`; or, if this one is to stand by for it, start it with --advertise, another --port and \
                 another folder for its files: set XDG_DATA_HOME"
            }
            ServeError::Database(Error::InUseElsewhere { .. }) => {
                "stop it where it runs, or name another database, or another schema of this one with `?schema=NAME`; or \
                 give all its masters --advertise, and they take over from each other"
            }
            ServeError::Database(Error::Refused { hint, .. }) => hint,
            ServeError::Database(Error::FileExists { .. }) => "choose another file; `restore` also takes --replace",
            ServeError::Database(Error::TooNew { .. }) => "use the version of instep that wrote it, or a later one",
            ServeError::Database(Error::Incomplete { .. }) => {
                "run the same `instep master copy` again, which begins anew; or delete it and choose another --db"
            }
            ServeError::Database(Error::Unusable { .. }) => {
                "restore a backup with `instep master restore`, or choose another --db"
            }
            ServeError::Database(Error::File { .. }) => NO_FILES,
            ServeError::Database(Error::SteppedDown(_)) => "start it again: it continues with what the database says",
            ServeError::Database(error) if error.is_of_server() => "see what the server says, and its log",
            ServeError::Database(_) => "choose another --db, in a writable folder",
            ServeError::Backup(_) => "give a file that `instep master backup` has written",
            ServeError::Copy(_) => "choose a file in an existing, writable folder",
            ServeError::Encryption(_) => "both files are PEM: the certificate with its chain, and its own key",
            ServeError::SteppedDown { .. } => {
                "start it again, unless another master has taken over: it continues with what the database says"
            }
            ServeError::NoSlurm { .. } => {
                "start the master where Slurm's commands are, such as on a login node, with their folder in PATH"
            }
            ServeError::System(_) => "the system's limits may be too low for this user",
        }
    }
}

/// Where a master serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// The API and the pages.
    pub master: String,
    /// The pages of tasks.
    pub tasks: String,
}

/// Serves until SIGINT or SIGTERM; `announce` is told the addresses once requests are taken.
pub fn serve(options: &Options, announce: impl FnOnce(&Addresses)) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("instep-master")
        .build()
        .map_err(ServeError::System)?;
    let (database, outcome) = match (&options.postgres, &options.advertise) {
        (Some(address), Some(own)) => {
            let candidate = Candidate::new(&options.database, address.clone(), &Presence::starting());
            let candidate = candidate.map_err(Presence::name_holder)?;
            let mut database = None;
            let outcome = runtime.block_on(stand_by(options, candidate, own, &mut database, announce));
            (database, outcome)
        }
        (postgres, _) => {
            let opening = opening(Presence::starting());
            let database = match postgres {
                Some(address) => Database::open_postgres(&options.database, address.clone(), &opening),
                None => Database::open(&options.database, &opening),
            };
            let database = database.map_err(Presence::name_holder)?;
            let outcome = runtime.block_on(run(options, database.clone(), announce));
            (Some(database), outcome)
        }
    };
    // Streams that still wait for something end here; what they read is not lost to anybody.
    runtime.shutdown_timeout(Duration::from_secs(1));
    database.iter().for_each(Database::close);
    outcome
}

fn opening(holder: String) -> Opening {
    Opening { holder, cluster_id: random::uuid(), now: now() }
}

/// Serves as the only master of a database.
async fn run(options: &Options, database: Database, announce: impl FnOnce(&Addresses)) -> Result<(), ServeError> {
    let address = resolve(options).await?;
    check_passwords(address, &database).await?;
    let mut signals = Signals::catch()?;
    let bound = Bound::at(options, address).await?;
    let (addresses, site) = (bound.site.addresses(), bound.site.clone());
    let work = Work::begin(options, &database, &site, None).await?;
    database.announce(&Presence::serving(&addresses))?;
    let serving = bound.serve(router(&work.application), task_router(&work.application));
    announce(&addresses);
    tracing::info!(address = %site.address, tasks = %site.task_address, scheme = site.scheme(),
        version = env!("CARGO_PKG_VERSION"), "serving");
    let stepped_down = tokio::select! {
        () = signals.next() => None,
        why = database.ended() => Some(why),
    };
    match &stepped_down {
        None => tracing::info!("ending"),
        Some(why) => tracing::error!(why, "stepping down: the next master goes on with what the database says"),
    }
    serving.end(GRACE).await;
    work.end().await;
    stepped_down.map_or(Ok(()), |why| Err(ServeError::SteppedDown { why }))
}

/// Refuses to serve other machines while somebody has no password.
async fn check_passwords(address: SocketAddr, database: &Database) -> Result<(), ServeError> {
    if !address.ip().to_canonical().is_loopback() {
        let users = database.users_without_password().await?;
        if !users.is_empty() {
            return Err(ServeError::Unsafe { address, users: users.join(", ") });
        }
    }
    Ok(())
}

/// What ends a master in order.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn catch() -> Result<Signals, ServeError> {
        let catch = |kind| signal(kind).map_err(ServeError::System);
        Ok(Signals { interrupt: catch(SignalKind::interrupt())?, terminate: catch(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
