//! Where a master serves: its two ports, what encrypts them, and how others reach it.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, lookup_host};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::{Addresses, Options, ServeError};
use crate::encryption;
use crate::http::serving::{self, Limits};
use crate::listener::Connections;
use crate::port_holder;
use crate::sites::{Sites, host_of_origin};

/// Where a master serves, as far as its requests need to know.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub address: SocketAddr,
    pub task_address: SocketAddr,
    pub allowed_hosts: Vec<String>,
    encrypted: bool,
    pub sites: Sites,
}

impl Site {
    pub(super) fn scheme(&self) -> &'static str {
        if self.encrypted { "https" } else { "http" }
    }

    /// Where other machines reach this master, as far as it knows.
    pub(super) fn reached_at(&self, options: &Options) -> String {
        let own = || format!("{}://{}", self.scheme(), reachable(self.address));
        options.advertise.clone().unwrap_or_else(own)
    }

    pub(super) fn addresses(&self) -> Addresses {
        let of = |address| format!("{}://{address}", self.scheme());
        Addresses { master: of(self.address), tasks: of(self.task_address) }
    }
}

/// The two ports, before anything is served there.
pub(super) struct Bound {
    listener: TcpListener,
    task_listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    /// What is shown of it.
    pub certificate: Option<Vec<u8>>,
    pub site: Site,
}

impl Bound {
    pub(super) async fn at(options: &Options, address: SocketAddr) -> Result<Bound, ServeError> {
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
    pub(super) fn serve(self, router: Router, task_router: Router) -> Serving {
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
pub(super) struct Serving {
    stop: watch::Sender<()>,
    master: JoinHandle<()>,
    tasks: JoinHandle<()>,
}

impl Serving {
    /// Takes no more requests, and lets those that have begun take so long.
    pub(super) async fn end(self, grace: Duration) {
        drop(self.stop);
        let _ = tokio::time::timeout(grace, async { tokio::join!(self.master, self.tasks) }).await;
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

/// The address to serve at.
pub(super) async fn resolve(options: &Options) -> Result<SocketAddr, ServeError> {
    let host = options.host.trim_start_matches('[').trim_end_matches(']');
    let failed = |source| ServeError::Host { host: options.host.clone(), source };
    let mut found = lookup_host((host, options.port)).await.map_err(failed)?;
    found.next().ok_or_else(|| failed(std::io::Error::from(std::io::ErrorKind::NotFound)))
}
