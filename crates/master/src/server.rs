//! Binding, serving, ending.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use instep_database::{Contender, Database, Opening, PostgresAddress, Seat};
use tokio::net::{TcpListener, lookup_host};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::application::{Application, ApplicationOptions};
use crate::audit;
use crate::clock::now;
use crate::cluster::ClusterOptions;
use crate::encryption::{self, Encryption, EncryptionError};
use crate::engines::options::{EngineKind, EnginePool};
use crate::engines::slurm::missing_commands;
use crate::heartbeat;
use crate::http::door::{Door, Port};
use crate::http::router::{router, task_router};
use crate::http::serving::{self, Limits};
use crate::journal::Journal;
use crate::listener::Connections;
use crate::port_holder;
use crate::presence::Presence;
use crate::random;
use crate::sites::{Sites, host_of_origin};
use crate::standby::{self, Candidacy, Role, Term, Won};
use crate::storage::StorageRoots;
use crate::webhooks::WebhookOptions;

/// How often logs whose time is over are looked for.
const CLEANING: Duration = Duration::from_secs(3600);
/// How long requests may take to finish once the master is told to end.
const GRACE: Duration = Duration::from_secs(5);
/// The same where another master waits to take over.
const HAND_OVER: Duration = Duration::from_millis(500);

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
                "start it on 127.0.0.1, give each of them a password (`instep user change-password USER`), then start it again"
            }
            ServeError::Database(Error::InUse { .. }) => "stop it with `instep down`, or choose another --db",
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
            let contender = Contender::new(&options.database, address.clone(), &Presence::starting());
            let contender = contender.map_err(Presence::name_holder)?;
            let mut database = None;
            let outcome = runtime.block_on(stand_by(options, contender, own, &mut database, announce));
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

/// Serves as one of several masters: passes requests on to the one that leads, until it leads itself. `led` is the
/// database then.
async fn stand_by(
    options: &Options,
    contender: Contender,
    own: &str,
    led: &mut Option<Database>,
    announce: impl FnOnce(&Addresses),
) -> Result<(), ServeError> {
    let address = resolve(options).await?;
    // What is missing for an engine is missed now, and not when it takes over.
    cluster(options, own)?;
    let mut signals = Signals::catch()?;
    let bound = Bound::at(options, address).await?;
    let (addresses, site) = (bound.site.addresses(), bound.site.clone());
    let seat = Seat {
        address: own.to_owned(),
        tasks_address: at_port(own, site.task_address.port()),
        certificate: bound.certificate.clone(),
        peer_secret: random::token(),
        settings: shared_settings(options),
    };
    let (role, watching) = watch::channel(Role::Nobody("this master has just started".to_owned()));
    let door = |port| Door::new(port, &seat, site.allowed_hosts.clone(), watching.clone());
    let (master, tasks) = (door(Port::Master), door(Port::Tasks));
    contender.announce(&Presence::serving(&addresses))?;
    let serving = bound.serve(master.router(), tasks.router());
    announce(&addresses);
    tracing::info!(address = %site.address, tasks = %site.task_address, scheme = site.scheme(), advertise = own,
        version = env!("CARGO_PKG_VERSION"), "serving, as one of several masters");
    let stop = Arc::new(AtomicBool::new(false));
    let holder = format!("{own}, pid {}", std::process::id());
    let candidacy = Candidacy {
        contender,
        seat: seat.clone(),
        folders: options.shared_folders.clone(),
        opening: Box::new(move || opening(holder.clone())),
        role: role.clone(),
        stop: Arc::clone(&stop),
    };
    let winning = standby::start(candidacy).map_err(ServeError::System)?;
    let won = tokio::select! {
        () = signals.next() => None,
        won = winning => won.ok(),
    };
    stop.store(true, Ordering::Relaxed);
    let Some(Won { database, has_followed }) = won else {
        tracing::info!("ending");
        serving.end(HAND_OVER).await;
        return Ok(());
    };
    *led = Some(database.clone());
    if let Err(error) = check_passwords(address, &database).await {
        // A cluster that works goes on; nobody logs in without a password from another machine anyway.
        if !has_followed {
            return Err(error);
        }
        tracing::error!("{error}: give each of them a password");
    }
    let term = Arc::new(Term { epoch: database.epoch(), since: now(), seat });
    let work = Work::begin(options, &database, &site, Some(Arc::clone(&term))).await?;
    master.open(router(&work.application), database.clone());
    tasks.open(task_router(&work.application), database.clone());
    tracing::info!(epoch = term.epoch, "leading");
    role.send_replace(Role::Leads(term));
    let stepped_down = tokio::select! {
        () = signals.next() => None,
        why = database.ended() => Some(why),
    };
    match &stepped_down {
        None => tracing::info!("ending: another master takes over"),
        Some(why) => tracing::warn!(why, "stepping down, and standing by again"),
    }
    role.send_replace(Role::Nobody("this master has stepped down".to_owned()));
    serving.end(HAND_OVER).await;
    work.end().await;
    stepped_down.map_or(Ok(()), |why| Err(ServeError::SteppedDown { why }))
}

/// What all masters must have set alike, so that who may do what stays the same when another one leads.
fn shared_settings(options: &Options) -> String {
    let yes = |is: bool| if is { "yes" } else { "no" };
    format!("roles: {}, encryption: {}", yes(options.roles), yes(options.encryption.is_some()))
}

/// An origin with another port.
fn at_port(origin: &str, port: u16) -> String {
    let (scheme, authority) = origin.split_once("://").unwrap_or(("http", origin));
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => host,
        _ => authority.trim_end_matches('/'),
    };
    format!("{scheme}://{host}:{port}")
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

/// Where a master serves, as far as its requests need to know.
#[derive(Debug, Clone)]
struct Site {
    address: SocketAddr,
    task_address: SocketAddr,
    allowed_hosts: Vec<String>,
    encrypted: bool,
    sites: Sites,
}

impl Site {
    fn scheme(&self) -> &'static str {
        if self.encrypted { "https" } else { "http" }
    }

    /// Where other machines reach this master, as far as it knows.
    fn reached_at(&self, options: &Options) -> String {
        let own = || format!("{}://{}", self.scheme(), reachable(self.address));
        options.advertise.clone().unwrap_or_else(own)
    }

    fn addresses(&self) -> Addresses {
        let of = |address| format!("{}://{address}", self.scheme());
        Addresses { master: of(self.address), tasks: of(self.task_address) }
    }
}

/// The two ports, before anything is served there.
struct Bound {
    listener: TcpListener,
    task_listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    /// What is shown of it.
    certificate: Option<Vec<u8>>,
    site: Site,
}

impl Bound {
    async fn at(options: &Options, address: SocketAddr) -> Result<Bound, ServeError> {
        let listener = match TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(error) => return Err(ServeError::Bind { address, source: port_holder::named(address, error).await }),
        };
        let address = listener.local_addr().map_err(ServeError::System)?;
        let task_listener = bind_for_tasks(options, address).await?;
        let task_address = task_listener.local_addr().map_err(ServeError::System)?;
        let mut allowed_hosts = options.allowed_hosts.clone();
        allowed_hosts.push(options.host.clone());
        let origins = [&options.proxy_url, &options.advertise];
        allowed_hosts.extend(origins.into_iter().flatten().map(|url| host_of_origin(url).to_owned()));
        let encrypted = options.encryption.is_some();
        if !encrypted && !address.ip().to_canonical().is_loopback() {
            tracing::warn!(%address, "passwords and tokens cross the network unencrypted: use --tls-cert");
        }
        let (acceptor, certificate) = match acceptor(options, &allowed_hosts)? {
            Some((acceptor, certificate)) => (Some(acceptor), Some(certificate)),
            None => (None, None),
        };
        let sites = Sites::new(encrypted, address.port(), task_address.port(), options.proxy_url.clone());
        let site = Site { address, task_address, allowed_hosts, encrypted, sites };
        Ok(Bound { listener, task_listener, acceptor, certificate, site })
    }

    /// Begins to answer.
    fn serve(self, router: Router, task_router: Router) -> Serving {
        let (stop, stopped) = watch::channel(());
        let stopping = |mut stopped: watch::Receiver<()>| async move {
            // An error means that the sender is gone, which ends the server just as well.
            let _ = stopped.changed().await;
        };
        let limits = Limits::default();
        let tasks = Connections::of(self.task_listener, self.acceptor.clone());
        let connections = Connections::of(self.listener, self.acceptor);
        let tasks = tokio::spawn(serving::serve(tasks, task_router, limits, stopping(stopped.clone())));
        let master = tokio::spawn(serving::serve(connections, router, limits, stopping(stopped)));
        Serving { stop, master, tasks }
    }
}

/// The two servers.
struct Serving {
    stop: watch::Sender<()>,
    master: JoinHandle<()>,
    tasks: JoinHandle<()>,
}

impl Serving {
    /// Takes no more requests, and lets those that have begun take so long.
    async fn end(self, grace: Duration) {
        drop(self.stop);
        let _ = tokio::time::timeout(grace, async { tokio::join!(self.master, self.tasks) }).await;
    }
}

/// What a master does besides answering.
struct Work {
    application: Arc<Application>,
    watches: Vec<JoinHandle<()>>,
    deletions: JoinHandle<()>,
}

impl Work {
    /// Goes on with what the database says.
    async fn begin(
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

    async fn end(self) {
        self.watches.iter().for_each(JoinHandle::abort);
        self.application.audit.finish().await;
        self.deletions.abort();
    }
}

/// Where other machines reach an address that may stand for all of this machine's.
fn reachable(address: SocketAddr) -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    match name {
        Some(name) if address.ip().is_unspecified() => format!("{name}:{}", address.port()),
        _ => address.to_string(),
    }
}

/// How the cluster is run, with what its engines need to know of this master.
fn cluster(options: &Options, address: &str) -> Result<ClusterOptions, ServeError> {
    let mut cluster = options.cluster.clone();
    let is_slurm = |pool: &&EnginePool| pool.engine.kind() == EngineKind::Slurm;
    let missing = missing_commands();
    if let Some(pool) = cluster.engines.pools.iter().find(is_slurm).filter(|_| !missing.is_empty()) {
        return Err(ServeError::NoSlurm { pool: pool.pool_name.clone(), commands: missing.join(", ") });
    }
    address.clone_into(&mut cluster.engines.address);
    cluster.engines.binary = std::env::current_exe().map_err(ServeError::System)?;
    Ok(cluster)
}

/// Takes the port for the pages of tasks. One that nobody chose is the next one, so that people can guess it; if that is
/// taken it is any other.
async fn bind_for_tasks(options: &Options, master: SocketAddr) -> Result<TcpListener, ServeError> {
    let port = match (options.proxy_port, options.port) {
        (Some(port), _) => port,
        (None, 0) => 0,
        (None, port) => port.checked_add(1).unwrap_or(0),
    };
    let wanted = SocketAddr::new(master.ip(), port);
    let found = TcpListener::bind(wanted).await;
    let found = match found {
        Err(error) if options.proxy_port.is_none() => {
            tracing::info!(address = %wanted, %error, "the pages of tasks are on another port");
            TcpListener::bind(SocketAddr::new(master.ip(), 0)).await
        }
        found => found,
    };
    match found {
        Ok(listener) => Ok(listener),
        Err(error) => Err(ServeError::BindProxy { address: wanted, source: port_holder::named(wanted, error).await }),
    }
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

/// What encrypts connections, if they are to be, and the certificate that is shown.
fn acceptor(options: &Options, allowed_hosts: &[String]) -> Result<Option<(TlsAcceptor, Vec<u8>)>, ServeError> {
    let Some(wanted) = &options.encryption else { return Ok(None) };
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend(nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()));
    names.extend(allowed_hosts.iter().map(|name| name.trim_matches(['[', ']']).to_owned()));
    names.sort();
    names.dedup();
    let (certificate, key) = wanted.files(&options.database, &names)?;
    let acceptor = encryption::acceptor(&certificate, &key)?;
    tracing::info!(certificate = %certificate.display(), "connections are encrypted");
    Ok(Some((acceptor, encryption::shown(&certificate)?)))
}

async fn resolve(options: &Options) -> Result<SocketAddr, ServeError> {
    let host = options.host.trim_start_matches('[').trim_end_matches(']');
    let failed = |source| ServeError::Host { host: options.host.clone(), source };
    let mut found = lookup_host((host, options.port)).await.map_err(failed)?;
    found.next().ok_or_else(|| failed(std::io::Error::from(std::io::ErrorKind::NotFound)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_of_tasks_are_at_the_same_host() {
        for (own, expected) in [
            ("http://a:8080", "http://a:8081"),
            ("https://a.example/", "https://a.example:8081"),
            ("http://[::1]:8080", "http://[::1]:8081"),
            ("http://[::1]", "http://[::1]:8081"),
        ] {
            assert_eq!(at_port(own, 8081), expected);
        }
    }
}
