//! Brings this node to its job: serves the endpoint if that is its part, and connects to the coordinator.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use instep_store::{Client, Server};
use socket2::{SockRef, TcpKeepalive};

use crate::console::Note;
use crate::control::{self, FromCoordinator, Hello, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_PROBES, ToCoordinator, WireTerms};
use crate::coordinator::{Coordinator, Hosting};
use crate::endpoint::{self, Endpoint, Obstacle};
use crate::link::Link;
use crate::plan::{Meeting, Plan};
use crate::random;
use crate::torchrun::{self, Place};

/// How long a launcher waits for the answer to its hello: the coordinator never blocks, so this is network time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Why this node cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum MeetingError {
    /// The port this node has to serve is taken.
    #[error("port {port} is already in use on this machine")]
    PortInUse {
        /// The port.
        port: u16,
        /// It was given as part of an endpoint.
        endpoint: bool,
    },
    /// The port this node has to serve cannot be opened.
    #[error("cannot serve on port {port}")]
    Listen {
        /// The port.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody answers at the endpoint.
    #[error("cannot reach the first node within {} s: {obstacle}", timeout.as_secs_f64())]
    Unreachable {
        /// How long was tried.
        timeout: Duration,
        /// Why.
        obstacle: Obstacle,
    },
    /// The coordinator said no.
    #[error("the first node at {endpoint} refuses this node: {reason}")]
    Refused {
        /// Where.
        endpoint: Endpoint,
        /// What it said.
        reason: String,
    },
    /// The endpoint belongs to Python's torchrun.
    #[error("the endpoint {endpoint} is served by Python's torchrun, whose c10d rendezvous cannot be shared")]
    Torchrun {
        /// Where.
        endpoint: Endpoint,
    },
    /// Something else listens there.
    #[error("what listens at {endpoint} is not the rendezvous of a job ({what})")]
    Stranger {
        /// Where.
        endpoint: Endpoint,
        /// What was seen.
        what: String,
    },
    /// A signal arrived meanwhile.
    #[error("interrupted while waiting for the first node")]
    Interrupted,
    /// Something local went wrong.
    #[error("cannot set up the rendezvous")]
    System(#[from] io::Error),
}

impl MeetingError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            MeetingError::PortInUse { endpoint: false, .. } => {
                "another job may hold it: choose another --master-port, or leave it out on a single node"
            }
            MeetingError::PortInUse { endpoint: true, .. } => {
                "another job may hold it: give all nodes another port in --rdzv-endpoint"
            }
            MeetingError::Listen { .. } => "choose a port above 1023 that is free",
            MeetingError::Unreachable { obstacle, .. } => obstacle.hint(),
            MeetingError::Refused { .. } => "start all nodes with the same options, apart from --node-rank",
            MeetingError::Torchrun { .. } => {
                "run instep on all nodes, or use --rdzv-backend static, which can be shared with torchrun"
            }
            MeetingError::Stranger { .. } => "choose another port for the rendezvous, the same on all nodes",
            MeetingError::Interrupted => "start it again",
            MeetingError::System(_) => "instep doctor shows what this machine allows",
        }
    }
}

/// This node's place at the meeting.
#[derive(Debug)]
pub(crate) struct Attendance {
    pub(crate) link: Link,
    /// Held while the job runs, where this node serves it.
    pub(crate) server: Option<Server>,
}

/// How the meeting waits and speaks while it is being brought about.
pub(crate) struct Patience<'a> {
    /// Waits for this long; false if a signal arrived.
    pub(crate) pause: &'a mut dyn FnMut(Duration) -> bool,
    /// Where sentences for people go, also from the server's thread.
    pub(crate) notes: Sender<Note>,
}

/// Serves or finds the endpoint and introduces this node.
pub(crate) fn attend(plan: &Plan, patience: Patience<'_>) -> Result<Attendance, MeetingError> {
    match &plan.meeting {
        Meeting::Alone => {
            let address = plan.local_address.clone().unwrap_or_else(this_machine);
            let listeners =
                if is_loopback(&address) { instep_store::listen_loopback(0) } else { instep_store::listen(0) };
            host(plan, listeners?, address, None, patience)
        }
        Meeting::Fixed { host: address, port } if plan.node_rank == 0 => {
            let listeners =
                if is_loopback(address) { instep_store::listen_loopback(*port) } else { instep_store::listen(*port) };
            host(
                plan,
                listeners.map_err(|cause| cannot_listen(plan, *port, cause))?,
                address.clone(),
                Some(*port),
                patience,
            )
        }
        Meeting::Fixed { host: address, port } => visit(plan, address, *port, patience),
        Meeting::Dynamic { host: address, port, is_host } => {
            if is_host.unwrap_or_else(|| endpoint::is_this_host(address)) {
                let listening = if is_loopback(address) {
                    instep_store::listen_loopback(*port)
                } else {
                    instep_store::listen(*port)
                };
                match listening {
                    Ok(listeners) => {
                        let master = plan.local_address.clone().unwrap_or_else(|| address.clone());
                        return host(plan, listeners, master, None, patience);
                    }
                    // Another launcher of this job on this machine serves already.
                    Err(cause) if cause.kind() == io::ErrorKind::AddrInUse && *is_host != Some(true) => {}
                    Err(cause) => return Err(cannot_listen(plan, *port, cause)),
                }
            }
            visit(plan, address, *port, patience)
        }
    }
}

/// `localhost`, or its address where that name is not known (containers without a hosts file).
fn this_machine() -> String {
    let known = ("localhost", 0).to_socket_addrs().is_ok();
    if known { "localhost" } else { "127.0.0.1" }.to_owned()
}

fn is_loopback(host: &str) -> bool {
    host.parse().map_or(host == "localhost", |address: IpAddr| address.is_loopback())
}

fn cannot_listen(plan: &Plan, port: u16, source: io::Error) -> MeetingError {
    match source.kind() {
        io::ErrorKind::AddrInUse => MeetingError::PortInUse { port, endpoint: !plan.terms.fixed_ranks },
        _ => MeetingError::Listen { port, source },
    }
}

/// Serves the store and the coordinator, and joins as the first node.
fn host(
    plan: &Plan,
    listeners: Vec<TcpListener>,
    master_address: String,
    master_port: Option<u16>,
    patience: Patience<'_>,
) -> Result<Attendance, MeetingError> {
    let port = match listeners.first() {
        Some(listener) => listener.local_addr()?.port(),
        None => return Err(MeetingError::System(io::Error::from(io::ErrorKind::AddrNotAvailable))),
    };
    let host_token = u64::from_ne_bytes(random::bytes()?);
    let hosting = Hosting {
        run_id: plan.job.run_id.clone(),
        terms: plan.terms.clone(),
        host_token,
        master_address,
        master_port: master_port.filter(|port| *port != 0).unwrap_or(port),
        worker_serves_store: plan.worker_serves_store,
    };
    let notes = patience.notes.clone();
    let coordinator = Coordinator::new(hosting, Instant::now());
    let server = Server::start(listeners, Some(Box::new(coordinator)), move |notice| {
        // The launcher is ending if nobody listens any more.
        let _ = notes.send(Note::Warning(notice.to_string()));
    })?;
    let stream = TcpStream::connect(("127.0.0.1", port)).or_else(|_| TcpStream::connect(("::1", port)))?;
    let endpoint = Endpoint { host: "localhost".to_owned(), port: Some(port) };
    let link = introduce(plan, stream, Some(host_token), &endpoint)?
        .map_err(|what| MeetingError::Stranger { endpoint, what })?;
    Ok(Attendance { link, server: Some(server) })
}

/// Connects to the node that serves.
fn visit(plan: &Plan, host: &str, port: u16, patience: Patience<'_>) -> Result<Attendance, MeetingError> {
    let endpoint = Endpoint { host: host.to_owned(), port: Some(port) };
    let deadline = Instant::now() + plan.connect_timeout;
    let mut interrupted = false;
    let Patience { pause, notes } = patience;
    let connected = endpoint::connect(host, port, deadline, |wait, news| {
        if let Some(obstacle) = news {
            let _ = notes.send(Note::Progress(format!("waiting for the first node: {obstacle}")));
        }
        interrupted = !pause(wait);
        !interrupted
    });
    let stream = match connected {
        Ok(stream) => stream,
        Err(_) if interrupted => return Err(MeetingError::Interrupted),
        Err(obstacle) => return Err(MeetingError::Unreachable { timeout: plan.connect_timeout, obstacle }),
    };
    let link = match introduce(plan, stream, None, &endpoint)? {
        Ok(link) => link,
        Err(what) => visit_torchrun(plan, &endpoint, what, &notes)?,
    };
    Ok(Attendance { link, server: None })
}

/// Says hello. The inner error describes a peer that is no coordinator.
fn introduce(
    plan: &Plan,
    mut stream: TcpStream,
    host_token: Option<u64>,
    endpoint: &Endpoint,
) -> Result<Result<Link, String>, MeetingError> {
    let hello = ToCoordinator::Hello(Hello {
        protocol: control::PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        run_id: plan.job.run_id.clone(),
        host_token,
        address: plan.address.clone(),
        process: std::process::id(),
        workers: plan.job.workers,
        role: plan.job.role.clone(),
        node_rank: plan.node_rank,
        terms: WireTerms::from(&plan.terms),
    });
    let keep_alive = TcpKeepalive::new()
        .with_time(KEEP_ALIVE_INTERVAL)
        .with_interval(KEEP_ALIVE_INTERVAL)
        .with_retries(KEEP_ALIVE_PROBES);
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&keep_alive)?;
    // Keep-alive probes are not sent while something waits to be acknowledged: this limits that wait.
    socket.set_tcp_user_timeout(Some(KEEP_ALIVE_INTERVAL * (KEEP_ALIVE_PROBES + 1)))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
    let mut received = Vec::new();
    let answer = stream.write_all(&control::encode(&hello)).and_then(|()| read_line(&mut stream, &mut received));
    if let Err(cause) = answer {
        return Ok(Err(format!("it did not answer: {cause}")));
    }
    match control::decode::<FromCoordinator>(&received) {
        Ok(Some((FromCoordinator::Welcome {}, length))) => {
            received.drain(..length);
            Ok(Ok(Link::new(OwnedFd::from(stream), received)?))
        }
        Ok(Some((FromCoordinator::Refused { reason }, _))) => {
            Err(MeetingError::Refused { endpoint: endpoint.clone(), reason })
        }
        // torchrun's store never answers a hello: it closes the connection.
        _ => Err(MeetingError::Stranger {
            endpoint: endpoint.clone(),
            what: format!("it answered \"{}\"", received.iter().take(16).copied().collect::<Vec<u8>>().escape_ascii()),
        }),
    }
}

fn read_line(stream: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = [0u8; 4096];
    while !received.contains(&b'\n') && received.len() < control::MAX_LINE_BYTES {
        match stream.read(&mut buffer)? {
            0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")),
            count => received.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(())
}

/// The endpoint is no coordinator of ours: perhaps Python's torchrun serves it.
fn visit_torchrun(plan: &Plan, endpoint: &Endpoint, what: String, notes: &Sender<Note>) -> Result<Link, MeetingError> {
    let stranger = || MeetingError::Stranger { endpoint: endpoint.clone(), what: what.clone() };
    let port = endpoint.port.unwrap_or_default();
    let mut client = Client::connect(&endpoint.host, port, HELLO_TIMEOUT).map_err(|_| stranger())?;
    if !plan.terms.fixed_ranks {
        let key = format!("torch.rendezvous.{}", plan.job.run_id);
        let theirs = client.try_get(key.as_str()).map_err(|_| stranger())?.is_some();
        return Err(if theirs { MeetingError::Torchrun { endpoint: endpoint.clone() } } else { stranger() });
    }
    let place = Place {
        run_id: plan.job.run_id.clone(),
        role: plan.job.role.clone(),
        node_rank: plan.node_rank,
        nodes: plan.terms.max_nodes,
        workers: plan.job.workers,
        max_restarts: plan.terms.max_restarts,
        master_address: endpoint.host.clone(),
        master_port: port,
        timeout: plan.terms.join_timeout,
    };
    let _ = notes.send(Note::Progress(format!("joining the torchrun that serves {endpoint}")));
    let (ours, theirs) = UnixStream::pair()?;
    std::thread::Builder::new()
        .name("torchrun-peer".to_owned())
        .spawn(move || torchrun::join(client, place, theirs))?;
    Ok(Link::new(OwnedFd::from(ours), Vec::new())?)
}
