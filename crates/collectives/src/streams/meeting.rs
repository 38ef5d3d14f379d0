//! How ranks of several hosts come together: pairs of them get a connection for every purpose they have.
//!
//! The higher rank of a pair calls the lower one, at all its endpoints in turn, a little after each other, and keeps
//! calling. Whoever answers must know the caller's token; the first that does is taken, and told so. A rank is done when it
//! has all its connections, and keeps nothing of a meeting that failed.
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use super::introduction::{Heard, Incoming, MOST_STRANGERS, Members, Outgoing, STAGGER, tune};
use super::wire::Purpose;
use crate::Error;
use crate::socket::poll_timeout;

/// A meeting of ranks, as one of them sees it.
pub(crate) struct Meeting<'a> {
    pub(crate) listener: &'a TcpListener,
    pub(crate) members: Members<'a>,
    /// The connections that this rank is to have; the other side wants them, too.
    pub(crate) wanted: &'a [Wanted],
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

    fn slot(&mut self, wanted: Wanted) -> Option<&mut Option<TcpStream>> {
        self.0.iter_mut().find(|(other, _)| *other == wanted).map(|(_, socket)| socket)
    }
}

/// Where a connection is sought.
struct Search {
    wanted: Wanted,
    endpoints: Vec<SocketAddr>,
    next: usize,
    next_at: Instant,
}

struct State<'a> {
    meeting: &'a Meeting<'a>,
    found: Connections,
    searches: Vec<Search>,
    outgoing: Vec<(Wanted, Outgoing)>,
    incoming: Vec<Incoming>,
    /// Somebody hung up who was called as a member, or called without being one.
    strangers: bool,
}

impl Meeting<'_> {
    /// Comes together with the other ranks.
    pub(crate) fn hold(&self) -> Result<Connections, Error> {
        let mut searches = Vec::new();
        for &wanted in self.wanted.iter().filter(|wanted| wanted.peer < self.members.rank) {
            let endpoints = self.members.endpoints(wanted.peer, wanted.purpose)?;
            searches.push(Search { wanted, endpoints, next: 0, next_at: Instant::now() });
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
                let by_rail = self.wanted.iter().any(|wanted| wanted.purpose == Purpose::Rail);
                let hint = if state.strangers {
                    "\nhint: ranks refused each other's connections: is INSTEP_SECRET the same on all?"
                } else if by_rail {
                    "\nhint: a rank that waits for others on its host does not arrive either; their errors name the missing ranks"
                } else {
                    ""
                };
                return Err(self.failed(format!("rank {} did not arrive{hint}", names.join(", "))));
            }
            state.call();
            state.sleep();
            state.accept();
            state.hear_callers();
            state.hear_answers()?;
        }
    }

    fn failed(&self, what: impl Into<String>) -> Error {
        Error::Connect { timeout: self.timeout, what: what.into() }
    }
}

impl State<'_> {
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
            let calls = |(wanted, call): &(Wanted, Outgoing)| *wanted == search.wanted && call.endpoint == endpoint;
            if self.outgoing.iter().any(calls) {
                continue;
            }
            if let Ok(call) = Outgoing::dial(endpoint) {
                self.outgoing.push((search.wanted, call));
            }
        }
    }

    fn sleep(&self) {
        let mut handles = vec![PollFd::new(self.meeting.listener.as_fd(), PollFlags::POLLIN)];
        handles.extend(self.outgoing.iter().map(|(_, call)| call.handle()));
        handles.extend(self.incoming.iter().map(Incoming::handle));
        let now = Instant::now();
        let mut until = self.meeting.deadline;
        until = self.searches.iter().map(|search| search.next_at).fold(until, Instant::min);
        until = self.incoming.iter().filter_map(Incoming::patience).fold(until, Instant::min);
        // An error of poll is a signal, or no memory: look again.
        let _ = poll(&mut handles, poll_timeout(until.saturating_duration_since(now)));
    }

    fn accept(&mut self) {
        while let Ok((socket, _)) = self.meeting.listener.accept() {
            if self.incoming.len() < 2 * self.meeting.wanted.len() + MOST_STRANGERS {
                self.incoming.push(Incoming::new(socket));
            }
        }
    }

    fn hear_callers(&mut self) {
        let (members, wanted) = (self.meeting.members, self.meeting.wanted);
        // The higher rank calls.
        let expects = |peer: usize, purpose: Purpose| peer > members.rank && wanted.contains(&Wanted { peer, purpose });
        let (found, strangers) = (&mut self.found, &mut self.strangers);
        self.incoming.retain_mut(|caller| match caller.hear(members, expects, None) {
            Heard::Waiting => true,
            Heard::Done => {
                if let Some((peer, purpose)) = caller.known
                    && let Ok(socket) = caller.socket()
                    && let Some(slot) = found.slot(Wanted { peer, purpose })
                {
                    *slot = Some(socket);
                }
                false
            }
            Heard::Over | Heard::Unreachable(_) | Heard::Refused(_) => {
                *strangers |= caller.introduced;
                false
            }
        });
    }

    fn hear_answers(&mut self) -> Result<(), Error> {
        let members = self.meeting.members;
        let (found, strangers, mut refusal) = (&mut self.found, &mut self.strangers, None);
        self.outgoing.retain_mut(|(wanted, call)| match call.hear(members, wanted.peer, wanted.purpose) {
            Heard::Waiting => true,
            Heard::Unreachable(_) => false,
            Heard::Over => {
                *strangers = true;
                false
            }
            Heard::Refused(text) => {
                refusal = Some(text);
                false
            }
            Heard::Done => {
                if let Some(slot) = found.slot(*wanted)
                    && slot.is_none()
                {
                    *slot = call.confirm();
                }
                false
            }
        });
        if let Some(text) = refusal {
            return Err(self.meeting.failed(text));
        }
        let open = |wanted: Wanted| self.found.0.iter().any(|(other, socket)| *other == wanted && socket.is_none());
        // Other endpoints of the same rank need not answer any more.
        self.searches.retain(|search| open(search.wanted));
        self.outgoing.retain(|(wanted, _)| open(*wanted));
        Ok(())
    }
}
