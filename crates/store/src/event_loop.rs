//! The server's thread: readiness in, requests through the state, replies out.
//!
//! Invariants:
//! 1. Readiness is edge-triggered. A connection that is left with unread bytes is either in `again` (its turn was over)
//!    or waits for its output to drain (it reads more slowly than it asks), and is served again then.
//! 2. A connection whose unsent output passes [`OUTPUT_PAUSE_BYTES`] is neither decoded nor read until it has drained, so
//!    the memory of a connection is bounded by one request, one reply and that; that of all together by [`bounds`].
//! 3. A connection that does not say in time what it is, or the first whole message of its protocol, is closed.
//! 4. Replies are queued first and written at the end of a turn; nothing in between removes another connection, except
//!    [`bounds`] once what a connection has sent is processed.

mod bounds;
mod sealed;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};

use crate::companion::{Action, Companion, Context};
use crate::connection::{Connection, Opening, Role, opening};
use crate::notice::{Budgets, Notice};
use crate::protocol::{HELLO, Limits, Violation};
use crate::state::{ClientId, Replies, State};

pub(crate) const WAKER: Token = Token(usize::MAX);
const FIRST_LISTENER: usize = usize::MAX - 16;

/// Read at once, on the server's behalf and not the connection's: idle connections own no buffer.
const READ_BYTES: usize = 256 << 10;
/// Reads of one connection before others have their turn.
const READS_PER_TURN: usize = 8;
/// How often to look for events before sleeping; some ten microseconds in all.
const POLLS_BEFORE_SLEEP: usize = 32;
const OUTPUT_PAUSE_BYTES: usize = 1 << 20;
const COMPANION_INPUT_BYTES: usize = 1 << 20;
const COMPANION_OUTPUT_BYTES: usize = 16 << 20;
const EVENTS_PER_TURN: usize = 1024;

/// How long a closing connection, or the whole server, may take to write what is queued.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);
/// How long a connection may take to say what it is. torch's clients say it with their first bytes.
const OPENING_DEADLINE: Duration = Duration::from_secs(30);
/// Between attempts to accept when the process is out of files; and between notices of it.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
const ACCEPT_NOTICE_EVERY: Duration = Duration::from_secs(30);

pub(crate) struct EventLoop {
    poll: Poll,
    listeners: Vec<TcpListener>,
    connections: HashMap<ClientId, Connection>,
    state: State,
    companion: Option<Box<dyn Companion>>,
    notices: Box<dyn FnMut(Notice) + Send>,
    budgets: Budgets,
    limits: Limits,
    /// The limit on open files allows no more connections than `limits` has now.
    by_file_limit: bool,
    /// Bytes of all connections' requests that are not complete, see [`Connection::incomplete`].
    incomplete: usize,
    /// Bytes of all replies and messages so far, and at how many of them to look what is unread.
    replied: u64,
    recount_at: u64,
    /// Connections that have to say what they are, oldest first.
    openings: VecDeque<(Instant, ClientId)>,
    next_client: u64,
    now: Instant,
    read_buffer: Vec<u8>,
    replies: Replies,
    actions: Vec<Action>,
    /// Connections to serve again without a new event.
    again: VecDeque<ClientId>,
    /// Connections with output queued in this turn.
    unflushed: Vec<ClientId>,
    /// Connections to be dropped after their output, oldest first.
    closing: VecDeque<(Instant, ClientId)>,
    accept_again_at: Option<Instant>,
    accept_noticed_at: Option<Instant>,
    tick_at: Option<Instant>,
    stopping: bool,
    stop_requested: Arc<AtomicBool>,
}

/// What became of a connection whose bytes were processed.
enum Processed {
    Consumed(usize),
    Dropped,
}

impl EventLoop {
    pub(crate) fn new(
        poll: Poll,
        listeners: Vec<std::net::TcpListener>,
        companion: Option<Box<dyn Companion>>,
        notices: Box<dyn FnMut(Notice) + Send>,
        stop_requested: Arc<AtomicBool>,
        allowed: Limits,
        file_limit: Option<u64>,
    ) -> io::Result<EventLoop> {
        let limits = file_limit.map_or(allowed, |files| bounds::connections_within(allowed, files));
        let mut registered = Vec::new();
        for (index, listener) in listeners.into_iter().enumerate() {
            listener.set_nonblocking(true)?;
            let mut listener = TcpListener::from_std(listener);
            let token = Token(FIRST_LISTENER + index);
            poll.registry().register(&mut listener, token, Interest::READABLE)?;
            registered.push(listener);
        }
        Ok(EventLoop {
            poll,
            listeners: registered,
            connections: HashMap::new(),
            state: State::with_limits(limits),
            companion,
            notices,
            budgets: Budgets::default(),
            limits,
            by_file_limit: limits.connections < allowed.connections,
            incomplete: 0,
            replied: 0,
            recount_at: 0,
            openings: VecDeque::new(),
            next_client: 0,
            now: Instant::now(),
            read_buffer: vec![0; READ_BYTES],
            replies: Vec::new(),
            actions: Vec::new(),
            again: VecDeque::new(),
            unflushed: Vec::new(),
            closing: VecDeque::new(),
            accept_again_at: None,
            accept_noticed_at: None,
            tick_at: None,
            stopping: false,
            stop_requested,
        })
    }

    /// Serves until told to stop.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        self.tick();
        self.flush_all();
        while !self.stopping && !self.stop_requested.load(Ordering::Acquire) {
            match self.wait(&mut events) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(cause) => {
                    self.notify(Notice::LoopFailed { cause });
                    break;
                }
            }
            self.run_once(&events);
        }
        self.finish(&mut events);
    }

    /// Waits for events, at first awake: who asks once mostly asks again at once, and waking a sleeping thread takes
    /// longer than the answer. Others that want the processor get it meanwhile.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        for _ in 0..POLLS_BEFORE_SLEEP {
            self.poll.poll(events, Some(Duration::ZERO))?;
            if !events.is_empty() {
                return Ok(());
            }
            std::thread::yield_now();
        }
        let timeout = self.timeout();
        self.poll.poll(events, timeout)
    }

    fn run_once(&mut self, events: &Events) {
        self.now = Instant::now();
        for event in events {
            match event.token() {
                WAKER => {}
                Token(listener) if listener >= FIRST_LISTENER => self.accept(listener - FIRST_LISTENER),
                Token(client) => self.ready(ClientId(client as u64), event),
            }
        }
        for _ in 0..self.again.len() {
            let Some(client) = self.again.pop_front() else {
                break;
            };
            if let Some(connection) = self.connections.get_mut(&client) {
                connection.queued = false;
                self.serve(client);
            }
        }
        if self.accept_again_at.is_some_and(|at| at <= self.now) {
            self.accept_again_at = None;
            (0..self.listeners.len()).for_each(|listener| self.accept(listener));
        }
        self.tick();
        self.flush_all();
        self.bound_unread();
        self.drop_overdue();
        self.drop_undecided();
    }

    fn notify(&mut self, notice: Notice) {
        for notice in self.budgets.admit(notice, self.now) {
            (self.notices)(notice);
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let closing_at = self.closing.front().map(|(at, _)| *at);
        let opening_at = self.openings.front().map(|(at, _)| *at);
        let next = [self.tick_at, self.accept_again_at, closing_at, opening_at];
        let next = next.into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn accept(&mut self, listener: usize) {
        loop {
            match self.listeners[listener].accept() {
                Ok((stream, peer)) => self.register(stream, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_out_of_resources(&error) => {
                    self.accept_again_at = Some(self.now + ACCEPT_RETRY);
                    return self.accept_failed(error);
                }
                // The peer gave up while it was queued (ECONNABORTED and the like); the next one may be fine.
                Err(_) => {}
            }
        }
    }

    fn accept_failed(&mut self, cause: io::Error) {
        let silent = self.accept_noticed_at.is_some_and(|at| self.now < at + ACCEPT_NOTICE_EVERY);
        if !silent {
            self.accept_noticed_at = Some(self.now);
            let open = self.connections.len();
            self.notify(Notice::AcceptFailed { cause, open });
        }
    }

    fn register(&mut self, stream: mio::net::TcpStream, peer: SocketAddr) {
        if self.connections.len() >= self.limits.connections && !self.close_undecided() {
            return self.notify(self.too_many_connections(peer));
        }
        // An error here means that the peer is gone already.
        let Ok(mut connection) = Connection::new(stream, peer) else {
            return;
        };
        let client = ClientId(self.next_client);
        self.next_client += 1;
        // Both interests at once and for good: with edge-triggered readiness an unused one costs nothing, while
        // changing them costs a system call each time.
        let interests = Interest::READABLE | Interest::WRITABLE;
        let token = Token(client.0 as usize);
        match self.poll.registry().register(&mut connection.stream, token, interests) {
            Ok(()) => {
                self.connections.insert(client, connection);
                self.openings.push_back((self.now + OPENING_DEADLINE, client));
            }
            Err(cause) => self.accept_failed(cause),
        }
    }

    fn ready(&mut self, client: ClientId, event: &Event) {
        let Some(connection) = self.connections.get_mut(&client) else {
            return;
        };
        connection.read_closed |= event.is_read_closed() || event.is_error();
        connection.readable |= event.is_readable() || connection.read_closed;
        if event.is_writable() && connection.output.unsent() > 0 {
            self.flush(client);
        }
        self.serve(client);
    }

    /// Processes what a connection has sent, for one turn.
    fn serve(&mut self, client: ClientId) {
        for _ in 0..READS_PER_TURN {
            let Some(connection) = self.connections.get_mut(&client) else {
                return;
            };
            if connection.closing || connection.output.unsent() > OUTPUT_PAUSE_BYTES {
                return;
            }
            let held_back = std::mem::take(&mut connection.held_back);
            let received = if held_back {
                0
            } else if connection.readable {
                match connection.read(&mut self.read_buffer) {
                    Ok(Some(0)) | Err(_) => return self.connection_lost(client),
                    Ok(Some(length)) => length,
                    Ok(None) => return,
                }
            } else {
                return;
            };
            self.feed(client, received);
            self.flush(client);
            self.flush_all();
            self.bound_unread();
        }
        if let Some(connection) = self.connections.get_mut(&client)
            && !connection.queued
        {
            connection.queued = true;
            self.again.push_back(client);
        }
    }

    /// Processes what was left over together with the first `received` bytes of the read buffer.
    fn feed(&mut self, client: ClientId, received: usize) {
        let Some(connection) = self.connections.get_mut(&client) else {
            return;
        };
        let mut input = std::mem::take(&mut connection.input);
        self.incomplete -= input.len();
        if input.is_empty() {
            let buffer = std::mem::take(&mut self.read_buffer);
            let processed = self.process(client, &buffer[..received]);
            if let Processed::Consumed(length) = processed
                && length < received
                && let Some(connection) = self.connections.get_mut(&client)
            {
                connection.input = buffer[length..received].to_vec();
                connection.input_since = Some(self.now);
                self.incomplete += received - length;
            }
            self.read_buffer = buffer;
            return self.bound_incomplete();
        }
        input.extend_from_slice(&self.read_buffer[..received]);
        if let Processed::Consumed(length) = self.process(client, &input)
            && length < input.len()
            && let Some(connection) = self.connections.get_mut(&client)
        {
            input.drain(..length);
            self.incomplete += input.len();
            connection.input = input;
            if length > 0 {
                connection.input_since = Some(self.now);
            }
        }
        self.bound_incomplete();
    }

    fn process(&mut self, client: ClientId, bytes: &[u8]) -> Processed {
        let Some(connection) = self.connections.get(&client) else {
            return Processed::Dropped;
        };
        if connection.sealed.is_some() {
            return self.process_sealed(client, bytes);
        }
        match connection.role {
            Role::Store => self.process_store(client, bytes),
            Role::Companion => self.process_companion(client, bytes),
            Role::Unknown => self.process_opening(client, bytes),
        }
    }

    fn process_opening(&mut self, client: ClientId, bytes: &[u8]) -> Processed {
        let Some(connection) = self.connections.get_mut(&client) else {
            return Processed::Dropped;
        };
        let peer = connection.peer;
        let companion = self.companion.as_ref();
        let claimed = |first| companion.is_some_and(|companion| companion.claims(first));
        match opening(bytes, peer, claimed) {
            Opening::Incomplete => Processed::Consumed(0),
            Opening::Store => {
                connection.role = Role::Store;
                self.state.connect(client);
                match self.process_store(client, &bytes[HELLO.len()..]) {
                    Processed::Consumed(length) => Processed::Consumed(HELLO.len() + length),
                    Processed::Dropped => Processed::Dropped,
                }
            }
            Opening::Companion => {
                connection.become_companion();
                self.with_companion(|companion, context| companion.connected(client, peer, context));
                self.process_companion(client, bytes)
            }
            Opening::Unknown(notice) => self.disconnect_with(client, notice),
        }
    }

    fn process_store(&mut self, client: ClientId, bytes: &[u8]) -> Processed {
        let Some(connection) = self.connections.get(&client) else {
            return Processed::Dropped;
        };
        let peer = connection.peer;
        let mut decoder = connection.decoder;
        let mut consumed = 0;
        let mut held_back = false;
        while !held_back {
            let (request, length) = match decoder.decode(&bytes[consumed..], &self.limits) {
                Ok(Some(decoded)) => decoded,
                Ok(None) => break,
                Err(violation) => return self.disconnect_violator(client, violation),
            };
            if let Some(companion) = &mut self.companion
                && let Some(reason) = companion.refuses(&request, peer)
            {
                return self.disconnect_with(client, Notice::Refused { peer, reason });
            }
            if let Err(violation) = self.state.handle_into(client, request, &mut self.replies) {
                return self.disconnect_violator(client, violation);
            }
            consumed += length;
            for (to, reply) in self.replies.drain(..) {
                let Some(connection) = self.connections.get_mut(&to) else {
                    continue;
                };
                self.replied += connection.reply(&reply);
                if to == client {
                    held_back = connection.output.unsent() > OUTPUT_PAUSE_BYTES;
                } else {
                    self.unflushed.push(to);
                }
            }
        }
        if let Some(connection) = self.connections.get_mut(&client) {
            connection.decoder = decoder;
            connection.held_back = held_back;
        }
        Processed::Consumed(consumed)
    }

    fn process_companion(&mut self, client: ClientId, bytes: &[u8]) -> Processed {
        let consumed = self.with_companion(|companion, context| companion.received(client, bytes, context));
        let consumed = consumed.unwrap_or(0).min(bytes.len());
        if self.connections.get(&client).is_some_and(|connection| connection.sealed.is_some()) {
            return match self.process_sealed(client, &bytes[consumed..]) {
                Processed::Consumed(length) => Processed::Consumed(consumed + length),
                Processed::Dropped => Processed::Dropped,
            };
        }
        if bytes.len() - consumed > COMPANION_INPUT_BYTES {
            if let Some(connection) = self.connections.get(&client) {
                let peer = connection.peer;
                let reason = format!("a message of more than {COMPANION_INPUT_BYTES} bytes");
                self.notify(Notice::Overflow { peer, reason });
            }
            self.connection_lost(client);
            return Processed::Dropped;
        }
        Processed::Consumed(consumed)
    }

    fn tick(&mut self) {
        self.tick_at = self.with_companion(|companion, context| companion.tick(context)).flatten();
    }

    /// Calls the companion, if there is one, and queues what it decided.
    fn with_companion<T>(&mut self, call: impl FnOnce(&mut dyn Companion, &mut Context<'_>) -> T) -> Option<T> {
        let companion = self.companion.as_deref_mut()?;
        let mut context = Context { now: self.now, state: &mut self.state, actions: &mut self.actions };
        let result = call(companion, &mut context);
        let (mut notices, mut handed_over) = (Vec::new(), Vec::new());
        for action in self.actions.drain(..) {
            let (client, action) = match action {
                Action::ServeStore(client, sealed) => {
                    handed_over.push((client, sealed));
                    continue;
                }
                Action::Reply(client, _) | Action::Send(client, _) | Action::Close(client) => (client, action),
                Action::Notify(notice) => {
                    notices.push(notice);
                    continue;
                }
                Action::Stop => {
                    self.stopping = true;
                    continue;
                }
            };
            let Some(connection) = self.connections.get_mut(&client) else {
                continue;
            };
            self.unflushed.push(client);
            let before = connection.output.unsent();
            match action {
                Action::Reply(_, reply) => drop(connection.reply(&reply)),
                Action::Send(_, bytes) if !connection.closing => connection.output.push(bytes),
                Action::Close(_) if !connection.closing => {
                    connection.closing = true;
                    self.closing.push_back((self.now + CLOSE_DEADLINE, client));
                }
                Action::Send(..) | Action::Close(_) | Action::ServeStore(..) | Action::Notify(_) | Action::Stop => {}
            }
            self.replied += (connection.output.unsent() - before) as u64;
        }
        for notice in notices {
            self.notify(notice);
        }
        for (client, sealed) in handed_over {
            self.serve_sealed(client, sealed);
        }
        Some(result)
    }

    /// Writes what is queued for the connections of `unflushed`, and for those that this brings in.
    fn flush_all(&mut self) {
        while let Some(client) = self.unflushed.pop() {
            self.flush(client);
        }
    }

    fn flush(&mut self, client: ClientId) {
        let Some(connection) = self.connections.get_mut(&client) else {
            return;
        };
        if connection.output.unsent() == 0 && !connection.closing {
            return;
        }
        let full_before = connection.output.unsent() > OUTPUT_PAUSE_BYTES;
        let written = connection.flush();
        let unsent = connection.output.unsent();
        if connection.closing {
            if written.is_err() || unsent == 0 {
                self.remove(client);
            }
        } else if written.is_err() {
            self.connection_lost(client);
        } else if connection.role == Role::Companion && unsent > COMPANION_OUTPUT_BYTES {
            let peer = connection.peer;
            let reason = format!("it left more than {COMPANION_OUTPUT_BYTES} bytes unread");
            self.notify(Notice::Overflow { peer, reason });
            self.connection_lost(client);
        } else if full_before && unsent <= OUTPUT_PAUSE_BYTES && !connection.queued {
            connection.queued = true;
            self.again.push_back(client);
        }
    }

    /// The peer is gone.
    fn connection_lost(&mut self, client: ClientId) {
        let Some(connection) = self.remove(client) else {
            return;
        };
        if connection.role == Role::Companion && !connection.closing {
            self.with_companion(|companion, context| companion.closed(client, context));
        }
    }

    fn disconnect_with(&mut self, client: ClientId, notice: Notice) -> Processed {
        self.notify(notice);
        self.flush(client);
        self.remove(client);
        Processed::Dropped
    }

    fn disconnect_violator(&mut self, client: ClientId, reason: Violation) -> Processed {
        match self.connections.get(&client).map(|connection| connection.peer) {
            Some(peer) => self.disconnect_with(client, Notice::Violation { peer, reason }),
            None => Processed::Dropped,
        }
    }

    fn remove(&mut self, client: ClientId) -> Option<Connection> {
        let connection = self.connections.remove(&client)?;
        self.incomplete -= connection.incomplete();
        if connection.role == Role::Store {
            self.state.disconnect(client);
        }
        Some(connection)
    }

    fn drop_overdue(&mut self) {
        while let Some(&(at, client)) = self.closing.front() {
            if at > self.now && self.connections.contains_key(&client) {
                return;
            }
            self.closing.pop_front();
            self.remove(client);
        }
    }

    /// Closes connections that have not said what they are.
    fn drop_undecided(&mut self) {
        while let Some(&(at, client)) = self.openings.front() {
            let undecided = self.connections.get(&client).is_some_and(|connection| connection.role == Role::Unknown);
            if at > self.now && undecided {
                return;
            }
            self.openings.pop_front();
            if undecided {
                self.remove(client);
            }
        }
    }

    /// Writes what is queued, for a limited time.
    fn finish(&mut self, events: &mut Events) {
        let deadline = Instant::now() + CLOSE_DEADLINE;
        loop {
            self.connections.retain(|_, connection| connection.flush().is_ok() && connection.output.unsent() > 0);
            let left = deadline.saturating_duration_since(Instant::now());
            if self.connections.is_empty() || left.is_zero() {
                return;
            }
            // A failing poll leaves nothing to wait with.
            if self.poll.poll(events, Some(left)).is_err_and(|error| error.kind() != io::ErrorKind::Interrupted) {
                return;
            }
        }
    }
}

fn is_out_of_resources(error: &io::Error) -> bool {
    use nix::errno::Errno;
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM)
    )
}
