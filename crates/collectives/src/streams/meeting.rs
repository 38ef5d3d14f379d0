//! How ranks of several hosts come together: pairs of them get a connection for every purpose they have.
//!
//! The higher rank of a pair calls the lower one, at all its endpoints in turn, a little after each other, and keeps
//! calling. Whoever answers must know the caller's token; the first that does is taken, and told so. A rank is done when it
//! has all its connections, and keeps nothing of a meeting that failed.
#![expect(unsafe_code, reason = "reads sockets")]

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::secret::{self, Secret};
use super::wire::{self, ANSWER_BYTES, CONFIRMATION, HELLO_BYTES, Hello, Purpose};
use crate::socket::{poll_timeout, receive};
use crate::{Address, Error};

/// Between two calls for the same connection.
const STAGGER: Duration = Duration::from_millis(250);
/// A caller who connects and says nothing is given up after this.
const HELLO_DEADLINE: Duration = Duration::from_secs(2);
/// Callers that are listened to, besides two of each rank.
const MOST_STRANGERS: usize = 64;
/// A host that does not answer is lost after this, where `pulse` does not find out before.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 5;

/// A meeting of ranks, as one of them sees it.
pub(crate) struct Meeting<'a> {
    pub(crate) listener: &'a TcpListener,
    pub(crate) rank: usize,
    pub(crate) addresses: &'a [Address],
    pub(crate) generation: u64,
    /// The connections that this rank is to have; the other side wants them, too.
    pub(crate) wanted: &'a [Wanted],
    /// What all of them know.
    pub(crate) secret: Option<&'a Secret>,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
}

/// The connections that were wanted.
pub(crate) struct Connections(Vec<(Wanted, Option<TcpStream>)>);

/// One connection to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) peer: usize,
    pub(crate) purpose: Purpose,
}

impl Connections {
    /// Those for a purpose, in the order of ranks; none where none was wanted.
    pub(crate) fn take(&mut self, purpose: Purpose, world: usize) -> Vec<Option<TcpStream>> {
        let mut taken: Vec<Option<TcpStream>> = (0..world).map(|_| None).collect();
        for (wanted, socket) in self.0.iter_mut().filter(|(wanted, _)| wanted.purpose == purpose) {
            taken[wanted.peer] = socket.take();
        }
        taken
    }
}

/// Bytes that come in until there are enough.
struct Gathering {
    bytes: Vec<u8>,
    done: usize,
}

impl Gathering {
    fn new(length: usize) -> Gathering {
        Gathering { bytes: vec![0; length], done: 0 }
    }

    /// Whether all is there.
    fn read(&mut self, socket: &TcpStream) -> io::Result<bool> {
        while self.done < self.bytes.len() {
            let rest = &mut self.bytes[self.done..];
            // SAFETY: the slice is writable for its length.
            match unsafe { receive(socket, rest.as_mut_ptr(), rest.len()) } {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.done += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// A call of this rank.
struct Outgoing {
    socket: TcpStream,
    peer: usize,
    purpose: Purpose,
    endpoint: SocketAddr,
    /// Nothing until the connection is there and the hello is out.
    answer: Option<Gathering>,
}

/// A call to this rank.
struct Incoming {
    socket: TcpStream,
    since: Instant,
    hello: Gathering,
    /// It has said hello as a member would, with another token.
    introduced: bool,
    /// Who it is, once it has said so; then its confirmation is awaited.
    known: Option<(usize, Purpose)>,
}

/// What becomes of a call.
enum Progress {
    Waiting,
    Done,
    Over,
    Refused(String),
}

/// Where a connection is sought.
struct Search {
    peer: usize,
    purpose: Purpose,
    endpoints: Vec<SocketAddr>,
    next: usize,
    next_at: Instant,
}

struct State<'a> {
    meeting: &'a Meeting<'a>,
    found: Connections,
    searches: Vec<Search>,
    outgoing: Vec<Outgoing>,
    incoming: Vec<Incoming>,
    /// Somebody hung up who was called as a member, or called without being one.
    strangers: bool,
}

impl Meeting<'_> {
    /// Comes together with the other ranks.
    pub(crate) fn hold(&self) -> Result<Connections, Error> {
        let mut searches = Vec::new();
        for &Wanted { peer, purpose } in self.wanted.iter().filter(|wanted| wanted.peer < self.rank) {
            let endpoints = self.endpoints(peer)?;
            searches.push(Search { peer, purpose, endpoints, next: 0, next_at: Instant::now() });
        }
        let found = Connections(self.wanted.iter().map(|wanted| (*wanted, None)).collect());
        let mut state =
            State { meeting: self, found, searches, outgoing: Vec::new(), incoming: Vec::new(), strangers: false };
        loop {
            let missing = state.missing();
            if missing.is_empty() {
                let found = state.found;
                for socket in found.0.iter().filter_map(|(_, socket)| socket.as_ref()) {
                    tune(socket).map_err(|error| Error::system("tune a connection", error))?;
                }
                return Ok(found);
            }
            if Instant::now() >= self.deadline {
                let names: Vec<String> = missing.iter().map(usize::to_string).collect();
                let hint = if state.strangers {
                    "\nhint: ranks that know each other's addresses hung up on each other: is INSTEP_SECRET the same on all?"
                } else {
                    ""
                };
                return Err(self.failed(format!("rank {} did not come{hint}", names.join(", "))));
            }
            state.call();
            state.sleep();
            state.accept();
            state.hear_callers();
            state.hear_answers()?;
        }
    }

    /// Where a peer may be reached from here.
    fn endpoints(&self, peer: usize) -> Result<Vec<SocketAddr>, Error> {
        let (own, other) = (&self.addresses[self.rank], &self.addresses[peer]);
        let near = own.network == other.network;
        let (loopback, far): (Vec<SocketAddr>, Vec<SocketAddr>) =
            other.endpoints.iter().partition(|endpoint| endpoint.ip().is_loopback());
        let endpoints = if near { [loopback, far].concat() } else { far };
        if endpoints.is_empty() {
            return Err(Error::invalid(format!(
                "rank {peer} on {} has no network address that rank {} on {} could call\nhint: it shares no memory with \
                 this rank; call open_to_network on every rank and exchange the addresses again",
                other.host, self.rank, own.host
            )));
        }
        Ok(endpoints)
    }

    /// What a rank's token is on the wire.
    fn token(&self, rank: usize) -> [u8; 16] {
        secret::sealed(self.secret, self.addresses[rank].token)
    }

    fn hello(&self, peer: usize, purpose: Purpose) -> Hello {
        Hello {
            token: self.token(peer),
            generation: self.generation,
            world: self.addresses.len() as u32,
            rank: self.rank as u32,
            purpose,
        }
    }

    fn failed(&self, what: impl Into<String>) -> Error {
        Error::Connect { timeout: self.timeout, what: what.into() }
    }
}

impl State<'_> {
    fn slot(&mut self, peer: usize, purpose: Purpose) -> Option<&mut Option<TcpStream>> {
        let wanted = Wanted { peer, purpose };
        self.found.0.iter_mut().find(|(other, _)| *other == wanted).map(|(_, socket)| socket)
    }

    /// Ranks to which a connection is missing.
    fn missing(&self) -> Vec<usize> {
        let open = self.found.0.iter().filter(|(_, socket)| socket.is_none());
        let mut missing: Vec<usize> = open.map(|(wanted, _)| wanted.peer).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Calls the next endpoint of every connection that is still sought.
    fn call(&mut self) {
        let now = Instant::now();
        for search in self.searches.iter_mut().filter(|search| search.next_at <= now) {
            search.next_at = now + STAGGER;
            let endpoint = search.endpoints[search.next % search.endpoints.len()];
            search.next += 1;
            let calls = |call: &Outgoing| {
                call.peer == search.peer && call.purpose == search.purpose && call.endpoint == endpoint
            };
            if self.outgoing.iter().any(calls) {
                continue;
            }
            if let Ok(socket) = dial(endpoint) {
                let (peer, purpose) = (search.peer, search.purpose);
                self.outgoing.push(Outgoing { socket, peer, purpose, endpoint, answer: None });
            }
        }
    }

    fn sleep(&self) {
        let mut handles = vec![PollFd::new(self.meeting.listener.as_fd(), PollFlags::POLLIN)];
        for call in &self.outgoing {
            let events = if call.answer.is_some() { PollFlags::POLLIN } else { PollFlags::POLLOUT };
            handles.push(PollFd::new(call.socket.as_fd(), events));
        }
        for caller in &self.incoming {
            handles.push(PollFd::new(caller.socket.as_fd(), PollFlags::POLLIN));
        }
        let now = Instant::now();
        let mut until = self.meeting.deadline;
        until = self.searches.iter().map(|search| search.next_at).fold(until, Instant::min);
        let silent = self.incoming.iter().filter(|caller| caller.known.is_none());
        until = silent.map(|caller| caller.since + HELLO_DEADLINE).fold(until, Instant::min);
        // An error of poll is a signal, or no memory: look again.
        let _ = poll(&mut handles, poll_timeout(until.saturating_duration_since(now)));
    }

    fn accept(&mut self) {
        while let Ok((socket, _)) = self.meeting.listener.accept() {
            if self.incoming.len() < 2 * self.meeting.wanted.len() + MOST_STRANGERS {
                let hello = Gathering::new(HELLO_BYTES);
                self.incoming.push(Incoming { socket, since: Instant::now(), hello, introduced: false, known: None });
            }
        }
    }

    fn hear_callers(&mut self) {
        let mut callers = std::mem::take(&mut self.incoming);
        let mut strangers = false;
        callers.retain_mut(|caller| match self.hear_caller(caller) {
            Progress::Waiting => caller.known.is_some() || caller.since.elapsed() < HELLO_DEADLINE,
            Progress::Done => {
                if let Some((peer, purpose)) = caller.known
                    && let Ok(socket) = caller.socket.try_clone()
                    && let Some(slot) = self.slot(peer, purpose)
                {
                    *slot = Some(socket);
                }
                false
            }
            Progress::Over | Progress::Refused(_) => {
                strangers |= caller.introduced;
                false
            }
        });
        self.incoming = callers;
        self.strangers |= strangers;
    }

    fn hear_caller(&self, caller: &mut Incoming) -> Progress {
        loop {
            match caller.hello.read(&caller.socket) {
                Ok(true) => {}
                Ok(false) => return Progress::Waiting,
                Err(_) => return Progress::Over,
            }
            if caller.known.is_some() {
                return if caller.hello.bytes == CONFIRMATION { Progress::Done } else { Progress::Over };
            }
            let bytes: &[u8; HELLO_BYTES] = caller.hello.bytes[..].try_into().expect("that many were gathered");
            let hello = Hello::from_bytes(bytes);
            caller.introduced =
                hello.is_some_and(|hello| !secret::same(&hello.token, &self.meeting.token(self.meeting.rank)));
            match hello.and_then(|hello| self.admit(caller, hello)) {
                Some(known) => caller.known = Some(known),
                None => return Progress::Over,
            }
            caller.hello = Gathering::new(CONFIRMATION.len());
        }
    }

    /// Who calls, if it is a member; strangers are turned away without a word.
    fn admit(&self, caller: &Incoming, hello: Hello) -> Option<(usize, Purpose)> {
        let (meeting, peer) = (self.meeting, hello.rank as usize);
        let own = meeting.hello(meeting.rank, hello.purpose);
        if !secret::same(&hello.token, &own.token) || peer >= meeting.addresses.len() || peer <= meeting.rank {
            return None;
        }
        let wanted = Wanted { peer, purpose: hello.purpose };
        let say = |text: &str| {
            // A new connection has room for so little. Who is refused may be no member: its token is not known here.
            let token = if text.is_empty() { meeting.token(peer) } else { own.token };
            let bytes = wire::answer(token, text);
            crate::socket::send_all(&caller.socket, &bytes, Instant::now())
        };
        if hello.generation > own.generation {
            // It is ahead: it calls again when this meeting is over.
            return None;
        }
        if hello.generation < own.generation {
            say(&format!(
                "rank {} is at generation {}, rank {peer} at {}",
                meeting.rank, own.generation, hello.generation
            ));
            return None;
        }
        if hello.world != own.world {
            say(&format!("rank {} expects {} ranks, rank {peer} {}", meeting.rank, own.world, hello.world));
            return None;
        }
        if !meeting.wanted.contains(&wanted) {
            // For a later meeting of the same generation: it calls again.
            return None;
        }
        say("").then_some((peer, hello.purpose))
    }

    fn hear_answers(&mut self) -> Result<(), Error> {
        let mut calls = std::mem::take(&mut self.outgoing);
        let (mut refusal, mut strangers) = (None, false);
        calls.retain_mut(|call| match self.hear_answer(call) {
            Progress::Waiting => true,
            Progress::Over => {
                strangers |= call.answer.is_some();
                false
            }
            Progress::Refused(text) => {
                refusal = Some(text);
                false
            }
            Progress::Done => {
                if let Some(slot) = self.slot(call.peer, call.purpose)
                    && slot.is_none()
                    && crate::socket::send_all(&call.socket, &CONFIRMATION, Instant::now())
                    && let Ok(socket) = call.socket.try_clone()
                {
                    *slot = Some(socket);
                }
                false
            }
        });
        self.outgoing = calls;
        self.strangers |= strangers;
        if let Some(text) = refusal {
            return Err(self.meeting.failed(text));
        }
        let found = &self.found.0;
        let open = |peer: usize, purpose: Purpose| {
            let wanted = Wanted { peer, purpose };
            found.iter().any(|(other, socket)| *other == wanted && socket.is_none())
        };
        // Other endpoints of the same rank need not answer any more.
        self.searches.retain(|search| open(search.peer, search.purpose));
        self.outgoing.retain(|call| open(call.peer, call.purpose));
        Ok(())
    }

    fn hear_answer(&self, call: &mut Outgoing) -> Progress {
        if call.answer.is_none() {
            match call.socket.take_error() {
                Ok(None) => {}
                _ => return Progress::Over,
            }
            if call.socket.peer_addr().is_err() {
                return Progress::Waiting;
            }
            let hello = self.meeting.hello(call.peer, call.purpose).to_bytes();
            if !crate::socket::send_all(&call.socket, &hello, Instant::now()) {
                return Progress::Over;
            }
            call.answer = Some(Gathering::new(ANSWER_BYTES));
        }
        let Some(answer) = &mut call.answer else { return Progress::Waiting };
        loop {
            match answer.read(&call.socket) {
                Ok(true) => {}
                Ok(false) => return Progress::Waiting,
                Err(_) => return Progress::Over,
            }
            if answer.bytes.len() > ANSWER_BYTES {
                return Progress::Refused(String::from_utf8_lossy(&answer.bytes[ANSWER_BYTES..]).into_owned());
            }
            let start: &[u8; ANSWER_BYTES] = answer.bytes[..].try_into().expect("that many were gathered");
            let [own, called] = [self.meeting.rank, call.peer].map(|rank| self.meeting.token(rank));
            match (wire::answer_length(start, own), wire::answer_length(start, called)) {
                (Some(0), _) => return Progress::Done,
                (_, Some(length @ 1..)) => answer.bytes.resize(ANSWER_BYTES + length, 0),
                _ => return Progress::Over,
            }
        }
    }
}

/// Starts to connect, and goes on without waiting.
fn dial(endpoint: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(endpoint), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&endpoint.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// Sends at once what is written, and notices when the other host does not answer any more.
fn tune(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
    // No limit for what is not acknowledged: the kernel would count the time in which the other side does not read.
    socket.set_tcp_keepalive(&keepalive)
}
