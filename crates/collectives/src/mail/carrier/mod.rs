//! The thread that performs what [`Post`] decides.
//!
//! Here: its loop, orders, deadlines, what comes in and goes out. `peers` has the connections, `calls` those with other hosts,
//! `memory` the copies, `farewell` the last words.

mod calls;
pub(super) mod farewell;
mod memory;
mod peers;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::arena::verdict::Verdict;
use crate::call::{Call, Kind};
use crate::mail::link::{Link, Received, Writing};
use crate::mail::post::{Id, Limits, Place, Post, Trouble};
use crate::mail::wire::{Frame, verdict_from_bytes};
use crate::mail::{Condemn, Setup, Shared, Task, Ways};
use crate::queue::lock;
use crate::socket::poll_timeout;
use crate::streams::introduction::Incoming;
use crate::ticket::{Output, Ticket};
use crate::{Error, Noticed};
use calls::Calling;

/// How often a thread with something under way looks whether the group is aborted.
const LOOK_AROUND: Duration = Duration::from_millis(20);
/// A caller who connects and says nothing is given up after this.
const HELLO_DEADLINE: Duration = Duration::from_secs(1);
const RETRY_PAUSE: Duration = Duration::from_millis(5);
/// How long nobody is let in after somebody could not be.
const DEAF_FOR: Duration = Duration::from_millis(100);
/// Things read from one link before the others get their turn.
const TURN: usize = 32;

/// A send or receive under way.
struct Errand {
    task: Task,
    timeout: Duration,
    deadline: Instant,
    ticket: Ticket,
    /// Some of the target may be written.
    touched: bool,
}

/// How one peer is reached.
#[derive(Default)]
struct Route {
    /// Where this rank writes, chosen once.
    out: Option<usize>,
    queue: VecDeque<(Frame, usize)>,
    writing: Option<Writing>,
    dial_again: bool,
    /// It is on another host and has not answered yet.
    calling: Option<Calling>,
    /// Its last connection ended, or it does not answer; what it sent before may still wait to be accepted.
    ending: Option<Ending>,
}

/// How and when it was noticed that a peer may be gone.
#[derive(Clone, Copy)]
struct Ending {
    noticed: Noticed,
    since: Instant,
}

impl Ending {
    fn now(noticed: Noticed) -> Option<Ending> {
        Some(Ending { noticed, since: Instant::now() })
    }
}

/// Why the thread stops.
enum End {
    /// The group is aborted.
    Failed(Error),
    /// The mail is dropped.
    Closed,
}

pub(in crate::mail) struct Carrier {
    setup: Setup,
    condemn: Condemn,
    shared: Arc<Shared>,
    post: Post,
    links: BTreeMap<usize, Link>,
    next_link: usize,
    routes: Vec<Route>,
    /// Who called from other hosts, as long as it is not known who that is.
    callers: Vec<Incoming>,
    errands: HashMap<Id, Errand>,
    deadlines: BTreeSet<(Instant, Id)>,
    next_id: Id,
    held: HashMap<Id, Vec<u8>>,
    /// Until when nobody is let in, because the last one could not be.
    deaf_until: Option<Instant>,
}

impl Carrier {
    pub(in crate::mail) fn new(setup: Setup, condemn: Condemn, shared: Arc<Shared>) -> Carrier {
        let world = setup.addresses.len();
        Carrier {
            post: Post::new(setup.rank, world, setup.single_copy, Limits::USUAL),
            links: BTreeMap::new(),
            next_link: 0,
            routes: (0..world).map(|_| Route::default()).collect(),
            callers: Vec::new(),
            errands: HashMap::new(),
            deadlines: BTreeSet::new(),
            next_id: 0,
            held: HashMap::new(),
            deaf_until: None,
            setup,
            condemn,
            shared,
        }
    }

    pub(in crate::mail) fn run(mut self) {
        let error = match self.work() {
            End::Failed(error) => error,
            End::Closed if self.errands.is_empty() => {
                self.say_goodbye();
                self.turn_callers_away();
                Error::NotConnected
            }
            // The peers must not wait for what will not come.
            End::Closed => (self.condemn)(&Verdict::Aborted { by: self.setup.rank }),
        };
        let last_words = self.pass_on_verdict();
        // From here on no memory of an operation is touched.
        self.links.clear();
        self.routes.clear();
        let orders = {
            let mut inbox = lock(&self.shared.inbox);
            inbox.failure.get_or_insert(error.clone());
            inbox.pending = 0;
            std::mem::take(&mut inbox.orders)
        };
        self.shared.room.notify_all();
        for (_, errand) in self.errands.drain() {
            let output = if errand.touched { Output::Undefined } else { Output::Untouched };
            errand.ticket.finish(Err(error.clone()), output);
        }
        for order in orders {
            order.ticket.finish(Err(error.clone()), Output::Untouched);
        }
        self.keep_door(&last_words);
    }

    fn work(&mut self) -> End {
        loop {
            if let Err(end) = self.take_orders().and_then(|()| self.settle()) {
                return end;
            }
            let ready = self.sleep();
            let progress = self
                .look_around()
                .and_then(|()| self.serve(&ready))
                .and_then(|()| self.bury())
                .and_then(|()| self.settle());
            if let Err(end) = progress {
                return end;
            }
        }
    }

    /// What callers want since the last time.
    fn take_orders(&mut self) -> Result<(), End> {
        let orders = {
            let mut inbox = lock(&self.shared.inbox);
            if let Some(failure) = &inbox.failure {
                return Err(End::Failed(failure.clone()));
            }
            if inbox.closing {
                return Err(End::Closed);
            }
            std::mem::take(&mut inbox.orders)
        };
        for order in orders {
            let id = self.next_id;
            self.next_id += 1;
            self.deadlines.insert((order.deadline, id));
            let tag = order.tag;
            let posted = match &order.task {
                Task::Send { source, to } => self.post.send(id, *to, tag, source.bytes, source.pointer as u64),
                Task::Receive { target, from } => self.post.receive(id, *from, tag, target.bytes),
            };
            let (timeout, deadline) = (order.timeout, order.deadline);
            let errand = Errand { task: order.task, timeout, deadline, ticket: order.ticket, touched: false };
            self.errands.insert(id, errand);
            self.decide(posted)?;
        }
        Ok(())
    }

    /// Performs actions and writes until nothing more goes.
    fn settle(&mut self) -> Result<(), End> {
        loop {
            self.act()?;
            for peer in 0..self.routes.len() {
                self.pump(peer)?;
            }
            // What is written may have been the last piece of something.
            match self.post.next_action() {
                Some(action) => self.perform(action)?,
                None => return Ok(()),
            }
        }
    }

    /// Performs what the post has decided.
    fn act(&mut self) -> Result<(), End> {
        while let Some(action) = self.post.next_action() {
            self.perform(action)?;
        }
        Ok(())
    }

    /// Writes to a peer as much as goes.
    fn pump(&mut self, peer: usize) -> Result<(), End> {
        loop {
            let Some(link) = self.routes[peer].out.and_then(|key| self.links.get_mut(&key)) else { return Ok(()) };
            let route = &mut self.routes[peer];
            if route.writing.is_none() {
                let Some((frame, offset)) = route.queue.pop_front() else {
                    // Errors of writing say nothing: what the peer wrote before it went counts, and reading ends there.
                    let _ = link.greet();
                    return Ok(());
                };
                let payload = match frame {
                    Frame::Message { id, .. } | Frame::Part { id, .. } => match self.errands.get(&id) {
                        Some(Errand { task: Task::Send { source, .. }, .. }) => source.pointer.wrapping_add(offset),
                        _ => unreachable!("the post writes sends under way"),
                    },
                    _ => std::ptr::null(),
                };
                route.writing = Some(Writing::new(frame, payload));
            }
            let Some(writing) = &mut route.writing else { return Ok(()) };
            match link.write(writing) {
                Ok(true) => {
                    let frame = writing.frame;
                    route.writing = None;
                    self.post.written(frame);
                    self.act()?;
                }
                Ok(false) | Err(_) => return Ok(()),
            }
        }
    }

    /// Waits until there is something to do; which links can be read.
    fn sleep(&mut self) -> Vec<usize> {
        let mut handles = vec![PollFd::new(self.shared.wake.as_fd(), PollFlags::POLLIN)];
        if let Ways::Host(listener) = &self.setup.ways
            && self.deaf_until.is_none()
        {
            handles.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
        }
        handles.extend(self.door_handles());
        let fixed = handles.len();
        let mut keys = Vec::with_capacity(self.links.len());
        for (key, link) in &self.links {
            let route = link.peer.map(|peer| &self.routes[peer]).filter(|route| route.out == Some(*key));
            let writes = link.has_greeting() || route.is_some_and(|route| route.writing.is_some());
            let events = if writes { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
            handles.push(PollFd::new(link.socket().as_fd(), events));
            keys.push(*key);
        }
        // An error of poll is a signal, or no memory: look again.
        let _ = poll(&mut handles, self.patience());
        let ready = handles[fixed..].iter().zip(&keys).filter(|(handle, _)| handle.any() == Some(true));
        let ready = ready.map(|(_, key)| *key).collect();
        let _ = self.shared.wake.read();
        ready
    }

    fn patience(&self) -> PollTimeout {
        let now = Instant::now();
        let mut wait = Duration::MAX;
        if let Some((deadline, _)) = self.deadlines.first() {
            wait = deadline.saturating_duration_since(now).min(LOOK_AROUND);
        }
        if self.links.values().any(|link| link.peer.is_none()) {
            wait = wait.min(HELLO_DEADLINE / 4);
        }
        if self.routes.iter().any(|route| route.dial_again || route.ending.is_some()) {
            wait = wait.min(RETRY_PAUSE);
        }
        if let Some(until) = self.next_call() {
            wait = wait.min(until.saturating_duration_since(now));
        }
        if let Some(until) = self.deaf_until {
            wait = wait.min(until.saturating_duration_since(now));
        }
        if wait == Duration::MAX {
            return PollTimeout::NONE;
        }
        poll_timeout(wait)
    }

    /// Verdicts of others, deadlines, callers who say nothing, peers to call again.
    fn look_around(&mut self) -> Result<(), End> {
        if !self.errands.is_empty() {
            self.look_for_verdict()?;
        }
        let now = Instant::now();
        if let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now
        {
            return Err(self.time_out(id));
        }
        self.deaf_until = self.deaf_until.filter(|until| *until > now);
        self.links.retain(|_, link| link.peer.is_some() || now.duration_since(link.opened) < HELLO_DEADLINE);
        for peer in 0..self.routes.len() {
            if std::mem::take(&mut self.routes[peer].dial_again) {
                self.reach(peer)?;
            }
        }
        self.go_on_with_calls();
        Ok(())
    }

    fn look_for_verdict(&self) -> Result<(), End> {
        // The first verdict counts; this one only asks for it.
        let verdict = Verdict::Aborted { by: self.setup.rank };
        if self.setup.fate.is_aborted() { Err(End::Failed((self.condemn)(&verdict))) } else { Ok(()) }
    }

    fn time_out(&self, id: Id) -> End {
        let timeout = self.errands.get(&id).map_or(Duration::ZERO, |errand| errand.timeout);
        let peer = self.post.pending(id).and_then(|pending| pending.peer);
        let missing = match peer {
            Some(peer) => vec![peer],
            None => (0..self.routes.len()).filter(|peer| *peer != self.setup.rank).collect(),
        };
        let by = self.setup.rank;
        End::Failed((self.condemn)(&Verdict::Timeout { call: self.call(id), sequence: id, timeout, missing, by }))
    }

    fn call(&self, id: Id) -> Call {
        self.post.pending(id).map_or(Call::message(Kind::Receive, 0, None, 0), |pending| {
            let kind = if pending.sends { Kind::Send } else { Kind::Receive };
            Call::message(kind, pending.bytes, pending.peer, pending.tag)
        })
    }

    /// Callers and what came in.
    fn serve(&mut self, ready: &[usize]) -> Result<(), End> {
        self.accept();
        self.receive_callers();
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

    fn receive(&mut self, key: usize, received: Received) -> Result<(), End> {
        let peer = self.links.get(&key).and_then(|link| link.peer);
        match (received, peer) {
            (Received::Nothing, _) => Ok(()),
            (Received::Hello(hello), None) => {
                self.admit(key, hello);
                Ok(())
            }
            (Received::Frame(Frame::Goodbye), Some(peer)) => self.lose(peer, Noticed::LeftGroup),
            (Received::Frame(frame), Some(peer)) => {
                let heard = self.post.hear(peer, frame);
                if let Ok(Some(place)) = heard {
                    let pointer = match place {
                        Place::Target { receive, offset, .. } => self.target(receive).wrapping_add(offset),
                        Place::Held { held } => {
                            self.held.entry(held).or_insert_with(|| vec![0; frame.payload()]).as_mut_ptr()
                        }
                    };
                    if let Some(link) = self.links.get_mut(&key) {
                        link.expect(place, pointer, frame.payload());
                    }
                }
                self.decide(heard.map(|_| ()))
            }
            (Received::Payload(place, length), Some(peer)) => {
                self.post.arrived(peer, place, length);
                self.act()
            }
            (Received::Closed(error), Some(peer)) => {
                self.links.remove(&key);
                self.routes[peer].ending = Ending::now(Noticed::from_connection(&error));
                Ok(())
            }
            (Received::Verdict(bytes), Some(peer)) => match verdict_from_bytes(&bytes) {
                Some(verdict) => Err(End::Failed((self.condemn)(&verdict))),
                None => self.decide(Err(Trouble::Violation { by: peer })),
            },
            (Received::Garbled, Some(peer)) => self.decide(Err(Trouble::Violation { by: peer })),
            // A stranger.
            _ => {
                self.links.remove(&key);
                Ok(())
            }
        }
    }

    /// Trouble is the group's, unless it concerns nobody.
    fn decide(&mut self, result: Result<(), Trouble>) -> Result<(), End> {
        let Err(trouble) = result else { return Ok(()) };
        let by = self.setup.rank;
        let verdict = match trouble {
            Trouble::Mismatch { from, message, bytes, receive } => {
                let tag = self.post.pending(receive).map_or(0, |pending| pending.tag);
                Verdict::Mismatch {
                    rank: from,
                    call: Call::message(Kind::Send, bytes, Some(by), tag),
                    other_rank: by,
                    other: self.call(receive),
                    sequence: message,
                }
            }
            Trouble::Gone { id, peer, noticed } => {
                Verdict::Lost { rank: peer, call: self.call(id), sequence: id, noticed, by }
            }
            Trouble::Violation { by: peer } => {
                self.links.retain(|_, link| link.peer != Some(peer));
                return self.lose(peer, Noticed::Garbled);
            }
        };
        Err(End::Failed((self.condemn)(&verdict)))
    }
}
