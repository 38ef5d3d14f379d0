//! Connections with other hosts, opened when the first message or receive needs them.
//!
//! Either of two ranks may call; if both do at once, there are two connections, and each writes to the one it has first.
//! The port for messages is the rank's own over all generations of its group: who calls for an earlier one hears that this
//! rank has left it, who is ahead calls again.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use super::{Carrier, DEAF_FOR, End, Ending};
use crate::Noticed;
use crate::mail::link::Link;
use crate::mail::wire::Purpose;
use crate::mail::{Setup, Ways};
use crate::queue::lock;
use crate::socket::{linger, poll_timeout, send_all};
use crate::streams::introduction::{Heard, Incoming, MOST_STRANGERS, Members, Outgoing, STAGGER, tune};

/// Between two calls of a rank that hung up: it is there, and does not know of this generation yet.
const EARLY_PAUSE: Duration = Duration::from_millis(20);
/// How long nothing may come from the other endpoints of a rank after one has refused, until the rank counts as gone.
const NOBODY: Duration = Duration::from_secs(3);

/// A rank that goes may have told others why, and they this one: so long that is waited for.
const REASON: Duration = Duration::from_millis(300);

/// What became of calling a rank.
enum Outcome {
    Waiting,
    Connected(TcpStream),
    /// Its port is closed.
    Gone,
    /// It is not of this generation any more.
    Left,
}

/// A rank that is being called, at all its endpoints in turn.
pub(super) struct Calling {
    endpoints: Vec<SocketAddr>,
    next: usize,
    next_at: Instant,
    calls: Vec<Outgoing>,
    /// Where nobody listens. A member listens from before its address is known until it leaves its group for good.
    refused: Vec<SocketAddr>,
    refused_since: Option<Instant>,
}

impl Calling {
    fn new(endpoints: Vec<SocketAddr>, now: Instant) -> Calling {
        Calling { endpoints, next: 0, next_at: now, calls: Vec::new(), refused: Vec::new(), refused_since: None }
    }

    fn go_on(&mut self, members: Members<'_>, peer: usize, now: Instant) -> Outcome {
        if self.next_at <= now {
            self.next_at = now + STAGGER;
            let endpoint = self.endpoints[self.next % self.endpoints.len()];
            self.next += 1;
            if self.calls.iter().all(|call| call.endpoint != endpoint) {
                match Outgoing::dial(endpoint) {
                    Ok(call) => self.calls.push(call),
                    Err(error) => self.note(endpoint, error.kind(), now),
                }
            }
        }
        let (mut outcome, mut unreachable, mut early) = (Outcome::Waiting, Vec::new(), None);
        self.calls.retain_mut(|call| match call.hear(members, peer, Purpose::Mail) {
            Heard::Waiting => true,
            Heard::Over => {
                early = Some(call.endpoint);
                false
            }
            Heard::Unreachable(error) => {
                unreachable.push((call.endpoint, error));
                false
            }
            Heard::Refused(_) => {
                outcome = Outcome::Left;
                false
            }
            Heard::Done => {
                if !matches!(outcome, Outcome::Connected(_))
                    && let Some(socket) = call.confirm()
                {
                    outcome = Outcome::Connected(socket);
                }
                false
            }
        });
        if let Some(place) = early.and_then(|early| self.endpoints.iter().position(|endpoint| *endpoint == early)) {
            (self.next, self.next_at) = (place, self.next_at.min(now + EARLY_PAUSE));
        }
        unreachable.into_iter().for_each(|(endpoint, error)| self.note(endpoint, error, now));
        if matches!(outcome, Outcome::Waiting) && self.is_nobody_there(now) { Outcome::Gone } else { outcome }
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

    fn is_nobody_there(&self, now: Instant) -> bool {
        let Some(since) = self.refused_since else { return false };
        let everywhere = self.endpoints.iter().all(|endpoint| self.refused.contains(endpoint));
        let silent = now.duration_since(since) >= NOBODY && !self.calls.iter().any(Outgoing::is_connected);
        everywhere || silent
    }
}

impl Setup {
    /// The listener of this rank, and who may call it, where messages go over the network.
    fn door(&self) -> Option<(&TcpListener, Members<'_>)> {
        let Ways::Network { listener, secret } = &self.ways else { return None };
        let Setup { rank, addresses, generation, .. } = self;
        Some((listener, Members { rank: *rank, addresses, generation: *generation, secret: secret.as_ref() }))
    }
}

impl Carrier {
    /// Begins to call a rank of another host.
    pub(super) fn begin_to_call(&mut self, peer: usize) {
        let Some((_, members)) = self.setup.door() else { return };
        match members.endpoints(peer, Purpose::Mail) {
            Ok(endpoints) => self.routes[peer].calling = Some(Calling::new(endpoints, Instant::now())),
            // Every rank had some when the group met.
            Err(_) => self.routes[peer].ending = Ending::now(Noticed::ConnectionClosed),
        }
        self.go_on_calling(peer);
    }

    /// What has become of all calls.
    pub(super) fn go_on_with_calls(&mut self) {
        for peer in 0..self.routes.len() {
            self.go_on_calling(peer);
        }
    }

    fn go_on_calling(&mut self, peer: usize) {
        let Some((_, members)) = self.setup.door() else { return };
        let Some(calling) = &mut self.routes[peer].calling else { return };
        let ending = match calling.go_on(members, peer, Instant::now()) {
            Outcome::Waiting => return,
            Outcome::Connected(socket) => return self.connected(socket, peer),
            Outcome::Gone => Noticed::ConnectionClosed,
            Outcome::Left => Noticed::LeftGroup,
        };
        self.routes[peer].calling = None;
        self.routes[peer].ending = Ending::now(ending);
    }

    /// There is a connection to a peer, whoever called.
    fn connected(&mut self, socket: TcpStream, peer: usize) {
        // Its own failure says nothing: the connection works without.
        let _ = tune(&socket);
        let key = self.add(Link::dialed(socket.into(), peer, 0, Vec::new(), Instant::now()));
        self.routes[peer].out.get_or_insert(key);
        self.routes[peer].calling = None;
    }

    /// Lets callers in, and hears who they are.
    pub(super) fn receive_callers(&mut self) {
        let Some((listener, members)) = self.setup.door() else { return };
        let most = 2 * self.routes.len() + MOST_STRANGERS;
        if !accept(listener, &mut self.callers, most) {
            self.deaf_until = Some(Instant::now() + DEAF_FOR);
        }
        let mut known = Vec::new();
        let expects = |peer: usize, purpose: Purpose| {
            let links = self.links.values().filter(|link| link.peer == Some(peer)).count();
            purpose == Purpose::Mail && peer != members.rank && links < 2
        };
        hear(&mut self.callers, members, expects, None, |socket, peer| known.push((socket, peer)));
        for (socket, peer) in known {
            self.connected(socket, peer);
        }
    }

    /// Whether a peer has called, and may have sent something that was not read.
    pub(super) fn is_called_by(&self, peer: usize) -> bool {
        self.callers.iter().any(|caller| caller.known.is_some_and(|(known, _)| known == peer))
    }

    /// When somebody is to be called, or given up, if nothing happens before.
    pub(super) fn next_call(&self) -> Option<Instant> {
        let calls = self.routes.iter().filter_map(|route| route.calling.as_ref().map(|calling| calling.next_at));
        calls.chain(self.callers.iter().filter_map(Incoming::patience)).min()
    }

    /// What may happen at the door.
    pub(super) fn door_handles(&self) -> Vec<PollFd<'_>> {
        let Some((listener, _)) = self.setup.door() else { return Vec::new() };
        let hears = self.deaf_until.is_none();
        let door = hears.then(|| PollFd::new(listener.as_fd(), PollFlags::POLLIN));
        let calls = self.routes.iter().filter_map(|route| route.calling.as_ref()).flat_map(|calling| &calling.calls);
        door.into_iter().chain(self.callers.iter().map(Incoming::handle)).chain(calls.map(Outgoing::handle)).collect()
    }

    /// The rank leaves in good order: who waits at the door hears it.
    pub(super) fn turn_callers_away(&mut self) {
        let Some((listener, members)) = self.setup.door() else { return };
        accept(listener, &mut self.callers, MOST_STRANGERS + 2 * members.addresses.len());
        let text = format!("rank {} has left the group", members.rank);
        let expects = |_: usize, purpose: Purpose| purpose == Purpose::Mail;
        hear(&mut self.callers, members, expects, Some(&text), |_, _| {});
        self.callers.clear();
    }

    /// The group is aborted, and nothing is under way: who calls hears why, until the mail is dropped.
    pub(super) fn keep_door(&mut self, last_words: &[u8]) {
        let mut told: Vec<TcpStream> = Vec::new();
        while let Some((listener, members)) = self.setup.door()
            && !lock(&self.shared.inbox).closing
        {
            let open = accept(listener, &mut self.callers, MOST_STRANGERS + 2 * members.addresses.len());
            let rank = members.rank;
            let expects = |peer: usize, purpose: Purpose| purpose == Purpose::Mail && peer != rank;
            hear(&mut self.callers, members, expects, None, |socket, _| {
                send_all(&socket, last_words, Instant::now());
                told.push(socket);
            });
            let mut handles = vec![PollFd::new(self.shared.wake.as_fd(), PollFlags::POLLIN)];
            if open {
                handles.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
            }
            handles.extend(self.callers.iter().map(Incoming::handle));
            // Without room for callers the door is tried again now and then.
            let again = (!open).then(|| Instant::now() + STAGGER);
            let until = self.callers.iter().filter_map(Incoming::patience).chain(again).min();
            let wait = until.map(|until| until.saturating_duration_since(Instant::now()));
            // An error of poll is a signal, or no memory: look again.
            let _ = poll(&mut handles, wait.map_or(nix::poll::PollTimeout::NONE, poll_timeout));
            let _ = self.shared.wake.read();
        }
        linger(told.iter());
        self.callers.clear();
    }

    /// Peers without a connection are gone, once all that they wrote is read.
    pub(super) fn bury_of_other_hosts(&mut self) -> Result<(), End> {
        self.receive_callers();
        for peer in 0..self.routes.len() {
            let Some(Ending { noticed, since }) = self.routes[peer].ending else { continue };
            if self.is_called_by(peer) {
                continue;
            }
            let linked = self.links.values().any(|link| link.peer == Some(peer));
            if !linked && noticed != Noticed::LeftGroup && since.elapsed() < REASON {
                continue;
            }
            self.routes[peer].ending = None;
            if !linked {
                self.lose(peer, noticed)?;
            }
        }
        Ok(())
    }
}

/// Lets everybody in who waits at the door; whether that went well.
fn accept(listener: &TcpListener, callers: &mut Vec<Incoming>, most: usize) -> bool {
    loop {
        match listener.accept() {
            Ok((socket, _)) if callers.len() < most => callers.push(Incoming::new(socket)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            // Gone before it was let in.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            // Out of descriptors, most likely.
            Err(_) => return false,
        }
    }
}

/// Hears all callers, and gives away the connections of those that are let in.
fn hear(
    callers: &mut Vec<Incoming>,
    members: Members<'_>,
    expects: impl Fn(usize, Purpose) -> bool,
    closing: Option<&str>,
    mut let_in: impl FnMut(TcpStream, usize),
) {
    callers.retain_mut(|caller| match caller.hear(members, &expects, closing) {
        Heard::Waiting => true,
        Heard::Done => {
            if let (Some((peer, _)), Ok(socket)) = (caller.known, caller.socket()) {
                let_in(socket, peer);
            }
            false
        }
        Heard::Over | Heard::Unreachable(_) | Heard::Refused(_) => false,
    });
}
