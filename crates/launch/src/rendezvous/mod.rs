//! Brings this node to its job: serves the endpoint if that is its part, and connects to the coordinator.
//!
//! [`join`] does it for the first time, [`rejoin`] and [`join_own_coordinator`] after the coordinator was lost.

pub mod endpoint;
mod error;
mod handshake;
mod service;
pub(crate) mod torchrun;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

use instep_policy::election::HostPort;
use instep_policy::membership::LauncherId;

use self::endpoint::Endpoint;
pub use self::error::RendezvousError;
pub(crate) use self::handshake::Identity;
use self::handshake::{HandshakeReply, handshake};
use self::service::port_of;
pub(crate) use self::service::{CoordinatorService, Reports};
use crate::console::Note;
use crate::control::connection::CoordinatorConnection;
use crate::plan::{Plan, RendezvousMode};
use crate::random;

/// How long one try to connect takes at most.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a newcomer is redirected before it begins again at the endpoint.
const MAX_REDIRECTS: usize = 8;
/// Between two tries where the job is being taken over.
const REDIRECT_PAUSE: Duration = Duration::from_millis(200);

/// Between two tries to get a port that is in use, but not served.
const PORT_PAUSE: Duration = Duration::from_millis(50);

/// A node that has joined its job.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) connection: CoordinatorConnection,
    /// Where the coordinator is.
    pub(crate) leader: HostPort,
    pub(crate) identity: Identity,
    /// Held while the job runs, where this node serves it or may have to.
    pub(crate) service: Option<CoordinatorService>,
}

/// Waits for this long; false if a signal arrived.
pub(crate) type Pause<'a> = &'a mut dyn FnMut(Duration) -> bool;

/// Serves the job or finds the node that does, and joins it.
pub(crate) fn join(plan: &Plan, reports: &Reports, pause: Pause<'_>) -> Result<Joined, RendezvousError> {
    let launcher = LauncherId(u64::from_ne_bytes(random::bytes()?));
    let identity = Identity {
        launcher,
        standby_port: None,
        last_round: None,
        votes: Vec::new(),
        busy: false,
        after_silence: false,
    };
    let mut rendezvous = Rendezvous { plan, identity, reports, pause };
    match &plan.rendezvous {
        RendezvousMode::Standalone => {
            let address = plan.local_address.clone().unwrap_or_else(this_machine);
            let listeners = listen(&address, 0)?;
            rendezvous.serve(listeners, address, None)
        }
        RendezvousMode::Static { host, port } if plan.node_rank == 0 => {
            let listeners = listen(host, *port).map_err(|cause| cannot_listen(plan, *port, cause))?;
            rendezvous.serve(listeners, host.clone(), Some(*port))
        }
        RendezvousMode::Static { host, port } => rendezvous.connect(host, *port),
        RendezvousMode::C10d { host, port, is_host } => {
            if !is_host.unwrap_or_else(|| endpoint::is_this_host(host)) {
                return rendezvous.connect(host, *port);
            }
            match rendezvous.listen_unless_served(host, *port, *is_host == Some(true))? {
                Some(listeners) => {
                    let master = plan.local_address.clone().unwrap_or_else(|| host.clone());
                    rendezvous.serve(listeners, master, None)
                }
                None => rendezvous.connect(host, *port),
            }
        }
    }
}

/// One node on its way into the job.
struct Rendezvous<'a> {
    plan: &'a Plan,
    identity: Identity,
    reports: &'a Reports,
    pause: Pause<'a>,
}

impl Rendezvous<'_> {
    /// Serves the job, and joins it as the first node.
    fn serve(
        mut self,
        listeners: Vec<TcpListener>,
        master_address: String,
        master_port: Option<u16>,
    ) -> Result<Joined, RendezvousError> {
        let port = port_of(&listeners)?;
        let master_port = master_port.filter(|port| *port != 0).unwrap_or(port);
        let master = HostPort { host: master_address, port: master_port };
        let launcher = self.identity.launcher;
        let mut service = CoordinatorService::start(self.plan, launcher, self.reports, listeners, master, None)?;
        self.identity.standby_port = Some(port);
        let (connection, leader) = match greet_own_coordinator(self.plan, &self.identity, &service)? {
            HandshakeReply::Welcome(connection) => (*connection, own_address(&service)),
            // The job lives elsewhere since an earlier launcher was lost here, and has told us already.
            HandshakeReply::Moved(elsewhere) => {
                service.leads = false;
                let (connection, leader) = self.find_coordinator(elsewhere)?;
                service.leadership.set_leader(Some(leader.clone()));
                (connection, leader)
            }
            other => return Err(no_longer_leading(&service, other)),
        };
        Ok(Joined { connection, leader, identity: self.identity, service: Some(service) })
    }

    /// Listens at the endpoint, or gives `None` once another launcher on this machine does.
    ///
    /// A port that is in use is not always served: a launcher that has just ended or another program's connection may
    /// hold it for a while, or two launchers that start together one address family each. `must_host`: no other
    /// launcher may serve.
    fn listen_unless_served(
        &mut self,
        host: &str,
        port: u16,
        must_host: bool,
    ) -> Result<Option<Vec<TcpListener>>, RendezvousError> {
        let deadline = Instant::now() + self.plan.connect_timeout;
        let mut tries = 0;
        loop {
            match listen(host, port) {
                Ok(listeners) => return Ok(Some(listeners)),
                Err(cause) if cause.kind() == io::ErrorKind::AddrInUse && !must_host => {
                    if endpoint::try_connect(host, port, CONNECT_TIMEOUT).is_ok() {
                        return Ok(None);
                    }
                    if Instant::now() >= deadline {
                        return Err(cannot_listen(self.plan, port, cause));
                    }
                    tries += 1;
                    // Launchers that start together have sorted it out by then.
                    if tries == 3 {
                        let news = format!("waiting for port {port}: it is in use, but nothing answers there");
                        let _ = self.reports.notes.send(Note::Progress(news));
                    }
                }
                Err(cause) => return Err(cannot_listen(self.plan, port, cause)),
            }
            if !(self.pause)(PORT_PAUSE) {
                return Err(RendezvousError::Interrupted);
            }
        }
    }

    /// Connects to the node that serves; in an elastic job this one serves a standby coordinator beside it.
    fn connect(mut self, host: &str, port: u16) -> Result<Joined, RendezvousError> {
        let first = HostPort { host: host.to_owned(), port };
        let service = self.plan.terms.elastic().then(|| self.serve_standby(&first)).transpose()?;
        let (connection, leader) = self.find_coordinator(first)?;
        if let Some(service) = &service {
            service.leadership.set_leader(Some(leader.clone()));
        }
        Ok(Joined { connection, leader, identity: self.identity, service })
    }

    fn serve_standby(&mut self, first: &HostPort) -> Result<CoordinatorService, RendezvousError> {
        let listeners = listen(&first.host, 0)?;
        let port = port_of(&listeners)?;
        self.identity.standby_port = Some(port);
        let master = HostPort { host: self.plan.address.clone(), port };
        let launcher = self.identity.launcher;
        CoordinatorService::start(self.plan, launcher, self.reports, listeners, master, Some(first.clone()))
    }

    /// Begins at the endpoint and follows redirects to where the job has moved.
    fn find_coordinator(&mut self, first: HostPort) -> Result<(CoordinatorConnection, HostPort), RendezvousError> {
        let plan = self.plan;
        let deadline = Instant::now() + plan.connect_timeout;
        let mut address = first.clone();
        let mut redirects = 0;
        let mut no_channel = None;
        loop {
            let mut interrupted = false;
            let at_first = address == first;
            let limit = if at_first { deadline } else { deadline.min(Instant::now() + CONNECT_TIMEOUT) };
            let connected = endpoint::connect(&address.host, address.port, limit, |wait, news| {
                if let Some(error) = news {
                    let _ = self.reports.notes.send(Note::Progress(format!("waiting for the first node: {error}")));
                }
                interrupted = !(self.pause)(wait);
                !interrupted
            });
            let stream = match connected {
                Ok(stream) => stream,
                Err(_) if interrupted => return Err(RendezvousError::Interrupted),
                Err(_) if !at_first && Instant::now() < deadline => {
                    (address, redirects) = (first.clone(), 0);
                    continue;
                }
                Err(connect_error) => {
                    return Err(RendezvousError::Unreachable { timeout: plan.connect_timeout, connect_error });
                }
            };
            let endpoint = Endpoint { host: address.host.clone(), port: Some(address.port) };
            match handshake(plan, &self.identity, stream, None, &endpoint)? {
                HandshakeReply::Welcome(connection) => return Ok((*connection, address)),
                // A job with a token has no nodes of torchrun.
                HandshakeReply::NotACoordinator(what) if at_first && plan.token.is_none() => {
                    return Ok((torchrun::connect(plan, &endpoint, what, &self.reports.notes)?, address));
                }
                HandshakeReply::Moved(elsewhere) if redirects < MAX_REDIRECTS => {
                    (address, redirects) = (elsewhere, redirects + 1);
                    continue;
                }
                // Perhaps a node that is ending, whose place another one takes.
                HandshakeReply::NotACoordinator(what) if at_first => {
                    if no_channel.is_none() {
                        let news = format!("waiting for the first node: what listens at {endpoint} is not it: {what}");
                        let _ = self.reports.notes.send(Note::Progress(news));
                    }
                    no_channel = Some(what);
                }
                HandshakeReply::Moved(_) | HandshakeReply::NotLeading | HandshakeReply::NotACoordinator(_) => {
                    (address, redirects, no_channel) = (first.clone(), 0, None);
                }
            }
            if Instant::now() >= deadline {
                return Err(match no_channel {
                    Some(what) => RendezvousError::NoChannel { endpoint, what },
                    None => RendezvousError::NoLeader { endpoint, timeout: plan.connect_timeout },
                });
            }
            if !(self.pause)(REDIRECT_PAUSE) {
                return Err(RendezvousError::Interrupted);
            }
        }
    }
}

/// Joins the job that this process itself leads.
pub(crate) fn join_own_coordinator(
    plan: &Plan,
    identity: &Identity,
    service: &CoordinatorService,
) -> Result<CoordinatorConnection, RendezvousError> {
    match greet_own_coordinator(plan, identity, service)? {
        HandshakeReply::Welcome(connection) => Ok(*connection),
        other => Err(no_longer_leading(service, other)),
    }
}

/// One try to join the job where it is led now.
pub(crate) fn rejoin(plan: &Plan, identity: &Identity, leader: &HostPort) -> Result<CoordinatorConnection, String> {
    let stream =
        endpoint::try_connect(&leader.host, leader.port, CONNECT_TIMEOUT).map_err(|cause| cause.to_string())?;
    let endpoint = Endpoint { host: leader.host.clone(), port: Some(leader.port) };
    match handshake(plan, identity, stream, None, &endpoint) {
        Ok(HandshakeReply::Welcome(connection)) => Ok(*connection),
        Ok(HandshakeReply::NotACoordinator(what)) => Err(what),
        Ok(HandshakeReply::Moved(_) | HandshakeReply::NotLeading) => Err("it no longer leads".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn own_address(service: &CoordinatorService) -> HostPort {
    HostPort { host: "localhost".to_owned(), port: service.port() }
}

fn own_endpoint(service: &CoordinatorService) -> Endpoint {
    Endpoint { host: "localhost".to_owned(), port: Some(service.port()) }
}

fn greet_own_coordinator(
    plan: &Plan,
    identity: &Identity,
    service: &CoordinatorService,
) -> Result<HandshakeReply, RendezvousError> {
    let stream = endpoint::connect_to_self(service.port())?;
    handshake(plan, identity, stream, Some(service.host_token), &own_endpoint(service))
}

fn no_longer_leading(service: &CoordinatorService, reply: HandshakeReply) -> RendezvousError {
    let what = match reply {
        HandshakeReply::NotACoordinator(what) => what,
        HandshakeReply::Welcome(_) | HandshakeReply::Moved(_) | HandshakeReply::NotLeading => {
            "it no longer leads".to_owned()
        }
    };
    RendezvousError::NotACoordinator { endpoint: own_endpoint(service), what }
}

/// `localhost`, or its address where that name is not known (containers without a hosts file).
pub(crate) fn this_machine() -> String {
    let known = ("localhost", 0).to_socket_addrs().is_ok();
    if known { "localhost" } else { "127.0.0.1" }.to_owned()
}

/// Listens on loopback alone where the job's host is loopback: on the address that is meant, too, if it is one such as 127.0.1.1.
fn listen(host: &str, port: u16) -> io::Result<Vec<TcpListener>> {
    if !is_loopback(host) {
        return instep_store::listen(port);
    }
    let mut listeners = instep_store::listen_loopback(port)?;
    let is_usual = |address: &IpAddr| *address == Ipv4Addr::LOCALHOST || *address == Ipv6Addr::LOCALHOST;
    if let (Ok(address), [first, ..]) = (host.parse::<IpAddr>(), &listeners[..])
        && !is_usual(&address)
    {
        let port = first.local_addr()?.port();
        listeners.extend(instep_store::listen_at(SocketAddr::new(address, port))?);
    }
    Ok(listeners)
}

fn is_loopback(host: &str) -> bool {
    host.parse().map_or(host == "localhost", |address: IpAddr| address.is_loopback())
}

fn cannot_listen(plan: &Plan, port: u16, source: io::Error) -> RendezvousError {
    match source.kind() {
        io::ErrorKind::AddrInUse => RendezvousError::PortInUse { port, endpoint: !plan.terms.fixed_ranks },
        _ => RendezvousError::Listen { port, source },
    }
}
