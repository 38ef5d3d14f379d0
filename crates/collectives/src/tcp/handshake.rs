//! The handshake of two ranks on a new connection, from the side of the caller and from that of the called.
//!
//! The caller says who it is and whom it believes to call; the called answers with what only it can know; the caller says
//! that this connection is the one it takes, of those it may have opened at several endpoints. See [`super::wire`].
//!
//! Pure: bytes in, bytes out. The sockets are in [`super::connect`].

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::secret::{self, Secret};
use super::wire::{self, ANSWER_BYTES, CONFIRMATION, HELLO_BYTES, Hello, Purpose};
use crate::{Address, Error, Rank};

/// Between two calls of the same rank at its endpoints.
pub(crate) const STAGGER: Duration = Duration::from_millis(250);
/// A caller who connects and says nothing is given up after this.
pub(crate) const HELLO_DEADLINE: Duration = Duration::from_secs(2);
/// Callers that are listened to, besides two of each rank.
pub(crate) const MAX_UNIDENTIFIED: usize = 64;

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

    pub(super) fn hello(&self, called: Rank, purpose: Purpose) -> Hello {
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

/// The caller's side, from its hello on.
pub(crate) struct CallerHandshake {
    own: [u8; 16],
    called: [u8; 16],
    answer: Vec<u8>,
    /// Of the answer, as far as it is known.
    length: usize,
}

impl CallerHandshake {
    pub(crate) fn new(membership: Membership<'_>, peer: Rank) -> CallerHandshake {
        let [own, called] = [membership.rank, peer].map(|rank| membership.token(rank));
        CallerHandshake { own, called, answer: Vec::new(), length: ANSWER_BYTES }
    }

    /// How many bytes come next.
    pub(crate) fn wanted(&self) -> usize {
        self.length - self.answer.len()
    }

    /// Takes bytes of the other side, no more than wanted.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> HandshakeStatus {
        self.answer.extend_from_slice(bytes);
        if self.wanted() > 0 {
            return HandshakeStatus::Waiting;
        }
        let (start, text) = self.answer.split_at(ANSWER_BYTES);
        if !text.is_empty() {
            return HandshakeStatus::Refused(String::from_utf8_lossy(text).into_owned());
        }
        let start: &[u8; ANSWER_BYTES] = start.try_into().expect("that many were gathered");
        match (wire::answer_length(start, self.own), wire::answer_length(start, self.called)) {
            (Some(0), _) => HandshakeStatus::Done,
            (_, Some(length @ 1..)) => {
                self.length += length;
                HandshakeStatus::Waiting
            }
            _ => HandshakeStatus::Closed,
        }
    }
}

/// The called side, from the accepted connection on.
pub(crate) struct CalledHandshake {
    since: Instant,
    received: Vec<u8>,
    /// It has said hello as a member would, with another token.
    unauthenticated: bool,
    /// Who it is, once it has said so; then its confirmation is awaited.
    identified: Option<(Rank, Purpose)>,
}

impl CalledHandshake {
    pub(crate) fn new(now: Instant) -> CalledHandshake {
        CalledHandshake { since: now, received: Vec::new(), unauthenticated: false, identified: None }
    }

    /// When a caller that says nothing is given up.
    pub(crate) fn hello_deadline(&self) -> Option<Instant> {
        self.identified.is_none().then(|| self.since + HELLO_DEADLINE)
    }

    pub(crate) fn identified(&self) -> Option<(Rank, Purpose)> {
        self.identified
    }

    pub(crate) fn is_unauthenticated(&self) -> bool {
        self.unauthenticated
    }

    /// How many bytes come next.
    pub(crate) fn wanted(&self) -> usize {
        let length = if self.identified.is_some() { CONFIRMATION.len() } else { HELLO_BYTES };
        length - self.received.len()
    }

    /// Takes bytes of the caller, no more than wanted; gives what to answer, which may be nothing.
    ///
    /// `expects` knows who may call what for; others are let go, and call again if they are early. Who is let in where
    /// `closing` says why not is told that.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        membership: Membership<'_>,
        expects: impl Fn(Rank, Purpose) -> bool,
        closing: Option<&str>,
    ) -> (HandshakeStatus, Vec<u8>) {
        self.received.extend_from_slice(bytes);
        if self.wanted() > 0 {
            return (HandshakeStatus::Waiting, Vec::new());
        }
        let received = std::mem::take(&mut self.received);
        if self.identified.is_some() {
            let confirmed = received == CONFIRMATION;
            return (if confirmed { HandshakeStatus::Done } else { HandshakeStatus::Closed }, Vec::new());
        }
        let bytes: &[u8; HELLO_BYTES] = received[..].try_into().expect("that many were gathered");
        let Some(hello) = Hello::from_bytes(bytes) else { return (HandshakeStatus::Closed, Vec::new()) };
        self.unauthenticated = !secret::same(&hello.token, &membership.token(membership.rank));
        let reply = match admit(membership, hello, expects, closing) {
            Admission::Welcome(reply) => {
                self.identified = Some((Rank(hello.rank as usize), hello.purpose));
                return (HandshakeStatus::Waiting, reply);
            }
            Admission::Refused(reply) => reply,
            Admission::Stranger => Vec::new(),
        };
        (HandshakeStatus::Closed, reply)
    }
}

/// What a caller gets.
enum Admission {
    Welcome(Vec<u8>),
    Refused(Vec<u8>),
    /// Nothing: it is no member, or calls again by itself.
    Stranger,
}

/// Who is let in; strangers are refused without a word.
fn admit(
    membership: Membership<'_>,
    hello: Hello,
    expects: impl Fn(Rank, Purpose) -> bool,
    closing: Option<&str>,
) -> Admission {
    let peer = Rank(hello.rank as usize);
    let own = membership.hello(membership.rank, hello.purpose);
    if !secret::same(&hello.token, &own.token) || peer.0 >= membership.addresses.len() {
        return Admission::Stranger;
    }
    // Who is refused may be no member: its token is not known here.
    let refused = |text: &str| Admission::Refused(wire::answer(own.token, text));
    if hello.generation > own.generation {
        // It is ahead: it calls again when this rank may have followed.
        return Admission::Stranger;
    }
    if hello.generation < own.generation {
        let (ours, theirs) = (own.generation, hello.generation);
        return refused(&format!("rank {} is at generation {ours}, rank {peer} at {theirs}", membership.rank));
    }
    if hello.world != own.world {
        return refused(&format!("rank {} expects {} ranks, rank {peer} {}", membership.rank, own.world, hello.world));
    }
    if !expects(peer, hello.purpose) {
        // For a later bootstrap of the same generation: it calls again.
        return Admission::Stranger;
    }
    match closing {
        Some(text) => refused(text),
        None => Admission::Welcome(wire::answer(membership.token(peer), "")),
    }
}
