//! The handshake of two ranks on a new connection, from the side of the caller and from that of the called.
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
use crate::{Address, Error, Rank};

/// Between two calls of the same rank at its endpoints.
pub(crate) const STAGGER: Duration = Duration::from_millis(250);
/// A caller who connects and says nothing is given up after this.
pub(crate) const HELLO_DEADLINE: Duration = Duration::from_secs(2);
/// Callers that are listened to, besides two of each rank.
pub(crate) const MAX_UNIDENTIFIED: usize = 64;
/// A host that does not answer is lost after this, where `heartbeat` does not find out before.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 5;

/// Who belongs to a generation of a group, as one of its ranks knows it.
#[derive(Clone, Copy)]
pub(crate) struct Membership<'a> {
    pub(crate) rank: Rank,
    pub(crate) addresses: &'a [Address],
    pub(crate) generation: u64,
    /// What all of them know.
    pub(crate) secret: Option<&'a Secret>,
}

impl Membership<'_> {
    /// Where a peer may be reached from here for a purpose: messages have a port of their own.
    pub(crate) fn endpoints(&self, peer: Rank, purpose: Purpose) -> Result<Vec<SocketAddr>, Error> {
        let (own, other) = (&self.addresses[self.rank.0], &self.addresses[peer.0]);
        let near = own.network == other.network;
        let (loopback, far): (Vec<SocketAddr>, Vec<SocketAddr>) =
            other.endpoints.iter().partition(|endpoint| endpoint.ip().is_loopback());
        let mut endpoints = if near { [loopback, far].concat() } else { far };
        if purpose == Purpose::P2p {
            endpoints.iter_mut().for_each(|endpoint| endpoint.set_port(other.p2p_port));
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
    fn token(&self, rank: Rank) -> [u8; 16] {
        secret::sealed(self.secret, self.addresses[rank.0].token)
    }

    fn hello(&self, called: Rank, purpose: Purpose) -> Hello {
        Hello {
            token: self.token(called),
            generation: self.generation,
            world: self.addresses.len() as u32,
            rank: self.rank.0 as u32,
            purpose,
        }
    }
}

/// What became of a call.
pub(crate) enum HandshakeStatus {
    /// Nothing yet.
    Waiting,
    /// The caller: it was answered by the right one. The called: the caller takes this connection.
    Done,
    /// There is nobody at that endpoint, or no way to it.
    Unreachable(io::ErrorKind),
    /// The other side hung up, or is a stranger.
    Closed,
    /// A member said why not.
    Refused(String),
}

/// Bytes that come in until there are enough.
struct ReadBuffer {
    bytes: Vec<u8>,
    done: usize,
}

impl ReadBuffer {
    fn new(length: usize) -> ReadBuffer {
        ReadBuffer { bytes: vec![0; length], done: 0 }
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
pub(crate) struct OutgoingHandshake {
    socket: TcpStream,
    pub(crate) endpoint: SocketAddr,
    /// Nothing until the connection is there and the hello is out.
    answer: Option<ReadBuffer>,
}

impl OutgoingHandshake {
    /// Starts to connect, and goes on without waiting.
    pub(crate) fn dial(endpoint: SocketAddr) -> io::Result<OutgoingHandshake> {
        let socket = Socket::new(Domain::for_address(endpoint), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        match socket.connect(&endpoint.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(OutgoingHandshake { socket: socket.into(), endpoint, answer: None }),
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

    pub(crate) fn advance(&mut self, membership: Membership<'_>, peer: Rank, purpose: Purpose) -> HandshakeStatus {
        if self.answer.is_none() {
            match self.socket.take_error() {
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => return HandshakeStatus::Unreachable(error.kind()),
            }
            if self.socket.peer_addr().is_err() {
                return HandshakeStatus::Waiting;
            }
            let hello = membership.hello(peer, purpose).to_bytes();
            if !send_all(&self.socket, &hello, Instant::now()) {
                return HandshakeStatus::Closed;
            }
            self.answer = Some(ReadBuffer::new(ANSWER_BYTES));
        }
        let Some(answer) = &mut self.answer else { return HandshakeStatus::Waiting };
        loop {
            match answer.read(&self.socket) {
                Ok(true) => {}
                Ok(false) => return HandshakeStatus::Waiting,
                Err(_) => return HandshakeStatus::Closed,
            }
            if answer.bytes.len() > ANSWER_BYTES {
                return HandshakeStatus::Refused(String::from_utf8_lossy(&answer.bytes[ANSWER_BYTES..]).into_owned());
            }
            let start: &[u8; ANSWER_BYTES] = answer.bytes[..].try_into().expect("that many were gathered");
            let [own, called] = [membership.rank, peer].map(|rank| membership.token(rank));
            match (wire::answer_length(start, own), wire::answer_length(start, called)) {
                (Some(0), _) => return HandshakeStatus::Done,
                (_, Some(length @ 1..)) => answer.bytes.resize(ANSWER_BYTES + length, 0),
                _ => return HandshakeStatus::Closed,
            }
        }
    }

    /// Takes this connection, which was answered; nothing if it is gone.
    pub(crate) fn confirm(&self) -> Option<TcpStream> {
        let sent = send_all(&self.socket, &CONFIRMATION, Instant::now());
        self.socket.try_clone().ok().filter(|_| sent)
    }
}

/// A call to this rank.
pub(crate) struct IncomingHandshake {
    socket: TcpStream,
    since: Instant,
    hello: ReadBuffer,
    /// It has said hello as a member would, with another token.
    pub(crate) unauthenticated: bool,
    /// Who it is, once it has said so; then its confirmation is awaited.
    pub(crate) identified: Option<(Rank, Purpose)>,
}

impl IncomingHandshake {
    pub(crate) fn new(socket: TcpStream) -> IncomingHandshake {
        let hello = ReadBuffer::new(HELLO_BYTES);
        IncomingHandshake { socket, since: Instant::now(), hello, unauthenticated: false, identified: None }
    }

    /// When a caller that says nothing is given up.
    pub(crate) fn hello_deadline(&self) -> Option<Instant> {
        self.identified.is_none().then(|| self.since + HELLO_DEADLINE)
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
    /// `closing` says why not is told that.
    pub(crate) fn advance(
        &mut self,
        membership: Membership<'_>,
        expects: impl Fn(Rank, Purpose) -> bool,
        closing: Option<&str>,
    ) -> HandshakeStatus {
        loop {
            match self.hello.read(&self.socket) {
                Ok(true) => {}
                Ok(false) if self.hello_deadline().is_some_and(|until| Instant::now() >= until) => {
                    return HandshakeStatus::Closed;
                }
                Ok(false) => return HandshakeStatus::Waiting,
                Err(_) => return HandshakeStatus::Closed,
            }
            if self.identified.is_some() {
                return if self.hello.bytes == CONFIRMATION { HandshakeStatus::Done } else { HandshakeStatus::Closed };
            }
            let bytes: &[u8; HELLO_BYTES] = self.hello.bytes[..].try_into().expect("that many were gathered");
            let hello = Hello::from_bytes(bytes);
            self.unauthenticated =
                hello.is_some_and(|hello| !secret::same(&hello.token, &membership.token(membership.rank)));
            match hello.and_then(|hello| self.admit(membership, hello, &expects, closing)) {
                Some(identified) => self.identified = Some(identified),
                None => return HandshakeStatus::Closed,
            }
            self.hello = ReadBuffer::new(CONFIRMATION.len());
        }
    }

    /// Who calls, if it is a member; strangers are refused without a word.
    fn admit(
        &self,
        membership: Membership<'_>,
        hello: Hello,
        expects: impl Fn(Rank, Purpose) -> bool,
        closing: Option<&str>,
    ) -> Option<(Rank, Purpose)> {
        let peer = Rank(hello.rank as usize);
        let own = membership.hello(membership.rank, hello.purpose);
        if !secret::same(&hello.token, &own.token) || peer.0 >= membership.addresses.len() {
            return None;
        }
        let reply = |text: &str| {
            // A new connection has room for so little. Who is refused may be no member: its token is not known here.
            let token = if text.is_empty() { membership.token(peer) } else { own.token };
            send_all(&self.socket, &wire::answer(token, text), Instant::now())
        };
        if hello.generation > own.generation {
            // It is ahead: it calls again when this rank may have followed.
            return None;
        }
        if hello.generation < own.generation {
            reply(&format!(
                "rank {} is at generation {}, rank {peer} at {}",
                membership.rank, own.generation, hello.generation
            ));
            return None;
        }
        if hello.world != own.world {
            reply(&format!("rank {} expects {} ranks, rank {peer} {}", membership.rank, own.world, hello.world));
            return None;
        }
        if !expects(peer, hello.purpose) {
            // For a later bootstrap of the same generation: it calls again.
            return None;
        }
        reply(closing.unwrap_or_default()).then_some((peer, hello.purpose)).filter(|_| closing.is_none())
    }
}

/// Sends at once what is written, and notices when the other host does not answer any more.
pub(crate) fn configure(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
    // No limit for what is not acknowledged: the kernel would count the time in which the other side does not read.
    socket.set_tcp_keepalive(&keepalive)
}
