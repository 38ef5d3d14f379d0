//! Connections with other hosts, opened when the first message or receive needs them.
//!
//! Either of two ranks may call; if both do at once, there are two connections, and each writes to the one it has first.
//! The port for messages is the rank's own over all generations of its group: who calls for an earlier one is told that this
//! rank has left it, who is ahead calls again.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use super::dial::{DialOutcome, PeerDial};
use super::{Disconnect, ProgressEnd, ProgressThread};
use crate::p2p::config::{P2pConfig, P2pListener};
use crate::p2p::link::Link;
use crate::socket::{ACCEPT_PAUSE, linger, poll_timeout};
use crate::sync::lock;
use crate::tcp::connect::{IncomingHandshake, OutgoingHandshake};
use crate::tcp::handshake::{
    HELLO_DEADLINE, HandshakeStatus, MAX_ACCEPTED_AT_ONCE, MAX_UNIDENTIFIED, Membership, STAGGER, WelcomedHellos,
    gives_way,
};
use crate::tcp::secret::Nonces;
use crate::tcp::stream::Stream;
use crate::tcp::wire::Purpose;
use crate::{LossCause, Rank};

/// A rank that goes may have told others why, and they this one: so long that is waited for.
const REASON: Duration = Duration::from_millis(300);

impl P2pConfig {
    /// The listener of this rank, and who may call it, where messages go over the network.
    fn network(&self) -> Option<(&TcpListener, Membership<'_>)> {
        let &P2pListener::Network { ref listener, ref secret, encrypt } = &self.listener else { return None };
        let &P2pConfig { rank, ref addresses, generation, .. } = self;
        Some((listener, Membership { rank, addresses, generation, secret: secret.as_ref(), encrypt }))
    }
}

impl ProgressThread {
    /// Begins to dial a rank of another host.
    pub(super) fn start_dial(&mut self, peer: Rank) {
        let Some((_, membership)) = self.config.network() else { return };
        match membership.endpoints(peer, Purpose::P2p) {
            Ok(endpoints) => self.peers[peer.0].dialing = Some(PeerDial::new(endpoints, Instant::now())),
            // Every rank had some when the group was connected.
            Err(_) => self.peers[peer.0].disconnect = Disconnect::now(LossCause::ConnectionClosed),
        }
        self.advance_dial(peer);
    }

    /// Goes on with all dials.
    pub(super) fn advance_dials(&mut self) {
        for peer in Rank::all(self.peers.len()) {
            self.advance_dial(peer);
        }
    }

    fn advance_dial(&mut self, peer: Rank) {
        let Some((_, membership)) = self.config.network() else { return };
        let Some(dialing) = &mut self.peers[peer.0].dialing else { return };
        let disconnect = match dialing.advance(membership, peer, &mut self.nonces, Instant::now()) {
            DialOutcome::Waiting => return,
            DialOutcome::Connected(stream) => return self.connected(*stream, peer),
            DialOutcome::Gone => LossCause::ConnectionClosed,
            DialOutcome::Left => LossCause::LeftGroup,
        };
        self.peers[peer.0].dialing = None;
        self.peers[peer.0].disconnect = Disconnect::now(disconnect);
    }

    /// There is a connection to a peer, whoever called.
    fn connected(&mut self, stream: Stream, peer: Rank) {
        let key = self.add(Link::dialed(stream, peer, 0, Vec::new(), Instant::now()));
        self.peers[peer.0].out.get_or_insert(key);
        self.peers[peer.0].dialing = None;
    }

    /// Accepts callers, and finds out who they are.
    pub(super) fn accept_remote(&mut self) {
        let Some((listener, membership)) = self.config.network() else { return };
        let most = 2 * self.peers.len() + MAX_UNIDENTIFIED;
        if !accept(listener, &mut self.callers, &mut self.nonces, (most, MAX_ACCEPTED_AT_ONCE)) {
            self.accept_paused_until = Some(Instant::now() + ACCEPT_PAUSE);
        }
        let mut identified = Vec::new();
        let expects = |peer: Rank, purpose: Purpose| {
            let links = self.links.values().filter(|link| link.peer == Some(peer)).count();
            purpose == Purpose::P2p && peer != membership.rank && links < 2
        };
        let welcomed = &mut self.welcomed;
        let let_in = |stream, peer| identified.push((stream, peer));
        advance_callers(&mut self.callers, membership, expects, None, welcomed, let_in);
        for (stream, peer) in identified {
            self.connected(stream, peer);
        }
    }

    /// Whether a peer has called, and may have sent something that was not read.
    pub(super) fn has_caller(&self, peer: Rank) -> bool {
        self.callers.iter().any(|caller| caller.claimed().is_some_and(|(claimed, _)| claimed == peer))
    }

    /// When somebody is to be called, or given up, if nothing happens before.
    pub(super) fn next_dial(&self) -> Option<Instant> {
        let calls = self.peers.iter().filter_map(|state| state.dialing.as_ref().map(|dialing| dialing.next_at));
        calls.chain(self.callers.iter().map(IncomingHandshake::deadline)).min()
    }

    /// What to poll for: callers, their hellos, and answers to this rank's calls.
    pub(super) fn connector_handles(&self) -> Vec<PollFd<'_>> {
        let Some((listener, _)) = self.config.network() else { return Vec::new() };
        let accepts = self.accept_paused_until.is_none();
        let network = accepts.then(|| PollFd::new(listener.as_fd(), PollFlags::POLLIN));
        let calls = self.peers.iter().filter_map(|state| state.dialing.as_ref()).flat_map(|dialing| &dialing.calls);
        network
            .into_iter()
            .chain(self.callers.iter().map(IncomingHandshake::handle))
            .chain(calls.map(OutgoingHandshake::handle))
            .collect()
    }

    /// The rank leaves in good order: who has called and waits is told.
    pub(super) fn refuse_callers(&mut self) {
        let Some((listener, membership)) = self.config.network() else { return };
        let most = MAX_UNIDENTIFIED + 2 * membership.addresses.len();
        accept(listener, &mut self.callers, &mut self.nonces, (most, most));
        let text = format!("rank {} has left the group", membership.rank);
        let expects = |_: Rank, purpose: Purpose| purpose == Purpose::P2p;
        advance_callers(&mut self.callers, membership, expects, Some(&text), &mut self.welcomed, |_, _| {});
        self.callers.clear();
    }

    /// The group is aborted, and nothing is under way: who calls is told why, until the messages of this generation are dropped.
    pub(super) fn refuse_until_closed(&mut self, final_message: &[u8]) {
        let mut refused: Vec<Stream> = Vec::new();
        while let Some((listener, membership)) = self.config.network()
            && !lock(&self.shared.inbox).closing
        {
            let most = MAX_UNIDENTIFIED + 2 * membership.addresses.len();
            let open = accept(listener, &mut self.callers, &mut self.nonces, (most, MAX_ACCEPTED_AT_ONCE));
            let rank = membership.rank;
            let expects = |peer: Rank, purpose: Purpose| purpose == Purpose::P2p && peer != rank;
            let welcomed = &mut self.welcomed;
            advance_callers(&mut self.callers, membership, expects, None, welcomed, |mut stream, _| {
                stream.send_all(final_message, Instant::now());
                refused.push(stream);
            });
            let mut handles = vec![PollFd::new(self.shared.wake.as_fd(), PollFlags::POLLIN)];
            if open {
                handles.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
            }
            handles.extend(self.callers.iter().map(IncomingHandshake::handle));
            // Without room for callers, accepting is tried again now and then.
            let again = (!open).then(|| Instant::now() + STAGGER);
            let until = self.callers.iter().map(IncomingHandshake::deadline).chain(again).min();
            let wait = until.map(|until| until.saturating_duration_since(Instant::now()));
            // An error of poll is a signal, or no memory: look again.
            let _ = poll(&mut handles, wait.map_or(nix::poll::PollTimeout::NONE, poll_timeout));
            let _ = self.shared.wake.read();
        }
        linger(refused.iter());
        self.callers.clear();
    }

    /// Peers without a connection are gone, once all that they wrote is read.
    pub(super) fn reap_remote(&mut self) -> Result<(), ProgressEnd> {
        self.accept_remote();
        for peer in Rank::all(self.peers.len()) {
            let Some(Disconnect { noticed, since }) = self.peers[peer.0].disconnect else { continue };
            // What a caller claims may be an old hello of the peer: it does not hold this up for long.
            if self.has_caller(peer) && since.elapsed() < HELLO_DEADLINE {
                continue;
            }
            let linked = self.links.values().any(|link| link.peer == Some(peer));
            if !linked && noticed != LossCause::LeftGroup && since.elapsed() < REASON {
                continue;
            }
            self.peers[peer.0].disconnect = None;
            if !linked {
                self.peer_lost(peer, noticed)?;
            }
        }
        Ok(())
    }
}

/// Accepts who has called, of too many in place of others ([`gives_way`]); whether that went well.
fn accept(
    listener: &TcpListener,
    callers: &mut Vec<IncomingHandshake>,
    nonces: &mut Nonces,
    (most, at_once): (usize, usize),
) -> bool {
    for _ in 0..at_once {
        match listener.accept() {
            Ok((socket, _)) => {
                let numbered = callers.iter().map(IncomingHandshake::claimed).enumerate();
                if callers.len() >= most
                    && let Some(other) = gives_way(numbered)
                {
                    callers.remove(other);
                }
                callers.push(IncomingHandshake::new(socket, nonces));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            // Gone before it was let in.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            // Out of descriptors, most likely.
            Err(_) => return false,
        }
    }
    true
}

/// Goes on with the handshakes of all callers, and gives away the connections of those that are let in.
fn advance_callers(
    callers: &mut Vec<IncomingHandshake>,
    membership: Membership<'_>,
    expects: impl Fn(Rank, Purpose) -> bool,
    closing: Option<&str>,
    welcomed: &mut WelcomedHellos,
    mut let_in: impl FnMut(Stream, Rank),
) {
    callers.retain_mut(|caller| match caller.advance(membership, &expects, closing, welcomed) {
        HandshakeStatus::Waiting => true,
        HandshakeStatus::Done => {
            if let (Some((peer, _)), Ok(stream)) = (caller.claimed(), caller.stream()) {
                let_in(stream, peer);
            }
            false
        }
        HandshakeStatus::Closed | HandshakeStatus::Unreachable(_) | HandshakeStatus::Refused(_) => false,
    });
}
