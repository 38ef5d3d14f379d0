//! The thread that performs what [`Matching`] decides.
//!
//! Here: its loop, requests, deadlines, what comes in and goes out. `peers` has the connections, `connector` those with other
//! hosts (`dial`: how one of them is called), `actions` the copies, `shutdown` what is sent last.

mod actions;
mod connector;
mod dial;
mod peers;
pub(super) mod shutdown;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::abort::{AbortGroup, AbortReason};
use crate::call::{Call, Kind};
use crate::p2p::config::{P2pConfig, P2pListener};
use crate::p2p::link::{Link, Received, Writing};
use crate::p2p::matching::{Destination, Id, Limits, MatchError, Matching};
use crate::p2p::request::{P2pShared, RequestKind};
use crate::p2p::wire::Frame;
use crate::socket::poll_timeout;
use crate::sync::lock;
use crate::tcp::connect::IncomingHandshake;
use crate::tcp::handshake::WelcomedHellos;
use crate::tcp::secret::Nonces;
use crate::ticket::{Output, Ticket};
use crate::{Error, LossCause, Rank};
use dial::PeerDial;

/// How often a thread with something under way looks whether the group is aborted.
const ABORT_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A caller who connects and says nothing is given up after this.
const HELLO_DEADLINE: Duration = Duration::from_secs(1);
const RETRY_PAUSE: Duration = Duration::from_millis(5);
/// Things read from one link before the others get their turn.
const TURN: usize = 32;

/// A send or receive under way.
struct Request {
    kind: RequestKind,
    timeout: Duration,
    deadline: Instant,
    ticket: Ticket,
    /// Some of the target may be written.
    touched: bool,
}

/// How one peer is reached.
#[derive(Default)]
struct PeerState {
    /// Where this rank writes, chosen once.
    out: Option<usize>,
    queue: VecDeque<(Frame, usize)>,
    writing: Option<Writing>,
    dial_again: bool,
    /// It is on another host and has not answered yet.
    dialing: Option<PeerDial>,
    /// Its last connection ended, or it does not answer; what it sent before may still wait to be accepted.
    disconnect: Option<Disconnect>,
}

/// How and when it was noticed that a peer may be gone.
#[derive(Clone, Copy)]
struct Disconnect {
    noticed: LossCause,
    since: Instant,
}

impl Disconnect {
    fn now(noticed: LossCause) -> Option<Disconnect> {
        Some(Disconnect { noticed, since: Instant::now() })
    }
}

/// Why the thread stops.
enum ProgressEnd {
    /// The group is aborted.
    Failed(Error),
    /// The messages of this generation are dropped.
    Closed,
}

pub(in crate::p2p) struct ProgressThread {
    config: P2pConfig,
    abort_group: AbortGroup,
    shared: Arc<P2pShared>,
    matching: Matching,
    links: BTreeMap<usize, Link>,
    next_link: usize,
    peers: Vec<PeerState>,
    /// Who called from other hosts, as long as it is not known who that is.
    callers: Vec<IncomingHandshake>,
    /// For handshakes with other hosts.
    nonces: Nonces,
    welcomed: WelcomedHellos,
    requests: HashMap<Id, Request>,
    deadlines: BTreeSet<(Instant, Id)>,
    next_id: Id,
    held: HashMap<Id, Vec<u8>>,
    /// Until when nobody is let in, because the last one could not be.
    accept_paused_until: Option<Instant>,
}

impl ProgressThread {
    pub(in crate::p2p) fn new(
        config: P2pConfig,
        abort_group: AbortGroup,
        shared: Arc<P2pShared>,
        nonces: Nonces,
    ) -> ProgressThread {
        let world = config.addresses.len();
        ProgressThread {
            matching: Matching::new(config.rank, world, config.single_copy, Limits::USUAL),
            links: BTreeMap::new(),
            next_link: 0,
            peers: (0..world).map(|_| PeerState::default()).collect(),
            callers: Vec::new(),
            nonces,
            welcomed: WelcomedHellos::default(),
            requests: HashMap::new(),
            deadlines: BTreeSet::new(),
            next_id: 0,
            held: HashMap::new(),
            accept_paused_until: None,
            config,
            abort_group,
            shared,
        }
    }

    pub(in crate::p2p) fn run(mut self) {
        let error = match self.work() {
            ProgressEnd::Failed(error) => error,
            ProgressEnd::Closed if self.requests.is_empty() => {
                self.send_goodbye();
                self.refuse_callers();
                Error::NotConnected
            }
            // The peers must not wait for what will not come.
            ProgressEnd::Closed => (self.abort_group)(&AbortReason::Aborted { by: self.config.rank }),
        };
        let final_message = self.broadcast_abort();
        // From here on no memory of an operation is touched.
        self.links.clear();
        self.peers.clear();
        let requests = {
            let mut inbox = lock(&self.shared.inbox);
            inbox.failure.get_or_insert(error.clone());
            inbox.pending = 0;
            std::mem::take(&mut inbox.requests)
        };
        self.shared.room.notify_all();
        for (_, request) in self.requests.drain() {
            let output = if request.touched { Output::Undefined } else { Output::Untouched };
            request.ticket.finish(Err(error.clone()), output);
        }
        for request in requests {
            request.ticket.finish(Err(error.clone()), Output::Untouched);
        }
        self.refuse_until_closed(&final_message);
    }

    fn work(&mut self) -> ProgressEnd {
        loop {
            if let Err(end) = self.take_requests().and_then(|()| self.settle()) {
                return end;
            }
            let ready = self.sleep();
            let progress = self
                .check_timers()
                .and_then(|()| self.serve(&ready))
                .and_then(|()| self.reap())
                .and_then(|()| self.settle());
            if let Err(end) = progress {
                return end;
            }
        }
    }

    /// What callers want since the last time.
    fn take_requests(&mut self) -> Result<(), ProgressEnd> {
        let mut requests = {
            let mut inbox = lock(&self.shared.inbox);
            if let Some(failure) = &inbox.failure {
                return Err(ProgressEnd::Failed(failure.clone()));
            }
            if inbox.closing {
                return Err(ProgressEnd::Closed);
            }
            std::mem::take(&mut inbox.requests)
        };
        while let Some(request) = requests.pop_front() {
            let id = self.next_id;
            self.next_id += 1;
            self.deadlines.insert((request.deadline, id));
            let tag = request.tag;
            let posted = match &request.kind {
                RequestKind::Send { source, to } => {
                    self.matching.send(id, *to, tag, source.bytes, source.pointer as u64)
                }
                RequestKind::Receive { target, from } => self.matching.receive(id, *from, tag, target.bytes),
            };
            let (timeout, deadline) = (request.timeout, request.deadline);
            let request = Request { kind: request.kind, timeout, deadline, ticket: request.ticket, touched: false };
            self.requests.insert(id, request);
            if let Err(end) = self.decide(posted) {
                // The others fail with it, and so do those that came meanwhile: nobody may wait for one that was forgotten.
                let mut inbox = lock(&self.shared.inbox);
                requests.append(&mut inbox.requests);
                inbox.requests = requests;
                return Err(end);
            }
        }
        Ok(())
    }

    /// Performs actions and writes until nothing more goes.
    fn settle(&mut self) -> Result<(), ProgressEnd> {
        loop {
            self.act()?;
            for peer in Rank::all(self.peers.len()) {
                self.pump(peer)?;
            }
            // What is written may have been the last piece of something.
            match self.matching.next_action() {
                Some(action) => self.perform(action)?,
                None => return Ok(()),
            }
        }
    }

    /// Performs what the matching has decided.
    fn act(&mut self) -> Result<(), ProgressEnd> {
        while let Some(action) = self.matching.next_action() {
            self.perform(action)?;
        }
        Ok(())
    }

    /// Writes to a peer as much as goes.
    fn pump(&mut self, peer: Rank) -> Result<(), ProgressEnd> {
        loop {
            let Some(link) = self.peers[peer.0].out.and_then(|key| self.links.get_mut(&key)) else { return Ok(()) };
            let state = &mut self.peers[peer.0];
            if state.writing.is_none() {
                let Some((frame, offset)) = state.queue.pop_front() else {
                    // Errors of writing say nothing: what the peer wrote before it went counts, and reading ends there.
                    let _ = link.write_hello();
                    return Ok(());
                };
                let payload = match frame {
                    Frame::Message { id, .. } | Frame::Part { id, .. } => match self.requests.get(&id) {
                        Some(Request { kind: RequestKind::Send { source, .. }, .. }) => {
                            source.pointer.wrapping_add(offset)
                        }
                        _ => unreachable!("the matching writes sends under way"),
                    },
                    _ => std::ptr::null(),
                };
                state.writing = Some(Writing::new(frame, payload));
            }
            let Some(writing) = &mut state.writing else { return Ok(()) };
            match link.write(writing) {
                Ok(true) => {
                    let frame = writing.frame;
                    state.writing = None;
                    self.matching.written(frame);
                    self.act()?;
                }
                Ok(false) | Err(_) => return Ok(()),
            }
        }
    }

    /// Waits until there is something to do; which links can be read.
    fn sleep(&mut self) -> Vec<usize> {
        let mut handles = vec![PollFd::new(self.shared.wake.as_fd(), PollFlags::POLLIN)];
        if let P2pListener::Host(listener) = &self.config.listener
            && self.accept_paused_until.is_none()
        {
            handles.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
        }
        handles.extend(self.connector_handles());
        let fixed = handles.len();
        let mut keys = Vec::with_capacity(self.links.len());
        for (key, link) in &self.links {
            let state = link.peer.map(|peer| &self.peers[peer.0]).filter(|state| state.out == Some(*key));
            let writes = link.has_unsent_hello() || state.is_some_and(|state| state.writing.is_some());
            let events = if writes { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
            handles.push(PollFd::new(link.stream().as_fd(), events));
            keys.push(*key);
        }
        // What was decrypted, and is not read yet, polling does not show.
        let held: Vec<bool> = self.links.values().map(|link| link.stream().holds_input()).collect();
        let wait = if held.contains(&true) { PollTimeout::ZERO } else { self.hello_deadline() };
        // An error of poll is a signal, or no memory: look again.
        let _ = poll(&mut handles, wait);
        let readable = handles[fixed..].iter().map(|handle| handle.any() == Some(true)).zip(held);
        let ready = readable.zip(&keys).filter(|((readable, held), _)| *readable || *held);
        let ready = ready.map(|(_, key)| *key).collect();
        let _ = self.shared.wake.read();
        ready
    }

    fn hello_deadline(&self) -> PollTimeout {
        let now = Instant::now();
        let mut wait = Duration::MAX;
        if let Some((deadline, _)) = self.deadlines.first() {
            wait = deadline.saturating_duration_since(now).min(ABORT_POLL_INTERVAL);
        }
        if self.links.values().any(|link| link.peer.is_none()) {
            wait = wait.min(HELLO_DEADLINE / 4);
        }
        if self.peers.iter().any(|state| state.dial_again || state.disconnect.is_some()) {
            wait = wait.min(RETRY_PAUSE);
        }
        if let Some(until) = self.next_dial() {
            wait = wait.min(until.saturating_duration_since(now));
        }
        if let Some(until) = self.accept_paused_until {
            wait = wait.min(until.saturating_duration_since(now));
        }
        if wait == Duration::MAX {
            return PollTimeout::NONE;
        }
        poll_timeout(wait)
    }

    /// Aborts by others, deadlines, callers who say nothing, peers to call again.
    fn check_timers(&mut self) -> Result<(), ProgressEnd> {
        if !self.requests.is_empty() {
            self.check_abort()?;
        }
        let now = Instant::now();
        if let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now
        {
            return Err(self.timeout_reason(id));
        }
        self.accept_paused_until = self.accept_paused_until.filter(|until| *until > now);
        self.links.retain(|_, link| link.peer.is_some() || now.duration_since(link.opened) < HELLO_DEADLINE);
        for peer in Rank::all(self.peers.len()) {
            if std::mem::take(&mut self.peers[peer.0].dial_again) {
                self.reach(peer)?;
            }
        }
        self.advance_dials();
        Ok(())
    }

    fn check_abort(&self) -> Result<(), ProgressEnd> {
        // The first reason counts; this one only asks for it.
        let reason = AbortReason::Aborted { by: self.config.rank };
        if self.config.abort.is_aborted() { Err(ProgressEnd::Failed((self.abort_group)(&reason))) } else { Ok(()) }
    }

    fn timeout_reason(&self, id: Id) -> ProgressEnd {
        let timeout = self.requests.get(&id).map_or(Duration::ZERO, |request| request.timeout);
        let peer = self.matching.pending(id).and_then(|pending| pending.peer);
        let missing = match peer {
            Some(peer) => vec![peer],
            None => self.config.rank.others(self.peers.len()).collect(),
        };
        let by = self.config.rank;
        ProgressEnd::Failed((self.abort_group)(&AbortReason::Timeout {
            call: self.call(id),
            sequence: id,
            timeout,
            missing,
            by,
        }))
    }

    fn call(&self, id: Id) -> Call {
        self.matching.pending(id).map_or(Call::message(Kind::Receive, 0, None, 0), |pending| {
            let kind = if pending.sends { Kind::Send } else { Kind::Receive };
            Call::message(kind, pending.bytes, pending.peer, pending.tag)
        })
    }

    /// Callers and what came in.
    fn serve(&mut self, ready: &[usize]) -> Result<(), ProgressEnd> {
        self.accept();
        self.accept_remote();
        for key in ready {
            for _ in 0..TURN {
                let Some(link) = self.links.get_mut(key) else { break };
                let received = link.read();
                if matches!(received, Received::Nothing) {
                    break;
                }
                self.receive(*key, received)?;
            }
        }
        Ok(())
    }

    fn receive(&mut self, key: usize, received: Received) -> Result<(), ProgressEnd> {
        let peer = self.links.get(&key).and_then(|link| link.peer);
        match (received, peer) {
            (Received::Nothing, _) => Ok(()),
            (Received::Hello(hello), None) => {
                self.admit(key, hello);
                Ok(())
            }
            (Received::Frame(Frame::Goodbye), Some(peer)) => self.peer_lost(peer, LossCause::LeftGroup),
            (Received::Frame(frame), Some(peer)) => {
                let handled = self.matching.handle_frame(peer, frame);
                if let Ok(Some(destination)) = handled {
                    let pointer = match destination {
                        Destination::Target { receive, offset, .. } => self.target(receive).wrapping_add(offset),
                        Destination::Held { held } => {
                            self.held.entry(held).or_insert_with(|| vec![0; frame.payload()]).as_mut_ptr()
                        }
                    };
                    if let Some(link) = self.links.get_mut(&key) {
                        link.expect(destination, pointer, frame.payload());
                    }
                }
                self.decide(handled.map(|_| ()))
            }
            (Received::Payload(destination, length), Some(peer)) => {
                self.matching.arrived(peer, destination, length);
                self.act()
            }
            (Received::Closed(error), Some(peer)) => {
                self.links.remove(&key);
                let noticed = LossCause::from_connection(&error);
                if noticed == LossCause::Altered {
                    // What it said there is lost, also where there is another connection.
                    self.links.retain(|_, link| link.peer != Some(peer));
                    return self.peer_lost(peer, noticed);
                }
                self.peers[peer.0].disconnect = Disconnect::now(noticed);
                Ok(())
            }
            (Received::Abort(bytes), Some(peer)) => match AbortReason::from_bytes(&bytes) {
                Some(reason) => Err(ProgressEnd::Failed((self.abort_group)(&reason))),
                None => self.decide(Err(MatchError::Violation { by: peer })),
            },
            (Received::Garbled, Some(peer)) => self.decide(Err(MatchError::Violation { by: peer })),
            // A stranger.
            _ => {
                self.links.remove(&key);
                Ok(())
            }
        }
    }

    /// A failure is the group's, unless it concerns nobody.
    fn decide(&mut self, result: Result<(), MatchError>) -> Result<(), ProgressEnd> {
        let Err(error) = result else { return Ok(()) };
        let by = self.config.rank;
        let reason = match error {
            MatchError::Mismatch { from, message, bytes, receive } => {
                let tag = self.matching.pending(receive).map_or(0, |pending| pending.tag);
                AbortReason::Mismatch {
                    rank: from,
                    call: Call::message(Kind::Send, bytes, Some(by), tag),
                    other_rank: by,
                    other: self.call(receive),
                    sequence: message,
                }
            }
            MatchError::Gone { id, peer, noticed } => {
                AbortReason::Lost { rank: peer, call: self.call(id), sequence: id, noticed, by }
            }
            MatchError::Violation { by: peer } => {
                self.links.retain(|_, link| link.peer != Some(peer));
                return self.peer_lost(peer, LossCause::Garbled);
            }
        };
        Err(ProgressEnd::Failed((self.abort_group)(&reason)))
    }
}
