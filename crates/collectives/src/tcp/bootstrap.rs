//! How ranks of several hosts are connected: pairs of them get a connection for every purpose they have.
//!
//! The higher rank of a pair calls the lower one, at all its endpoints in turn, a little after each other, and keeps
//! calling. Whoever answers must know the caller's token; the first that does is taken, and told so. A rank is done when it
//! has all its connections, and keeps nothing of a bootstrap that failed.
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use super::handshake::{
    HandshakeStatus, IncomingHandshake, MAX_UNIDENTIFIED, Membership, OutgoingHandshake, STAGGER, configure,
};
use super::wire::Purpose;
use crate::rank::join_ranks;
use crate::socket::poll_timeout;
use crate::{Error, Rank};

/// How one rank gets its connections.
pub(crate) struct TcpBootstrap<'a> {
    pub(crate) listener: &'a TcpListener,
    pub(crate) membership: Membership<'a>,
    /// The connections that this rank is to have; the other side wants them, too.
    pub(crate) wanted: &'a [WantedConnection],
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
}

/// The connections that were wanted.
pub(crate) struct Connections(Vec<(WantedConnection, Option<TcpStream>)>);

/// One connection to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedConnection {
    pub(crate) peer: Rank,
    pub(crate) purpose: Purpose,
}

impl WantedConnection {
    /// One to every other rank.
    pub(crate) fn to_all(rank: Rank, world: usize, purpose: Purpose) -> Vec<WantedConnection> {
        rank.others(world).map(|peer| WantedConnection { peer, purpose }).collect()
    }
}

impl Connections {
    /// Those for a purpose, in the order of ranks; none where none was wanted.
    pub(crate) fn take(&mut self, purpose: Purpose, world: usize) -> Vec<Option<TcpStream>> {
        let mut taken: Vec<Option<TcpStream>> = (0..world).map(|_| None).collect();
        for (wanted, socket) in self.0.iter_mut().filter(|(wanted, _)| wanted.purpose == purpose) {
            taken[wanted.peer.0] = socket.take();
        }
        taken
    }

    fn slot(&mut self, wanted: WantedConnection) -> Option<&mut Option<TcpStream>> {
        self.0.iter_mut().find(|(other, _)| *other == wanted).map(|(_, socket)| socket)
    }
}

/// Where a connection is sought.
struct EndpointDial {
    wanted: WantedConnection,
    endpoints: Vec<SocketAddr>,
    next: usize,
    next_at: Instant,
}

struct BootstrapState<'a> {
    bootstrap: &'a TcpBootstrap<'a>,
    found: Connections,
    dials: Vec<EndpointDial>,
    outgoing: Vec<(WantedConnection, OutgoingHandshake)>,
    incoming: Vec<IncomingHandshake>,
    /// Somebody hung up who was called as a member, or called without being one.
    unauthenticated: bool,
}

impl TcpBootstrap<'_> {
    /// Connects with the other ranks, or says which are missing.
    pub(crate) fn run(&self) -> Result<Connections, Error> {
        let mut dials = Vec::new();
        for &wanted in self.wanted.iter().filter(|wanted| wanted.peer < self.membership.rank) {
            let endpoints = self.membership.endpoints(wanted.peer, wanted.purpose)?;
            dials.push(EndpointDial { wanted, endpoints, next: 0, next_at: Instant::now() });
        }
        let found = Connections(self.wanted.iter().map(|wanted| (*wanted, None)).collect());
        let mut state = BootstrapState {
            bootstrap: self,
            found,
            dials,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            unauthenticated: false,
        };
        loop {
            let missing = state.missing();
            if missing.is_empty() {
                let found = state.found;
                for socket in found.0.iter().filter_map(|(_, socket)| socket.as_ref()) {
                    configure(socket).map_err(|error| Error::system("tune a connection", error))?;
                }
                return Ok(found);
            }
            if Instant::now() >= self.deadline {
                let by_rail = self.wanted.iter().any(|wanted| wanted.purpose == Purpose::Rail);
                let hint = if state.unauthenticated {
                    "\nhint: ranks refused each other's connections: is INSTEP_SECRET the same on all?"
                } else if by_rail {
                    "\nhint: a rank that waits for others on its host does not arrive either; their errors name the missing ranks"
                } else {
                    ""
                };
                return Err(self.failed(format!("rank {} did not arrive{hint}", join_ranks(&missing))));
            }
            state.dial_due();
            state.sleep();
            state.accept();
            state.progress_incoming();
            state.progress_outgoing()?;
        }
    }

    fn failed(&self, what: impl Into<String>) -> Error {
        Error::Connect { timeout: self.timeout, what: what.into() }
    }
}

impl BootstrapState<'_> {
    /// Ranks to which a connection is missing.
    fn missing(&self) -> Vec<Rank> {
        let open = self.found.0.iter().filter(|(_, socket)| socket.is_none());
        let mut missing: Vec<Rank> = open.map(|(wanted, _)| wanted.peer).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Calls the next endpoint of every connection that is still sought.
    fn dial_due(&mut self) {
        let now = Instant::now();
        for dial in self.dials.iter_mut().filter(|dial| dial.next_at <= now) {
            dial.next_at = now + STAGGER;
            let endpoint = dial.endpoints[dial.next % dial.endpoints.len()];
            dial.next += 1;
            let calls = |(wanted, call): &(WantedConnection, OutgoingHandshake)| {
                *wanted == dial.wanted && call.endpoint == endpoint
            };
            if self.outgoing.iter().any(calls) {
                continue;
            }
            if let Ok(call) = OutgoingHandshake::dial(endpoint) {
                self.outgoing.push((dial.wanted, call));
            }
        }
    }

    fn sleep(&self) {
        let mut handles = vec![PollFd::new(self.bootstrap.listener.as_fd(), PollFlags::POLLIN)];
        handles.extend(self.outgoing.iter().map(|(_, call)| call.handle()));
        handles.extend(self.incoming.iter().map(IncomingHandshake::handle));
        let now = Instant::now();
        let mut until = self.bootstrap.deadline;
        until = self.dials.iter().map(|dial| dial.next_at).fold(until, Instant::min);
        until = self.incoming.iter().filter_map(IncomingHandshake::hello_deadline).fold(until, Instant::min);
        // An error of poll is a signal, or no memory: look again.
        let _ = poll(&mut handles, poll_timeout(until.saturating_duration_since(now)));
    }

    fn accept(&mut self) {
        while let Ok((socket, _)) = self.bootstrap.listener.accept() {
            if self.incoming.len() < 2 * self.bootstrap.wanted.len() + MAX_UNIDENTIFIED {
                self.incoming.push(IncomingHandshake::new(socket));
            }
        }
    }

    fn progress_incoming(&mut self) {
        let (membership, wanted) = (self.bootstrap.membership, self.bootstrap.wanted);
        // The higher rank calls.
        let expects = |peer: Rank, purpose: Purpose| {
            peer > membership.rank && wanted.contains(&WantedConnection { peer, purpose })
        };
        let (found, unauthenticated) = (&mut self.found, &mut self.unauthenticated);
        self.incoming.retain_mut(|caller| match caller.advance(membership, expects, None) {
            HandshakeStatus::Waiting => true,
            HandshakeStatus::Done => {
                if let Some((peer, purpose)) = caller.identified
                    && let Ok(socket) = caller.socket()
                    && let Some(slot) = found.slot(WantedConnection { peer, purpose })
                {
                    *slot = Some(socket);
                }
                false
            }
            HandshakeStatus::Closed | HandshakeStatus::Unreachable(_) | HandshakeStatus::Refused(_) => {
                *unauthenticated |= caller.unauthenticated;
                false
            }
        });
    }

    fn progress_outgoing(&mut self) -> Result<(), Error> {
        let membership = self.bootstrap.membership;
        let (found, unauthenticated, mut refusal) = (&mut self.found, &mut self.unauthenticated, None);
        self.outgoing.retain_mut(|(wanted, call)| match call.advance(membership, wanted.peer, wanted.purpose) {
            HandshakeStatus::Waiting => true,
            HandshakeStatus::Unreachable(_) => false,
            HandshakeStatus::Closed => {
                *unauthenticated = true;
                false
            }
            HandshakeStatus::Refused(text) => {
                refusal = Some(text);
                false
            }
            HandshakeStatus::Done => {
                if let Some(slot) = found.slot(*wanted)
                    && slot.is_none()
                {
                    *slot = call.confirm();
                }
                false
            }
        });
        if let Some(text) = refusal {
            return Err(self.bootstrap.failed(text));
        }
        let open =
            |wanted: WantedConnection| self.found.0.iter().any(|(other, socket)| *other == wanted && socket.is_none());
        // Other endpoints of the same rank need not answer any more.
        self.dials.retain(|dial| open(dial.wanted));
        self.outgoing.retain(|(wanted, _)| open(*wanted));
        Ok(())
    }
}
