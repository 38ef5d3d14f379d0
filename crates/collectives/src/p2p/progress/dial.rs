//! Dialling one rank of another host, at all its endpoints in turn, until one answers or none can.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::Rank;
use crate::tcp::connect::OutgoingHandshake;
use crate::tcp::handshake::{HandshakeStatus, Membership, STAGGER};
use crate::tcp::secret::Nonces;
use crate::tcp::stream::Stream;
use crate::tcp::wire::Purpose;

/// Between two calls of a rank that hung up: it is there, and does not know of this generation yet.
const EARLY_RETRY: Duration = Duration::from_millis(20);
/// How long nothing may come from the other endpoints of a rank after one has refused, until the rank counts as gone.
const REFUSED_FOR: Duration = Duration::from_secs(3);

/// What became of calling a rank.
pub(super) enum DialOutcome {
    Waiting,
    Connected(Box<Stream>),
    /// Its port is closed.
    Gone,
    /// It is not of this generation any more.
    Left,
}

/// A rank that is being called, at all its endpoints in turn.
pub(super) struct PeerDial {
    endpoints: Vec<SocketAddr>,
    next: usize,
    pub(super) next_at: Instant,
    pub(super) calls: Vec<OutgoingHandshake>,
    /// Where nobody listens. A member listens from before its address is known until it leaves its group for good.
    refused: Vec<SocketAddr>,
    refused_since: Option<Instant>,
}

impl PeerDial {
    pub(super) fn new(endpoints: Vec<SocketAddr>, now: Instant) -> PeerDial {
        PeerDial { endpoints, next: 0, next_at: now, calls: Vec::new(), refused: Vec::new(), refused_since: None }
    }

    pub(super) fn advance(
        &mut self,
        membership: Membership<'_>,
        peer: Rank,
        nonces: &mut Nonces,
        now: Instant,
    ) -> DialOutcome {
        if self.next_at <= now {
            self.next_at = now + STAGGER;
            let endpoint = self.endpoints[self.next % self.endpoints.len()];
            self.next += 1;
            if self.calls.iter().all(|call| call.endpoint != endpoint) {
                match OutgoingHandshake::dial(endpoint) {
                    Ok(call) => self.calls.push(call),
                    Err(error) => self.note(endpoint, error.kind(), now),
                }
            }
        }
        let (mut outcome, mut unreachable, mut early) = (DialOutcome::Waiting, Vec::new(), None);
        self.calls.retain_mut(|call| match call.advance(membership, peer, Purpose::P2p, nonces) {
            HandshakeStatus::Waiting => true,
            HandshakeStatus::Closed => {
                early = Some(call.endpoint);
                false
            }
            HandshakeStatus::Unreachable(error) => {
                unreachable.push((call.endpoint, error));
                false
            }
            HandshakeStatus::Refused(_) => {
                outcome = DialOutcome::Left;
                false
            }
            HandshakeStatus::Done => {
                if !matches!(outcome, DialOutcome::Connected(_))
                    && let Some(stream) = call.confirm()
                {
                    outcome = DialOutcome::Connected(Box::new(stream));
                }
                false
            }
        });
        if let Some(position) = early.and_then(|early| self.endpoints.iter().position(|endpoint| *endpoint == early)) {
            (self.next, self.next_at) = (position, self.next_at.min(now + EARLY_RETRY));
        }
        unreachable.into_iter().for_each(|(endpoint, error)| self.note(endpoint, error, now));
        if matches!(outcome, DialOutcome::Waiting) && self.is_unreachable(now) { DialOutcome::Gone } else { outcome }
    }

    /// An endpoint could not be reached. Only that somebody says so counts: silence is judged elsewhere.
    fn note(&mut self, endpoint: SocketAddr, error: io::ErrorKind, now: Instant) {
        let says_no = matches!(error, io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset);
        if says_no && !self.refused.contains(&endpoint) {
            self.refused.push(endpoint);
            self.refused_since.get_or_insert(now);
            // The next one need not wait for its turn.
            self.next_at = now;
        }
    }

    fn is_unreachable(&self, now: Instant) -> bool {
        let Some(since) = self.refused_since else { return false };
        let everywhere = self.endpoints.iter().all(|endpoint| self.refused.contains(endpoint));
        let silent =
            now.duration_since(since) >= REFUSED_FOR && !self.calls.iter().any(OutgoingHandshake::is_connected);
        everywhere || silent
    }
}
