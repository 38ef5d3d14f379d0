//! Connection set-up between hosts as a state machine: no sockets, no clock. [`super::bootstrap`] is the shell around it.
//!
//! The higher rank of a pair calls the lower one, at all its endpoints in turn, [`STAGGER`] apart, and keeps calling.
//! Whoever answers must know the caller's token; the first that does is taken, and gets a confirmation. A call that nobody
//! says hello on is closed after `HELLO_DEADLINE`. When the deadline passes, the ranks without a connection are the late ones.
//!
//! The shell calls [`Setup::tick`] when [`Setup::wakeup`] has come, tells what happened to connections, reads no more of one than
//! [`Setup::wanted_bytes`], and performs the [`SetupAction`]s in order. [`Setup::outcome`] says when it is over.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

use super::handshake::{CalledHandshake, CallerHandshake, HandshakeStatus, MAX_UNIDENTIFIED, Membership, STAGGER};
use super::wire::{CONFIRMATION, Purpose};
use crate::rank::join_ranks;
use crate::{Error, Rank};

/// A connection, by the number that the machine gave it.
pub(super) type ConnectionId = usize;

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SetupAction {
    /// Begin to connect; [`Setup::connected`] or [`Setup::closed`] says how it went.
    Dial {
        id: ConnectionId,
        endpoint: SocketAddr,
    },
    /// [`Setup::closed`] if it cannot be sent.
    Send {
        id: ConnectionId,
        bytes: Vec<u8>,
    },
    Close {
        id: ConnectionId,
    },
}

/// How far the set-up is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SetupOutcome {
    Waiting,
    /// The connections, in the order in which they were wanted.
    Connected(Vec<ConnectionId>),
    /// Who is late, or why a member refused.
    Failed(String),
}

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

/// A connection that this rank has to open, and where it tries next.
struct EndpointDial {
    wanted: WantedConnection,
    endpoints: Vec<SocketAddr>,
    next: usize,
    next_at: Instant,
}

/// A call of this rank.
struct OutgoingCall {
    wanted: WantedConnection,
    endpoint: SocketAddr,
    /// None until the connection is there and the hello is out.
    handshake: Option<CallerHandshake>,
}

/// The set-up of one rank's connections.
pub(super) struct Setup<'a> {
    membership: Membership<'a>,
    wanted: &'a [WantedConnection],
    deadline: Instant,
    /// In the order of `wanted`.
    found: Vec<Option<ConnectionId>>,
    dials: Vec<EndpointDial>,
    calls: BTreeMap<ConnectionId, OutgoingCall>,
    callers: BTreeMap<ConnectionId, CalledHandshake>,
    next_id: ConnectionId,
    actions: VecDeque<SetupAction>,
    /// Somebody hung up who was called as a member, or called without being one.
    unauthenticated: bool,
    refusal: Option<String>,
}

impl<'a> Setup<'a> {
    pub(super) fn new(
        membership: Membership<'a>,
        wanted: &'a [WantedConnection],
        now: Instant,
        deadline: Instant,
    ) -> Result<Setup<'a>, Error> {
        let mut dials = Vec::new();
        // The higher rank calls.
        for &wanted in wanted.iter().filter(|wanted| wanted.peer < membership.rank) {
            let endpoints = membership.endpoints(wanted.peer, wanted.purpose)?;
            dials.push(EndpointDial { wanted, endpoints, next: 0, next_at: now });
        }
        Ok(Setup {
            membership,
            wanted,
            deadline,
            found: vec![None; wanted.len()],
            dials,
            calls: BTreeMap::new(),
            callers: BTreeMap::new(),
            next_id: 0,
            actions: VecDeque::new(),
            unauthenticated: false,
            refusal: None,
        })
    }

    pub(super) fn next_action(&mut self) -> Option<SetupAction> {
        self.actions.pop_front()
    }

    pub(super) fn outcome(&self, now: Instant) -> SetupOutcome {
        if let Some(refusal) = &self.refusal {
            return SetupOutcome::Failed(refusal.clone());
        }
        if let Some(found) = self.found.iter().copied().collect::<Option<Vec<_>>>() {
            return SetupOutcome::Connected(found);
        }
        if now < self.deadline {
            return SetupOutcome::Waiting;
        }
        let open = self.wanted.iter().zip(&self.found).filter(|(_, found)| found.is_none());
        let mut late: Vec<Rank> = open.map(|(wanted, _)| wanted.peer).collect();
        late.sort_unstable();
        late.dedup();
        let by_rail = self.wanted.iter().any(|wanted| wanted.purpose == Purpose::Rail);
        let hint = if self.unauthenticated {
            "\nhint: ranks refused each other's connections: is INSTEP_SECRET the same on all?"
        } else if by_rail {
            "\nhint: a rank that waits for others on its host does not arrive either; their errors name the missing ranks"
        } else {
            ""
        };
        SetupOutcome::Failed(format!("rank {} did not arrive{hint}", join_ranks(&late)))
    }

    /// When to [tick](Setup::tick) at the latest.
    pub(super) fn wakeup(&self) -> Instant {
        let dials = self.dials.iter().filter(|dial| self.is_open(dial.wanted)).map(|dial| dial.next_at);
        let callers = self.callers.values().filter_map(CalledHandshake::hello_deadline);
        dials.chain(callers).fold(self.deadline, Instant::min)
    }

    /// Calls the next endpoint of every connection that is still open, and gives up callers that say nothing.
    pub(super) fn tick(&mut self, now: Instant) {
        for index in 0..self.dials.len() {
            let dial = &self.dials[index];
            if dial.next_at > now || !self.is_open(dial.wanted) {
                continue;
            }
            let (wanted, endpoint) = (dial.wanted, dial.endpoints[dial.next % dial.endpoints.len()]);
            self.dials[index].next += 1;
            self.dials[index].next_at = now + STAGGER;
            if self.calls.values().all(|call| (call.wanted, call.endpoint) != (wanted, endpoint)) {
                let id = self.new_id();
                self.calls.insert(id, OutgoingCall { wanted, endpoint, handshake: None });
                self.actions.push_back(SetupAction::Dial { id, endpoint });
            }
        }
        let silent = |caller: &CalledHandshake| caller.hello_deadline().is_some_and(|until| now >= until);
        let expired: Vec<_> = self.callers.iter().filter(|(_, caller)| silent(caller)).map(|(id, _)| *id).collect();
        expired.into_iter().for_each(|id| self.drop_caller(id));
    }

    /// Somebody called; `None` if there are too many callers, and this one is to be let go.
    pub(super) fn accepted(&mut self, now: Instant) -> Option<ConnectionId> {
        if self.callers.len() >= 2 * self.wanted.len() + MAX_UNIDENTIFIED {
            return None;
        }
        let id = self.new_id();
        self.callers.insert(id, CalledHandshake::new(now));
        Some(id)
    }

    /// A call has reached somebody.
    pub(super) fn connected(&mut self, id: ConnectionId) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let WantedConnection { peer, purpose } = call.wanted;
        call.handshake = Some(CallerHandshake::new(self.membership, peer));
        let bytes = self.membership.hello(peer, purpose).to_bytes().to_vec();
        self.actions.push_back(SetupAction::Send { id, bytes });
    }

    /// How much of a connection is to be read now; what follows belongs to whoever gets the connection.
    pub(super) fn wanted_bytes(&self, id: ConnectionId) -> usize {
        let call = self.calls.get(&id).and_then(|call| call.handshake.as_ref()).map(CallerHandshake::wanted);
        call.or_else(|| self.callers.get(&id).map(CalledHandshake::wanted)).unwrap_or(0)
    }

    /// Bytes of a connection, no more than wanted.
    pub(super) fn received(&mut self, id: ConnectionId, bytes: &[u8]) {
        if let Some(call) = self.calls.get_mut(&id) {
            let (wanted, Some(handshake)) = (call.wanted, &mut call.handshake) else { return };
            match handshake.feed(bytes) {
                HandshakeStatus::Waiting => {}
                HandshakeStatus::Done => {
                    self.calls.remove(&id);
                    if self.is_open(wanted) {
                        self.actions.push_back(SetupAction::Send { id, bytes: CONFIRMATION.to_vec() });
                        self.take(wanted, id);
                    } else {
                        self.actions.push_back(SetupAction::Close { id });
                    }
                }
                HandshakeStatus::Refused(text) => self.refusal = Some(text),
                HandshakeStatus::Closed | HandshakeStatus::Unreachable(_) => {
                    self.closed(id);
                    self.actions.push_back(SetupAction::Close { id });
                }
            }
        } else if let Some(caller) = self.callers.get_mut(&id) {
            let (membership, wanted) = (self.membership, self.wanted);
            let expects = |peer: Rank, purpose: Purpose| {
                peer > membership.rank && wanted.contains(&WantedConnection { peer, purpose })
            };
            let (status, reply) = caller.feed(bytes, membership, expects, None);
            if !reply.is_empty() {
                self.actions.push_back(SetupAction::Send { id, bytes: reply });
            }
            match status {
                HandshakeStatus::Waiting => {}
                HandshakeStatus::Done => {
                    let identified = caller.identified();
                    self.callers.remove(&id);
                    if let Some((peer, purpose)) = identified {
                        self.take(WantedConnection { peer, purpose }, id);
                    }
                }
                HandshakeStatus::Closed | HandshakeStatus::Unreachable(_) | HandshakeStatus::Refused(_) => {
                    self.unauthenticated |= caller.is_unauthenticated();
                    self.drop_caller(id);
                }
            }
        }
    }

    /// A connection is over, or was never there.
    pub(super) fn closed(&mut self, id: ConnectionId) {
        if let Some(call) = self.calls.remove(&id) {
            // Nobody at an endpoint means nothing; a member that was greeted and hung up may not know the secret.
            self.unauthenticated |= call.handshake.is_some();
        }
        if let Some(caller) = self.callers.remove(&id) {
            self.unauthenticated |= caller.is_unauthenticated();
        }
        // It could not be confirmed: it is sought again.
        self.found.iter_mut().filter(|found| **found == Some(id)).for_each(|found| *found = None);
    }

    fn new_id(&mut self) -> ConnectionId {
        self.next_id += 1;
        self.next_id
    }

    fn is_open(&self, wanted: WantedConnection) -> bool {
        self.wanted.iter().zip(&self.found).any(|(other, found)| *other == wanted && found.is_none())
    }

    fn drop_caller(&mut self, id: ConnectionId) {
        self.callers.remove(&id);
        self.actions.push_back(SetupAction::Close { id });
    }

    /// This connection is the one; others to the same rank need not answer any more.
    fn take(&mut self, wanted: WantedConnection, id: ConnectionId) {
        let Some(index) = self.wanted.iter().position(|other| *other == wanted) else { return };
        let before = self.found[index].replace(id);
        let others: Vec<_> = self.calls.iter().filter(|(_, call)| call.wanted == wanted).map(|(id, _)| *id).collect();
        for other in others.into_iter().chain(before) {
            self.calls.remove(&other);
            self.actions.push_back(SetupAction::Close { id: other });
        }
    }
}

#[cfg(test)]
mod tests;
