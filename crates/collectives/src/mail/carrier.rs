//! The thread that performs what [`Post`] decides: sockets, memory, deadlines.
#![expect(unsafe_code, reason = "copies to and from memory that callers vouch for")]

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};

use super::link::{Link, Received, Writing};
use super::post::{Action, Id, Limits, Place, Post, Trouble};
use super::wire::{Frame, Hello, Purpose, verdict_from_bytes, verdict_to_bytes};
use super::{Condemn, Setup, Shared, Task, Ways, socket_name};
use crate::arena::remote;
use crate::arena::verdict::Verdict;
use crate::call::{Call, Kind};
use crate::queue::lock;
use crate::socket::{linger, poll_timeout, send_all};
use crate::ticket::{Output, Ticket};
use crate::{Error, Noticed, Rank};

/// How often a thread with something under way looks whether the group is aborted.
const LOOK_AROUND: Duration = Duration::from_millis(20);
/// A caller who connects and says nothing is given up after this.
const HELLO_DEADLINE: Duration = Duration::from_secs(1);
/// Callers who have not said hello yet.
const MOST_STRANGERS: usize = 64;
const RETRY_PAUSE: Duration = Duration::from_millis(5);
/// How long what is written may take to leave this rank when it closes.
const GRACE: Duration = Duration::from_secs(1);
/// And when the group is aborted: how long a peer may take to read what comes before the verdict.
const VERDICT_GRACE: Duration = Duration::from_millis(200);
const DEAF_FOR: Duration = Duration::from_millis(100);
/// Bytes read out of a peer's memory between two looks at the group's fate.
const FETCH_BYTES: usize = 16 << 20;
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
    /// Its last connection ended, or it does not answer; what it sent before may still wait to be accepted.
    ending: Option<Noticed>,
}

/// Why the thread stops.
enum End {
    /// The group is aborted.
    Failed(Error),
    /// The mail is dropped.
    Closed,
}

pub(super) struct Carrier {
    setup: Setup,
    condemn: Condemn,
    shared: Arc<Shared>,
    post: Post,
    links: BTreeMap<usize, Link>,
    next_link: usize,
    routes: Vec<Route>,
    errands: HashMap<Id, Errand>,
    deadlines: BTreeSet<(Instant, Id)>,
    next_id: Id,
    held: HashMap<Id, Vec<u8>>,
    /// Until when nobody is let in, because the last one could not be.
    deaf_until: Option<Instant>,
}

impl Carrier {
    pub(super) fn new(setup: Setup, condemn: Condemn, shared: Arc<Shared>) -> Carrier {
        let world = setup.addresses.len();
        let mut carrier = Carrier {
            post: Post::new(setup.rank, world, setup.single_copy, Limits::USUAL),
            links: BTreeMap::new(),
            next_link: 0,
            routes: (0..world).map(|_| Route::default()).collect(),
            errands: HashMap::new(),
            deadlines: BTreeSet::new(),
            next_id: 0,
            held: HashMap::new(),
            deaf_until: None,
            setup,
            condemn,
            shared,
        };
        if let Ways::Network(connections) = &mut carrier.setup.ways {
            for (peer, connection) in std::mem::take(connections).into_iter().enumerate() {
                if let Some(connection) = connection {
                    let key = carrier.add(Link::dialed(connection.into(), peer, 0, Vec::new(), Instant::now()));
                    carrier.routes[peer].out = Some(key);
                }
            }
        }
        carrier
    }

    pub(super) fn run(mut self) {
        let error = match self.work() {
            End::Failed(error) => error,
            End::Closed if self.errands.is_empty() => {
                self.say_goodbye();
                Error::NotConnected
            }
            // The peers must not wait for what will not come.
            End::Closed => (self.condemn)(&Verdict::Aborted { by: self.setup.rank }),
        };
        self.pass_on_verdict();
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

    fn perform(&mut self, action: Action) -> Result<(), End> {
        match action {
            Action::Write { to, frame, offset } => self.routes[to].queue.push_back((frame, offset)),
            Action::Finish { id, source } => self.finish(id, source),
            Action::Copy { send, receive } => {
                let (from, bytes) = self.source(send);
                let to = self.target(receive);
                // SAFETY: both operations are under way and, as the post compared, of the same size.
                unsafe { std::ptr::copy(from, to, bytes) };
            }
            Action::Keep { send, held } => {
                let (from, bytes) = self.source(send);
                let mut memory = vec![0; bytes];
                // SAFETY: the operation is under way; the memory is new.
                unsafe { std::ptr::copy_nonoverlapping(from, memory.as_mut_ptr(), bytes) };
                self.held.insert(held, memory);
            }
            Action::Deliver { held, receive } => {
                let memory = self.held.remove(&held).unwrap_or_default();
                let to = self.target(receive);
                // SAFETY: the receive is under way and, as the post compared, of this size.
                unsafe { std::ptr::copy_nonoverlapping(memory.as_ptr(), to, memory.len()) };
            }
            Action::Forget { held } => drop(self.held.remove(&held)),
            Action::Fetch { from, message, pointer, receive } => self.fetch(from, message, pointer, receive)?,
            Action::Reach { peer } => self.reach(peer)?,
        }
        Ok(())
    }

    fn source(&self, send: Id) -> (*const u8, usize) {
        match self.errands.get(&send).map(|errand| &errand.task) {
            Some(Task::Send { source, .. }) => (source.pointer, source.bytes),
            _ => unreachable!("the post speaks of sends under way"),
        }
    }

    /// Where a receive wants its bytes; from now on they may be there.
    fn target(&mut self, receive: Id) -> *mut u8 {
        let errand = self.errands.get_mut(&receive).expect("the post speaks of receives under way");
        errand.touched = true;
        match &errand.task {
            Task::Receive { target, .. } => target.pointer,
            Task::Send { .. } => unreachable!("the post speaks of receives"),
        }
    }

    fn finish(&mut self, id: Id, source: Option<usize>) {
        let Some(errand) = self.errands.remove(&id) else { return };
        self.deadlines.remove(&(errand.deadline, id));
        {
            let mut inbox = lock(&self.shared.inbox);
            inbox.pending = inbox.pending.saturating_sub(1);
            if inbox.pending + 1 >= super::MOST_PENDING {
                self.shared.room.notify_all();
            }
        }
        errand.ticket.finish_from(Ok(()), Output::Complete, source.map(Rank));
    }

    /// Reads a large message where it lies.
    ///
    /// A sender that fails writes the group's verdict before it gives its memory back. So if there is no verdict after the
    /// reading, what was read was the message.
    fn fetch(&mut self, from: usize, message: u64, pointer: u64, receive: Id) -> Result<(), End> {
        let process = self.links.values().find(|link| link.peer == Some(from)).map_or(0, |link| link.process);
        let bytes = self.post.pending(receive).map_or(0, |pending| pending.bytes);
        let to = self.target(receive);
        let mut done = 0;
        while done < bytes && process > 0 {
            let length = (bytes - done).min(FETCH_BYTES);
            // SAFETY: the receive is under way and has room for all bytes; the kernel checks the peer's side.
            let read = unsafe { remote::read(process, pointer + done as u64, to.wrapping_add(done), length) };
            self.look_for_verdict()?;
            if read.is_err() {
                break;
            }
            done += length;
        }
        self.post.fetched(from, message, receive, done == bytes);
        Ok(())
    }

    /// Makes sure that there is a connection to a peer.
    fn reach(&mut self, peer: usize) -> Result<(), End> {
        if self.routes[peer].out.is_some() || self.routes[peer].dial_again {
            return Ok(());
        }
        match self.dial(peer) {
            Ok(link) => {
                let key = self.add(link);
                self.routes[peer].out = Some(key);
                Ok(())
            }
            // Its queue of callers is full for a moment.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.routes[peer].dial_again = true;
                Ok(())
            }
            Err(_) => {
                self.routes[peer].ending = Some(Noticed::ConnectionClosed);
                Ok(())
            }
        }
    }

    fn dial(&self, peer: usize) -> io::Result<Link> {
        let address = &self.setup.addresses[peer];
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let handle = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        let name = UnixAddr::new_abstract(&socket_name(address, self.setup.generation))?;
        connect(handle.as_raw_fd(), &name)?;
        let process = getsockopt(&handle, PeerCredentials).map_or(0, |credentials| credentials.pid());
        let hello = Hello { token: address.token, ..self.hello() };
        Ok(Link::dialed(handle, peer, process, hello.to_bytes().to_vec(), Instant::now()))
    }

    fn hello(&self) -> Hello {
        Hello {
            token: self.setup.addresses[self.setup.rank].token,
            generation: self.setup.generation,
            world: self.setup.addresses.len() as u32,
            rank: self.setup.rank as u32,
            purpose: Purpose::Mail,
        }
    }

    fn add(&mut self, link: Link) -> usize {
        let key = self.next_link;
        self.next_link += 1;
        self.links.insert(key, link);
        key
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

    /// Peers without a connection are gone, once everybody who called has been heard.
    fn bury(&mut self) -> Result<(), End> {
        if self.routes.iter().all(|route| route.ending.is_none()) {
            return Ok(());
        }
        self.accept();
        let strangers: Vec<usize> =
            self.links.iter().filter(|(_, link)| link.peer.is_none()).map(|(key, _)| *key).collect();
        for key in strangers {
            let Some(link) = self.links.get_mut(&key) else { continue };
            let received = link.read();
            self.receive(key, received)?;
        }
        if self.links.values().any(|link| link.peer.is_none()) {
            return Ok(());
        }
        for peer in 0..self.routes.len() {
            if let Some(noticed) = self.routes[peer].ending.take()
                && self.links.values().all(|link| link.peer != Some(peer))
            {
                self.lose(peer, noticed)?;
            }
        }
        Ok(())
    }

    fn accept(&mut self) {
        loop {
            let Ways::Host(listener) = &self.setup.ways else { return };
            let (handle, process) = match accept_from(listener) {
                Ok(caller) => caller,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Out of descriptors, most likely: try again when some may be free.
                    self.deaf_until = Some(Instant::now() + DEAF_FOR);
                    return;
                }
            };
            let strangers = self.links.values().filter(|link| link.peer.is_none()).count();
            if strangers < MOST_STRANGERS {
                self.add(Link::accepted(handle, process, Instant::now()));
            }
        }
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
                self.routes[peer].ending = Some(Noticed::from_connection(&error));
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

    /// Somebody said hello; who is no member is sent away without a word.
    fn admit(&mut self, key: usize, hello: Hello) {
        let expected = Hello { rank: hello.rank, ..self.hello() };
        let peer = hello.rank as usize;
        let known = self.links.values().filter(|link| link.peer == Some(peer)).count();
        if hello != expected || peer >= self.routes.len() || peer == self.setup.rank || known >= 2 {
            self.links.remove(&key);
            return;
        }
        if let Some(link) = self.links.get_mut(&key) {
            link.peer = Some(peer);
        }
        self.routes[peer].out.get_or_insert(key);
        self.routes[peer].dial_again = false;
    }

    fn lose(&mut self, peer: usize, noticed: Noticed) -> Result<(), End> {
        let lost = self.post.lose(peer, noticed);
        self.routes[peer].queue.clear();
        self.decide(lost)
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

    /// Peers of other hosts do not see that the group is aborted: they hear why. A frame that was begun is finished first, as
    /// long as its memory is there.
    fn pass_on_verdict(&mut self) {
        if let (Ways::Network(_), Some(verdict)) = (&self.setup.ways, self.setup.fate.verdict()) {
            let bytes = verdict_frame(&verdict);
            let until = Instant::now() + VERDICT_GRACE;
            for route in &mut self.routes {
                let Some(link) = route.out.and_then(|key| self.links.get_mut(&key)) else { continue };
                let begun = route.writing.take().filter(Writing::is_begun);
                if begun.is_none_or(|writing| link.write_rest(&writing, until)) {
                    send_all(link.socket(), &bytes, until);
                }
            }
        }
        if let Ways::Network(_) = self.setup.ways {
            linger(self.links.values().map(Link::socket));
        }
    }

    /// Nothing is under way: what is written goes out, and a word that no more comes.
    fn say_goodbye(&mut self) {
        let until = Instant::now() + GRACE;
        for (peer, route) in self.routes.iter_mut().enumerate() {
            if peer != self.setup.rank && route.out.is_some() {
                route.queue.push_back((Frame::Goodbye, 0));
            }
        }
        while Instant::now() < until {
            for peer in 0..self.routes.len() {
                if self.pump(peer).is_err() {
                    return;
                }
            }
            // Peers that are gone, or do not read, get nothing more.
            let mut handles: Vec<PollFd<'_>> = Vec::new();
            for route in &self.routes {
                if let Some(link) = route.out.and_then(|key| self.links.get(&key))
                    && (route.writing.is_some() || !route.queue.is_empty())
                {
                    handles.push(PollFd::new(link.socket().as_fd(), PollFlags::POLLOUT));
                }
            }
            if handles.is_empty() {
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            let _ = poll(&mut handles, poll_timeout(left));
            if handles.iter().all(|handle| {
                handle.revents().is_some_and(|events| events.intersects(PollFlags::POLLERR | PollFlags::POLLHUP))
            }) {
                return;
            }
        }
    }
}

/// The next caller who is the same user, with its process.
fn accept_from(listener: &UnixListener) -> io::Result<(OwnedFd, i32)> {
    loop {
        let (stream, _) = listener.accept()?;
        let Ok(credentials) = getsockopt(&stream, PeerCredentials) else { continue };
        if credentials.uid() == nix::unistd::geteuid().as_raw() {
            return Ok((stream.into(), credentials.pid()));
        }
    }
}

/// Mail that was never used ends: who waits for this rank hears that it leaves.
pub(super) fn decline(setup: Setup) {
    let goodbye = Frame::Goodbye.to_bytes();
    match &setup.ways {
        Ways::Host(listener) => {
            while let Ok((caller, _)) = accept_from(listener) {
                // A caller that is gone needs no answer.
                send_all(&caller, &goodbye, Instant::now());
            }
        }
        Ways::Network(connections) => {
            for connection in connections.iter().flatten() {
                send_all(connection, &goodbye, Instant::now());
            }
            linger(connections.iter().flatten());
        }
    }
}

/// The group of mail that was never used is aborted: peers that do not see it hear why.
pub(super) fn tell(setup: &Setup) {
    if let (Ways::Network(connections), Some(verdict)) = (&setup.ways, setup.fate.verdict()) {
        let bytes = verdict_frame(&verdict);
        for connection in connections.iter().flatten() {
            send_all(connection, &bytes, Instant::now());
        }
    }
}

fn verdict_frame(verdict: &Verdict) -> Vec<u8> {
    [&Frame::Verdict.to_bytes()[..], &verdict_to_bytes(verdict)].concat()
}
