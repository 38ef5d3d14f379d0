//! How two ranks recognise each other on a new connection, as the caller sees it and as the called does.
//!
//! The caller says who it is and whom it believes to call; the called answers with what only it can know; the caller says
//! that this connection is the one it takes, of those it may have opened at several endpoints. See [`super::wire`].
#![expect(unsafe_code, reason = "reads sockets")]

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::secret::{self, Secret};
use super::wire::{self, ANSWER_BYTES, CONFIRMATION, HELLO_BYTES, Hello, Purpose};
use crate::socket::{receive, send_all};
use crate::{Address, Error};

/// Between two calls of the same rank at its endpoints.
pub(crate) const STAGGER: Duration = Duration::from_millis(250);
/// A caller who connects and says nothing is given up after this.
pub(crate) const HELLO_DEADLINE: Duration = Duration::from_secs(2);
/// Callers that are listened to, besides two of each rank.
pub(crate) const MOST_STRANGERS: usize = 64;
/// A host that does not answer is lost after this, where `pulse` does not find out before.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 5;

/// Who belongs to a generation of a group, as one of its ranks knows it.
#[derive(Clone, Copy)]
pub(crate) struct Members<'a> {
    pub(crate) rank: usize,
    pub(crate) addresses: &'a [Address],
    pub(crate) generation: u64,
    /// What all of them know.
    pub(crate) secret: Option<&'a Secret>,
}

impl Members<'_> {
    /// Where a peer may be reached from here for a purpose: messages have a port of their own.
    pub(crate) fn endpoints(&self, peer: usize, purpose: Purpose) -> Result<Vec<SocketAddr>, Error> {
        let (own, other) = (&self.addresses[self.rank], &self.addresses[peer]);
        let near = own.network == other.network;
        let (loopback, far): (Vec<SocketAddr>, Vec<SocketAddr>) =
            other.endpoints.iter().partition(|endpoint| endpoint.ip().is_loopback());
        let mut endpoints = if near { [loopback, far].concat() } else { far };
        if purpose == Purpose::Mail {
            endpoints.iter_mut().for_each(|endpoint| endpoint.set_port(other.mail_port));
        }
        if endpoints.is_empty() {
            return Err(Error::invalid(format!(
                "rank {peer} on {} has no network address that rank {} on {} could call\nhint: it shares no memory with \
                 this rank; call open_to_network on every rank and exchange the addresses again",
                other.host, self.rank, own.host
            )));
        }
        if endpoints.iter().any(|endpoint| endpoint.port() == 0) {
            return Err(Error::invalid(format!(
                "rank {peer} on {} has no port for messages\nhint: it runs another version of instep",
                other.host
            )));
        }
        Ok(endpoints)
    }

    /// What a rank's token is on the wire.
    fn token(&self, rank: usize) -> [u8; 16] {
        secret::sealed(self.secret, self.addresses[rank].token)
    }

    fn hello(&self, called: usize, purpose: Purpose) -> Hello {
        Hello {
            token: self.token(called),
            generation: self.generation,
            world: self.addresses.len() as u32,
            rank: self.rank as u32,
            purpose,
        }
    }
}

/// What became of a call.
pub(crate) enum Heard {
    /// Nothing yet.
    Waiting,
    /// The caller: it was answered by the right one. The called: the caller takes this connection.
    Done,
    /// There is nobody at that endpoint, or no way to it.
    Unreachable(io::ErrorKind),
    /// The other side hung up, or is a stranger.
    Over,
    /// A member said why not.
    Refused(String),
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
pub(crate) struct Outgoing {
    socket: TcpStream,
    pub(crate) endpoint: SocketAddr,
    /// Nothing until the connection is there and the hello is out.
    answer: Option<Gathering>,
}

impl Outgoing {
    /// Starts to connect, and goes on without waiting.
    pub(crate) fn dial(endpoint: SocketAddr) -> io::Result<Outgoing> {
        let socket = Socket::new(Domain::for_address(endpoint), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        match socket.connect(&endpoint.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(Outgoing { socket: socket.into(), endpoint, answer: None }),
        }
    }

    /// Somebody is at that endpoint and has not answered yet.
    pub(crate) fn is_connected(&self) -> bool {
        self.answer.is_some()
    }

    /// What to wait for.
    pub(crate) fn handle(&self) -> PollFd<'_> {
        let events = if self.answer.is_some() { PollFlags::POLLIN } else { PollFlags::POLLOUT };
        PollFd::new(self.socket.as_fd(), events)
    }

    pub(crate) fn hear(&mut self, members: Members<'_>, peer: usize, purpose: Purpose) -> Heard {
        if self.answer.is_none() {
            match self.socket.take_error() {
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => return Heard::Unreachable(error.kind()),
            }
            if self.socket.peer_addr().is_err() {
                return Heard::Waiting;
            }
            let hello = members.hello(peer, purpose).to_bytes();
            if !send_all(&self.socket, &hello, Instant::now()) {
                return Heard::Over;
            }
            self.answer = Some(Gathering::new(ANSWER_BYTES));
        }
        let Some(answer) = &mut self.answer else { return Heard::Waiting };
        loop {
            match answer.read(&self.socket) {
                Ok(true) => {}
                Ok(false) => return Heard::Waiting,
                Err(_) => return Heard::Over,
            }
            if answer.bytes.len() > ANSWER_BYTES {
                return Heard::Refused(String::from_utf8_lossy(&answer.bytes[ANSWER_BYTES..]).into_owned());
            }
            let start: &[u8; ANSWER_BYTES] = answer.bytes[..].try_into().expect("that many were gathered");
            let [own, called] = [members.rank, peer].map(|rank| members.token(rank));
            match (wire::answer_length(start, own), wire::answer_length(start, called)) {
                (Some(0), _) => return Heard::Done,
                (_, Some(length @ 1..)) => answer.bytes.resize(ANSWER_BYTES + length, 0),
                _ => return Heard::Over,
            }
        }
    }

    /// Takes this connection, which was answered; nothing if it is gone.
    pub(crate) fn confirm(&self) -> Option<TcpStream> {
        let told = send_all(&self.socket, &CONFIRMATION, Instant::now());
        self.socket.try_clone().ok().filter(|_| told)
    }
}

/// A call to this rank.
pub(crate) struct Incoming {
    socket: TcpStream,
    since: Instant,
    hello: Gathering,
    /// It has said hello as a member would, with another token.
    pub(crate) introduced: bool,
    /// Who it is, once it has said so; then its confirmation is awaited.
    pub(crate) known: Option<(usize, Purpose)>,
}

impl Incoming {
    pub(crate) fn new(socket: TcpStream) -> Incoming {
        let hello = Gathering::new(HELLO_BYTES);
        Incoming { socket, since: Instant::now(), hello, introduced: false, known: None }
    }

    /// When a caller that says nothing is given up.
    pub(crate) fn patience(&self) -> Option<Instant> {
        self.known.is_none().then(|| self.since + HELLO_DEADLINE)
    }

    /// What to wait for.
    pub(crate) fn handle(&self) -> PollFd<'_> {
        PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)
    }

    /// The connection, once the caller takes it.
    pub(crate) fn socket(&self) -> io::Result<TcpStream> {
        self.socket.try_clone()
    }

    /// `expects` knows who may call what for; others are let go, and call again if they are early. Who is let in where
    /// `closing` says why not hears that.
    pub(crate) fn hear(
        &mut self,
        members: Members<'_>,
        expects: impl Fn(usize, Purpose) -> bool,
        closing: Option<&str>,
    ) -> Heard {
        loop {
            match self.hello.read(&self.socket) {
                Ok(true) => {}
                Ok(false) if self.patience().is_some_and(|until| Instant::now() >= until) => return Heard::Over,
                Ok(false) => return Heard::Waiting,
                Err(_) => return Heard::Over,
            }
            if self.known.is_some() {
                return if self.hello.bytes == CONFIRMATION { Heard::Done } else { Heard::Over };
            }
            let bytes: &[u8; HELLO_BYTES] = self.hello.bytes[..].try_into().expect("that many were gathered");
            let hello = Hello::from_bytes(bytes);
            self.introduced = hello.is_some_and(|hello| !secret::same(&hello.token, &members.token(members.rank)));
            match hello.and_then(|hello| self.admit(members, hello, &expects, closing)) {
                Some(known) => self.known = Some(known),
                None => return Heard::Over,
            }
            self.hello = Gathering::new(CONFIRMATION.len());
        }
    }

    /// Who calls, if it is a member; strangers are turned away without a word.
    fn admit(
        &self,
        members: Members<'_>,
        hello: Hello,
        expects: impl Fn(usize, Purpose) -> bool,
        closing: Option<&str>,
    ) -> Option<(usize, Purpose)> {
        let peer = hello.rank as usize;
        let own = members.hello(members.rank, hello.purpose);
        if !secret::same(&hello.token, &own.token) || peer >= members.addresses.len() {
            return None;
        }
        let say = |text: &str| {
            // A new connection has room for so little. Who is refused may be no member: its token is not known here.
            let token = if text.is_empty() { members.token(peer) } else { own.token };
            send_all(&self.socket, &wire::answer(token, text), Instant::now())
        };
        if hello.generation > own.generation {
            // It is ahead: it calls again when this rank may have followed.
            return None;
        }
        if hello.generation < own.generation {
            say(&format!(
                "rank {} is at generation {}, rank {peer} at {}",
                members.rank, own.generation, hello.generation
            ));
            return None;
        }
        if hello.world != own.world {
            say(&format!("rank {} expects {} ranks, rank {peer} {}", members.rank, own.world, hello.world));
            return None;
        }
        if !expects(peer, hello.purpose) {
            // For a later meeting of the same generation: it calls again.
            return None;
        }
        say(closing.unwrap_or_default()).then_some((peer, hello.purpose)).filter(|_| closing.is_none())
    }
}

/// Sends at once what is written, and notices when the other host does not answer any more.
pub(crate) fn tune(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
    // No limit for what is not acknowledged: the kernel would count the time in which the other side does not read.
    socket.set_tcp_keepalive(&keepalive)
}
