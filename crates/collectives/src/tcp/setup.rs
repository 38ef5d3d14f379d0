//! Connection set-up between hosts as a state machine: no sockets, no clock. [`super::bootstrap`] is the shell around it.
//!
//! The higher rank of a pair calls the lower one, at all its endpoints in turn, [`STAGGER`] apart, and keeps calling.
//! Each side proves that it is the one that the other believes it to be, with nonces of both ([`super::handshake`]); the first
//! connection on which both have is taken. Callers that say nothing are closed after a while, and the oldest of them give way
//! where there are many. When the deadline passes, the ranks without a connection are the late ones.
//!
//! The shell calls [`Setup::tick`] when [`Setup::wakeup`] has come, tells what happened to connections, reads no more of one than
//! [`Setup::wanted_bytes`], and performs the [`SetupAction`]s in order. [`Setup::outcome`] says when it is over.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

use instep_noise::Session;

use super::handshake::{
    HandshakeStatus, InitiatorHandshake, MAX_UNIDENTIFIED, Membership, ResponderHandshake, STAGGER, WelcomedHellos,
    gives_way,
};
use super::secret::Nonces;
use super::wire::Purpose;
use crate::partition::NetworkChannels;
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
    /// One to each of these ranks in every channel.
    pub(crate) fn in_channels(
        peers: impl Iterator<Item = Rank> + Clone,
        channels: NetworkChannels,
        purpose: impl Fn(u8) -> Purpose,
    ) -> Vec<WantedConnection> {
        let in_channel = |channel: u8| {
            let purpose = purpose(channel);
            peers.clone().map(move |peer| WantedConnection { peer, purpose })
        };
        channels.numbers().flat_map(in_channel).collect()
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
    handshake: Option<InitiatorHandshake>,
}

/// The set-up of one rank's connections.
pub(super) struct Setup<'a> {
    membership: Membership<'a>,
    wanted: &'a [WantedConnection],
    deadline: Instant,
    /// In the order of `wanted`.
    found: Vec<Option<ConnectionId>>,
    /// Of connections that are encrypted.
    sessions: BTreeMap<ConnectionId, Session>,
    dials: Vec<EndpointDial>,
    outgoing: BTreeMap<ConnectionId, OutgoingCall>,
    incoming: BTreeMap<ConnectionId, ResponderHandshake>,
    next_id: ConnectionId,
    nonces: Nonces,
    welcomed: WelcomedHellos,
    actions: VecDeque<SetupAction>,
    /// Somebody hung up who was called as a member, or called without being one.
    unauthenticated: bool,
    refusal: Option<String>,
}

impl<'a> Setup<'a> {
    pub(super) fn new(
        membership: Membership<'a>,
        wanted: &'a [WantedConnection],
        nonces: Nonces,
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
            sessions: BTreeMap::new(),
            dials,
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            next_id: 0,
            nonces,
            welcomed: WelcomedHellos::default(),
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
        let by_rail = self.wanted.iter().any(|wanted| matches!(wanted.purpose, Purpose::Rail(_)));
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
        let incoming = self.incoming.values().map(ResponderHandshake::deadline);
        dials.chain(incoming).fold(self.deadline, Instant::min)
    }

    /// Calls the next endpoint of every connection that is still open, and gives up incoming ones that say nothing.
    pub(super) fn tick(&mut self, now: Instant) {
        for index in 0..self.dials.len() {
            let dial = &self.dials[index];
            if dial.next_at > now || !self.is_open(dial.wanted) {
                continue;
            }
            let (wanted, endpoint) = (dial.wanted, dial.endpoints[dial.next % dial.endpoints.len()]);
            self.dials[index].next += 1;
            self.dials[index].next_at = now + STAGGER;
            if self.outgoing.values().all(|call| (call.wanted, call.endpoint) != (wanted, endpoint)) {
                let id = self.new_id();
                self.outgoing.insert(id, OutgoingCall { wanted, endpoint, handshake: None });
                self.actions.push_back(SetupAction::Dial { id, endpoint });
            }
        }
        let silent = |one: &ResponderHandshake| now >= one.deadline();
        let expired: Vec<_> = self.incoming.iter().filter(|(_, one)| silent(one)).map(|(id, _)| *id).collect();
        expired.into_iter().for_each(|id| self.drop_incoming(id));
    }

    /// Somebody called. Of too many incoming connections another one is closed for it: see [`gives_way`].
    pub(super) fn accepted(&mut self, now: Instant) -> ConnectionId {
        if self.incoming.len() >= 2 * self.wanted.len() + MAX_UNIDENTIFIED
            && let Some(other) = gives_way(self.incoming.iter().map(|(id, one)| (*id, one.claimed())))
        {
            self.drop_incoming(other);
        }
        let id = self.new_id();
        self.incoming.insert(id, ResponderHandshake::new(now, self.nonces.draw()));
        id
    }

    /// A call has reached somebody.
    pub(super) fn connected(&mut self, id: ConnectionId) {
        let Some(call) = self.outgoing.get_mut(&id) else { return };
        let WantedConnection { peer, purpose } = call.wanted;
        match InitiatorHandshake::new(self.membership, peer, purpose, self.nonces.draw()) {
            Ok(handshake) => {
                self.actions.push_back(SetupAction::Send { id, bytes: handshake.hello().to_vec() });
                call.handshake = Some(handshake);
            }
            Err(error) => self.refusal = Some(error.to_string()),
        }
    }

    /// How much of a connection is to be read now; what follows belongs to whoever gets the connection.
    pub(super) fn wanted_bytes(&self, id: ConnectionId) -> usize {
        let call = self.outgoing.get(&id).and_then(|call| call.handshake.as_ref()).map(InitiatorHandshake::wanted);
        call.or_else(|| self.incoming.get(&id).map(ResponderHandshake::wanted)).unwrap_or(0)
    }

    /// Bytes of a connection, no more than wanted.
    pub(super) fn received(&mut self, id: ConnectionId, bytes: &[u8]) {
        if let Some(call) = self.outgoing.get_mut(&id) {
            let (wanted, Some(handshake)) = (call.wanted, &mut call.handshake) else { return };
            match handshake.feed(bytes) {
                HandshakeStatus::Waiting => {}
                HandshakeStatus::Done => {
                    let (bytes, session) = (handshake.confirmation().to_vec(), handshake.take_session());
                    self.outgoing.remove(&id);
                    if self.is_open(wanted) {
                        self.sessions.extend(session.map(|session| (id, session)));
                        self.actions.push_back(SetupAction::Send { id, bytes });
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
        } else if let Some(one) = self.incoming.get_mut(&id) {
            let (membership, wanted) = (self.membership, self.wanted);
            let expects = |peer: Rank, purpose: Purpose| {
                peer > membership.rank && wanted.contains(&WantedConnection { peer, purpose })
            };
            let (status, reply) = one.feed(bytes, membership, expects, None, &mut self.welcomed);
            if !reply.is_empty() {
                self.actions.push_back(SetupAction::Send { id, bytes: reply });
            }
            match status {
                HandshakeStatus::Waiting => {}
                HandshakeStatus::Done => {
                    let (claimed, session) = (one.claimed(), one.take_session());
                    self.incoming.remove(&id);
                    if let Some((peer, purpose)) = claimed {
                        self.sessions.extend(session.map(|session| (id, session)));
                        self.take(WantedConnection { peer, purpose }, id);
                    }
                }
                HandshakeStatus::Closed | HandshakeStatus::Unreachable(_) | HandshakeStatus::Refused(_) => {
                    self.unauthenticated |= one.is_unauthenticated();
                    self.drop_incoming(id);
                }
            }
        }
    }

    /// A connection is over, or was never there.
    pub(super) fn closed(&mut self, id: ConnectionId) {
        if let Some(call) = self.outgoing.remove(&id) {
            // Nobody at an endpoint means nothing; a member that was greeted and hung up may not know the secret.
            self.unauthenticated |= call.handshake.is_some();
        }
        if let Some(one) = self.incoming.remove(&id) {
            self.unauthenticated |= one.is_unauthenticated();
        }
        // It could not be confirmed: it is sought again.
        self.found.iter_mut().filter(|found| **found == Some(id)).for_each(|found| *found = None);
    }

    /// How a connection that was found is encrypted, if it is.
    pub(super) fn take_session(&mut self, id: ConnectionId) -> Option<Session> {
        self.sessions.remove(&id)
    }

    fn new_id(&mut self) -> ConnectionId {
        self.next_id += 1;
        self.next_id
    }

    fn is_open(&self, wanted: WantedConnection) -> bool {
        self.wanted.iter().zip(&self.found).any(|(other, found)| *other == wanted && found.is_none())
    }

    fn drop_incoming(&mut self, id: ConnectionId) {
        self.incoming.remove(&id);
        self.actions.push_back(SetupAction::Close { id });
    }

    /// This connection is the one; others to the same rank need not answer any more.
    fn take(&mut self, wanted: WantedConnection, id: ConnectionId) {
        let Some(index) = self.wanted.iter().position(|other| *other == wanted) else { return };
        let before = self.found[index].replace(id);
        let others: Vec<_> =
            self.outgoing.iter().filter(|(_, call)| call.wanted == wanted).map(|(id, _)| *id).collect();
        for other in others.into_iter().chain(before) {
            self.outgoing.remove(&other);
            self.actions.push_back(SetupAction::Close { id: other });
        }
    }
}

#[cfg(test)]
mod tests;
