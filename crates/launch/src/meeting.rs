//! Brings this node to its job: serves the endpoint if that is its part, and connects to the coordinator.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use instep_policy::membership::{LauncherId, Pledge, Resumption};
use instep_policy::succession::{Lineage, Place, Successor};
use instep_store::{Client, Server};
use socket2::{SockRef, TcpKeepalive};

use crate::console::Note;
use crate::control::{self, FromCoordinator, Hello, Lead, ToCoordinator, WireTerms};
use crate::coordinator::{Coordinator, Hosting};
use crate::endpoint::{self, Endpoint, Obstacle};
use crate::events::EventLog;
use crate::link::{Link, Pulse};
use crate::plan::{Meeting, Plan};
use crate::post::Post;
use crate::random;
use crate::scout::Scout;
use crate::torchrun;

/// How long a launcher waits for the answer to its hello: the coordinator never blocks, so this is network time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one try to reach a place takes at most.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// How often a newcomer is sent on before it begins again at the endpoint.
const MAX_MOVES: usize = 8;
/// Between two tries where the job is being taken over.
const MOVE_PAUSE: Duration = Duration::from_millis(200);
/// Kernel probes on control connections, where the launchers do not say themselves that they are there.
const PROBES: Pulse = Pulse { interval: Duration::from_secs(5), attempts: 3 };

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
    #[error("cannot listen on port {port}")]
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
    #[error("the server at {endpoint} is not the rendezvous of a job ({what})")]
    Stranger {
        /// Where.
        endpoint: Endpoint,
        /// What was seen.
        what: String,
    },
    /// Launchers of the job answer, and none of them leads it.
    #[error("no node leads the job at {endpoint} after {} s", timeout.as_secs_f64())]
    Leaderless {
        /// Where was asked last.
        endpoint: Endpoint,
        /// How long was tried.
        timeout: Duration,
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
                "another job may use it: choose another --master-port, or leave it out on a single node"
            }
            MeetingError::PortInUse { endpoint: true, .. } => {
                "another job may use it: give all nodes another port in --rdzv-endpoint"
            }
            MeetingError::Listen { .. } => "choose a port above 1023 that is free",
            MeetingError::Unreachable { obstacle, .. } => obstacle.hint(),
            MeetingError::Refused { .. } => "start all nodes with the same options, apart from --node-rank",
            MeetingError::Torchrun { .. } => {
                "run instep on all nodes, or use --rdzv-backend static, which can be shared with torchrun"
            }
            MeetingError::Stranger { .. } => "choose another port for the rendezvous, the same on all nodes",
            MeetingError::Leaderless { .. } => "the job has lost its nodes: stop what is left of it and start it again",
            MeetingError::Interrupted => "start it again",
            MeetingError::System(_) => "run `instep doctor` to check this machine",
        }
    }
}

/// This node's place at the meeting.
#[derive(Debug)]
pub(crate) struct Attendance {
    pub(crate) link: Link,
    /// Where the coordinator is.
    pub(crate) leader: Place,
    pub(crate) identity: Identity,
    /// Held while the job runs, where this node serves it or may have to.
    pub(crate) service: Option<Service>,
}

/// What a launcher says of itself on each of its connections.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) launcher: LauncherId,
    pub(crate) standby_port: Option<u16>,
    pub(crate) last_round: Option<u64>,
    pub(crate) pledges: Vec<Pledge>,
    /// Workers of that round are still being ended.
    pub(crate) busy: bool,
    /// The coordinator before had fallen silent.
    pub(crate) after_silence: bool,
}

/// The server of this node, with its coordinator.
#[derive(Debug)]
pub(crate) struct Service {
    // Dropped first: it speaks to the server.
    scout: Option<Scout>,
    server: Server,
    host_token: u64,
    pub(crate) post: Arc<Post>,
    pub(crate) leads: bool,
}

impl Service {
    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.server.port()
    }

    /// Writes what others still have to hear, and ends.
    pub(crate) fn shutdown(self) {
        drop(self.scout);
        self.server.shutdown();
    }
}

/// Waits for this long; false if a signal arrived.
pub(crate) type Pause<'a> = &'a mut dyn FnMut(Duration) -> bool;

/// Where it is told what happens, also from the server's thread.
#[derive(Debug, Clone)]
pub(crate) struct Reports {
    /// Sentences for people.
    pub(crate) notes: Sender<Note>,
    /// Lines for programs.
    pub(crate) events: EventLog,
}

/// Serves or finds the endpoint and introduces this node.
pub(crate) fn attend(plan: &Plan, reports: &Reports, pause: Pause<'_>) -> Result<Attendance, MeetingError> {
    let launcher = LauncherId(u64::from_ne_bytes(random::bytes()?));
    let identity = Identity {
        launcher,
        standby_port: None,
        last_round: None,
        pledges: Vec::new(),
        busy: false,
        after_silence: false,
    };
    match &plan.meeting {
        Meeting::Alone => {
            let address = plan.local_address.clone().unwrap_or_else(this_machine);
            let listeners =
                if is_loopback(&address) { instep_store::listen_loopback(0) } else { instep_store::listen(0) };
            host(plan, identity, reports, listeners?, address, None, pause)
        }
        Meeting::Fixed { host: address, port } if plan.node_rank == 0 => {
            let listeners =
                if is_loopback(address) { instep_store::listen_loopback(*port) } else { instep_store::listen(*port) };
            let listeners = listeners.map_err(|cause| cannot_listen(plan, *port, cause))?;
            host(plan, identity, reports, listeners, address.clone(), Some(*port), pause)
        }
        Meeting::Fixed { host: address, port } => visit(plan, identity, reports, address, *port, pause),
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
                        return host(plan, identity, reports, listeners, master, None, pause);
                    }
                    // Another launcher of this job on this machine serves already.
                    Err(cause) if cause.kind() == io::ErrorKind::AddrInUse && *is_host != Some(true) => {}
                    Err(cause) => return Err(cannot_listen(plan, *port, cause)),
                }
            }
            visit(plan, identity, reports, address, *port, pause)
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

/// Serves the store and the coordinator.
fn serve(
    plan: &Plan,
    identity: &Identity,
    reports: &Reports,
    listeners: Vec<TcpListener>,
    master: Place,
    endpoint: Option<Place>,
) -> Result<Service, MeetingError> {
    let port = listened_port(&listeners)?;
    let host_token = u64::from_ne_bytes(random::bytes()?);
    let post = Arc::new(Post::default());
    let leads = endpoint.is_none();
    let hosting = Hosting {
        run_id: plan.job.run_id.clone(),
        terms: plan.terms.clone(),
        host_token,
        launcher: identity.launcher,
        master_address: master.address,
        master_port: master.port,
        worker_serves_store: plan.worker_serves_store,
        pulse: plan.pulse,
        endpoint,
        post: post.clone(),
        events: reports.events.clone(),
    };
    let now = Instant::now();
    let coordinator = if leads { Coordinator::new(hosting, now) } else { Coordinator::standby(hosting, now) };
    let notices = reports.notes.clone();
    let server = Server::start(listeners, Some(Box::new(coordinator)), move |notice| {
        // The launcher is ending if nobody listens any more.
        let _ = notices.send(Note::Warning(notice.to_string()));
    })?;
    let scout = plan
        .terms
        .elastic()
        .then(|| Scout::start(post.clone(), plan.job.run_id.clone(), port, host_token))
        .transpose()?;
    Ok(Service { scout, server, host_token, post, leads })
}

fn listened_port(listeners: &[TcpListener]) -> io::Result<u16> {
    let listener = listeners.first().ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
    Ok(listener.local_addr()?.port())
}

/// A connection to the server of this process.
pub(crate) fn connect_to_self(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect(("127.0.0.1", port)).or_else(|_| TcpStream::connect(("::1", port)))
}

/// Serves the job, and joins it as the first node.
fn host(
    plan: &Plan,
    identity: Identity,
    reports: &Reports,
    listeners: Vec<TcpListener>,
    master_address: String,
    master_port: Option<u16>,
    pause: Pause<'_>,
) -> Result<Attendance, MeetingError> {
    let port = listened_port(&listeners)?;
    let master_port = master_port.filter(|port| *port != 0).unwrap_or(port);
    let master = Place { address: master_address, port: master_port };
    let mut service = serve(plan, &identity, reports, listeners, master, None)?;
    let identity = Identity { standby_port: Some(port), ..identity };
    let endpoint = Endpoint { host: "localhost".to_owned(), port: Some(port) };
    let (link, leader) = match introduce(plan, &identity, connect_to_self(port)?, Some(service.host_token), &endpoint)?
    {
        Introduced::Welcome(link) => (*link, Place { address: endpoint.host, port }),
        // The job lives elsewhere since an earlier launcher was lost here, and has told us already.
        Introduced::Moved(place) => {
            service.leads = false;
            let (link, leader) = find(plan, &identity, place, &reports.notes, pause)?;
            service.post.follow(Some(leader.clone()));
            (link, leader)
        }
        Introduced::NotLeading => {
            return Err(MeetingError::Stranger { endpoint, what: "it no longer leads".to_owned() });
        }
        Introduced::Stranger(what) => return Err(MeetingError::Stranger { endpoint, what }),
    };
    Ok(Attendance { link, leader, identity, service: Some(service) })
}

/// Joins the job that this process itself leads.
pub(crate) fn join_own(plan: &Plan, identity: &Identity, service: &Service) -> Result<Link, MeetingError> {
    let port = service.server.port();
    let endpoint = Endpoint { host: "localhost".to_owned(), port: Some(port) };
    match introduce(plan, identity, connect_to_self(port)?, Some(service.host_token), &endpoint)? {
        Introduced::Welcome(link) => Ok(*link),
        Introduced::Moved(_) | Introduced::NotLeading => {
            Err(MeetingError::Stranger { endpoint, what: "it no longer leads".to_owned() })
        }
        Introduced::Stranger(what) => Err(MeetingError::Stranger { endpoint, what }),
    }
}

/// Tells this process's coordinator to lead.
pub(crate) fn lead(
    service: &Service,
    resumption: Resumption,
    lineage: &Lineage,
    others: &[Successor],
    master_address: String,
) -> Result<(), MeetingError> {
    let port = service.server.port();
    let known = lineage.successors.iter().chain(others);
    let places = known.map(|one| (one.launcher, one.place.clone())).collect();
    let lead = Lead { host_token: service.host_token, master_address, resumption, places };
    let mut stream = connect_to_self(port)?;
    stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
    let mut received = Vec::new();
    stream.write_all(&control::encode(&ToCoordinator::Lead(Box::new(lead))))?;
    Ok(read_line(&mut stream, &mut received)?)
}

/// Connects to the node that serves.
fn visit(
    plan: &Plan,
    mut identity: Identity,
    reports: &Reports,
    host: &str,
    port: u16,
    pause: Pause<'_>,
) -> Result<Attendance, MeetingError> {
    let first = Place { address: host.to_owned(), port };
    let mut service = None;
    if plan.terms.elastic() {
        let listeners = if is_loopback(host) { instep_store::listen_loopback(0) } else { instep_store::listen(0) }?;
        let port = listened_port(&listeners)?;
        identity.standby_port = Some(port);
        let master = Place { address: plan.address.clone(), port };
        service = Some(serve(plan, &identity, reports, listeners, master, Some(first.clone()))?);
    }
    let (link, leader) = find(plan, &identity, first, &reports.notes, pause)?;
    if let Some(service) = &service {
        service.post.follow(Some(leader.clone()));
    }
    Ok(Attendance { link, leader, identity, service })
}

/// Begins at the endpoint and goes where the job has moved to.
fn find(
    plan: &Plan,
    identity: &Identity,
    first: Place,
    notes: &Sender<Note>,
    pause: Pause<'_>,
) -> Result<(Link, Place), MeetingError> {
    let deadline = Instant::now() + plan.connect_timeout;
    let mut place = first.clone();
    let mut moves = 0;
    loop {
        let mut interrupted = false;
        let at_first = place == first;
        let limit = if at_first { deadline } else { deadline.min(Instant::now() + CONNECT_PATIENCE) };
        let connected = endpoint::connect(&place.address, place.port, limit, |wait, news| {
            if let Some(obstacle) = news {
                let _ = notes.send(Note::Progress(format!("waiting for the first node: {obstacle}")));
            }
            interrupted = !pause(wait);
            !interrupted
        });
        let stream = match connected {
            Ok(stream) => stream,
            Err(_) if interrupted => return Err(MeetingError::Interrupted),
            Err(_) if !at_first && Instant::now() < deadline => {
                (place, moves) = (first.clone(), 0);
                continue;
            }
            Err(obstacle) => return Err(MeetingError::Unreachable { timeout: plan.connect_timeout, obstacle }),
        };
        let endpoint = Endpoint { host: place.address.clone(), port: Some(place.port) };
        match introduce(plan, identity, stream, None, &endpoint)? {
            Introduced::Welcome(link) => return Ok((*link, place)),
            Introduced::Stranger(what) if at_first => {
                return Ok((visit_torchrun(plan, &endpoint, what, notes)?, place));
            }
            Introduced::Moved(elsewhere) if moves < MAX_MOVES => {
                (place, moves) = (elsewhere, moves + 1);
                continue;
            }
            Introduced::Moved(_) | Introduced::NotLeading | Introduced::Stranger(_) => {
                (place, moves) = (first.clone(), 0);
            }
        }
        if Instant::now() >= deadline {
            return Err(MeetingError::Leaderless { endpoint, timeout: plan.connect_timeout });
        }
        if !pause(MOVE_PAUSE) {
            return Err(MeetingError::Interrupted);
        }
    }
}

/// One try to join the job where it is led now.
pub(crate) fn rejoin(plan: &Plan, identity: &Identity, place: &Place) -> Result<Link, String> {
    let stream =
        endpoint::try_connect(&place.address, place.port, CONNECT_PATIENCE).map_err(|cause| cause.to_string())?;
    let endpoint = Endpoint { host: place.address.clone(), port: Some(place.port) };
    match introduce(plan, identity, stream, None, &endpoint) {
        Ok(Introduced::Welcome(link)) => Ok(*link),
        Ok(Introduced::Stranger(what)) => Err(what),
        Ok(Introduced::Moved(_) | Introduced::NotLeading) => Err("it no longer leads".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// What came of a hello.
enum Introduced {
    Welcome(Box<Link>),
    /// The job is led there.
    Moved(Place),
    /// The job is being taken over by somebody.
    NotLeading,
    /// It is no coordinator; what was seen.
    Stranger(String),
}

/// Says hello.
fn introduce(
    plan: &Plan,
    identity: &Identity,
    mut stream: TcpStream,
    host_token: Option<u64>,
    endpoint: &Endpoint,
) -> Result<Introduced, MeetingError> {
    let hello = ToCoordinator::Hello(Hello {
        protocol: control::PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        run_id: plan.job.run_id.clone(),
        host_token,
        launcher: identity.launcher,
        last_round: identity.last_round,
        pledges: identity.pledges.clone(),
        busy: identity.busy,
        after_silence: identity.after_silence,
        standby_port: identity.standby_port.filter(|_| plan.terms.elastic()),
        address: plan.address.clone(),
        process: std::process::id(),
        workers: plan.job.workers,
        role: plan.job.role.clone(),
        node_rank: plan.node_rank,
        terms: WireTerms::from(&plan.terms),
    });
    let probes = plan.pulse.unwrap_or(PROBES);
    let keep_alive = TcpKeepalive::new()
        .with_time(whole_seconds(probes.interval))
        .with_interval(whole_seconds(probes.interval))
        .with_retries(probes.attempts);
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&keep_alive)?;
    // Keep-alive probes are not sent while something waits to be acknowledged: this limits that wait.
    socket.set_tcp_user_timeout(Some(probes.window() + probes.interval))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
    let mut received = Vec::new();
    let answer = stream.write_all(&control::encode(&hello)).and_then(|()| read_line(&mut stream, &mut received));
    if let Err(cause) = answer {
        return Ok(Introduced::Stranger(format!("it did not answer: {cause}")));
    }
    match control::decode::<FromCoordinator>(&received) {
        Ok(Some((FromCoordinator::Welcome {}, length))) => {
            received.drain(..length);
            Ok(Introduced::Welcome(Box::new(Link::new(OwnedFd::from(stream), received, plan.pulse)?)))
        }
        Ok(Some((FromCoordinator::Refused { reason }, _))) => {
            Err(MeetingError::Refused { endpoint: endpoint.clone(), reason })
        }
        Ok(Some((FromCoordinator::Moved(place), _))) => Ok(Introduced::Moved(place)),
        Ok(Some((FromCoordinator::NotLeading {}, _))) => Ok(Introduced::NotLeading),
        // torchrun's store never answers a hello: it closes the connection.
        _ => Err(MeetingError::Stranger {
            endpoint: endpoint.clone(),
            what: format!("it answered \"{}\"", received.iter().take(16).copied().collect::<Vec<u8>>().escape_ascii()),
        }),
    }
}

/// The kernel counts its probes in seconds.
fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs().max(1))
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
    let place = torchrun::Place {
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
    Ok(Link::new(OwnedFd::from(ours), Vec::new(), None)?)
}
