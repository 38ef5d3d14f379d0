//! Binding, serving, ending.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use instep_database::{Database, Opening};
use tokio::net::{TcpListener, lookup_host};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;

use crate::application::{Application, ApplicationOptions};
use crate::clock::now;
use crate::cluster::ClusterOptions;
use crate::encryption::{self, Encryption, EncryptionError};
use crate::heartbeat;
use crate::http::router::router;
use crate::http::serving::{self, Limits};
use crate::journal::Journal;
use crate::listener::Connections;
use crate::presence::Presence;
use crate::random;
use crate::storage::StorageRoots;

/// How long requests may take to finish once the master is told to end.
const GRACE: Duration = Duration::from_secs(5);

/// What the master needs to know.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address or name to serve on.
    pub host: String,
    /// Port to serve on; 0 takes any free one.
    pub port: u16,
    /// The database file, made if there is none.
    pub database: PathBuf,
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
    /// Where to find what is logged.
    pub journal: Journal,
}

/// Why the master does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The database cannot be used.
    #[error("cannot use the database")]
    Database(#[from] instep_database::Error),
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
    /// Other machines could log in without a password.
    #[error("refusing to listen on {address}, where other machines can reach it: {users} have no password")]
    Unsafe {
        /// Where it was to serve.
        address: SocketAddr,
        /// Who has no password.
        users: String,
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
                "another program uses this port: choose another --port, or 0 for any free port"
            }
            ServeError::Bind { .. } | ServeError::Host { .. } => "choose another --host or --port",
            ServeError::Unsafe { .. } => {
                "start it on 127.0.0.1, give each of them a password (`instep user change-password USER`), then start it again"
            }
            ServeError::Database(Error::InUse { .. }) => "stop it with `instep down`, or choose another --db",
            ServeError::Database(Error::FileExists { .. }) => "choose another file; `restore` also takes --replace",
            ServeError::Database(Error::TooNew { .. }) => "use the version of instep that wrote it, or a later one",
            ServeError::Database(Error::Unusable { .. }) => {
                "restore a backup with `instep master restore`, or choose another --db"
            }
            ServeError::Database(_) => "choose another --db, in a writable folder",
            ServeError::Encryption(_) => "both files are PEM: the certificate with its chain, and its own key",
            ServeError::System(_) => "the system's limits may be too low for this user",
        }
    }
}

/// Serves until SIGINT or SIGTERM; `announce` is told the address once requests are taken.
pub fn serve(options: &Options, announce: impl FnOnce(&str)) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("instep-master")
        .build()
        .map_err(ServeError::System)?;
    let opening = Opening { holder: Presence::starting(), cluster_id: random::uuid(), now: now() };
    let database = Database::open(&options.database, &opening)?;
    let outcome = runtime.block_on(run(options, database.clone(), announce));
    // Streams that still wait for something end here; what they read is not lost to anybody.
    runtime.shutdown_timeout(Duration::from_secs(1));
    database.close();
    outcome
}

async fn run(options: &Options, database: Database, announce: impl FnOnce(&str)) -> Result<(), ServeError> {
    let address = resolve(options).await?;
    if !address.ip().to_canonical().is_loopback() {
        let users = database.users_without_password().await?;
        if !users.is_empty() {
            return Err(ServeError::Unsafe { address, users: users.join(", ") });
        }
    }
    let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Bind { address, source })?;
    let address = listener.local_addr().map_err(ServeError::System)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::System)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::System)?;
    let mut allowed_hosts = options.allowed_hosts.clone();
    allowed_hosts.push(options.host.clone());
    let scheme = if options.encryption.is_some() { "https" } else { "http" };
    if scheme == "http" && !address.ip().to_canonical().is_loopback() {
        tracing::warn!(%address, "passwords and tokens cross the network unencrypted: use --tls-cert");
    }
    let connections = Connections::of(listener, acceptor(options, &allowed_hosts)?);
    let told = ApplicationOptions {
        allowed_hosts,
        session: options.session,
        defaults: defaults(options),
        storage: StorageRoots::of(
            &options.storage_roots,
            &options.checkpoints,
            address.ip().to_canonical().is_loopback(),
        ),
        cluster: options.cluster.clone(),
        journal: options.journal.clone(),
    };
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
    let heartbeats = tokio::spawn(heartbeat::watch(Arc::clone(&application)));
    database.announce(&Presence::serving(scheme, address))?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(serving::serve(connections, router(&application), Limits::default(), async {
        // An error means that the sender is gone, which ends the server just as well.
        let _ = stopped.await;
    }));
    announce(&format!("{scheme}://{address}"));
    tracing::info!(%address, scheme, version = env!("CARGO_PKG_VERSION"), "serving");
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tracing::info!("ending");
    let _ = stop.send(());
    let _ = tokio::time::timeout(GRACE, serving).await;
    heartbeats.abort();
    deletions.abort();
    Ok(())
}

/// What the master says for all experiments.
fn defaults(options: &Options) -> serde_json::Value {
    serde_json::json!({"checkpoint_storage": {"type": "shared_fs", "host_path": options.checkpoints}})
}

/// What encrypts connections, if they are to be.
fn acceptor(options: &Options, allowed_hosts: &[String]) -> Result<Option<TlsAcceptor>, ServeError> {
    let Some(wanted) = &options.encryption else { return Ok(None) };
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend(nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()));
    names.extend(allowed_hosts.iter().map(|name| name.trim_matches(['[', ']']).to_owned()));
    names.sort();
    names.dedup();
    let (certificate, key) = wanted.files(&options.database, &names)?;
    tracing::info!(certificate = %certificate.display(), "connections are encrypted");
    Ok(Some(encryption::acceptor(&certificate, &key)?))
}

async fn resolve(options: &Options) -> Result<SocketAddr, ServeError> {
    let host = options.host.trim_start_matches('[').trim_end_matches(']');
    let failed = |source| ServeError::Host { host: options.host.clone(), source };
    let mut found = lookup_host((host, options.port)).await.map_err(failed)?;
    found.next().ok_or_else(|| failed(std::io::Error::from(std::io::ErrorKind::NotFound)))
}
