//! Messages between two ranks: send and receive, beside the order of the collectives.
//!
//! | module | what it is for |
//! |---|---|
//! | `post` | which message goes to which receive, what to say next: pure |
//! | `wire` | what ranks say to each other, as bytes |
//! | `link` | one connection |
//! | `carrier` | the thread that performs what `post` decides |
//!
//! Inside a host every rank listens on an abstract Unix socket of the generation; a connection is opened with the first
//! message or receive between two ranks. Both may open one at the same time: each then writes to its own and reads both.
//! Between hosts it is the same over TCP, at a port that the rank has for messages alone. Either way connections are separate
//! from what collectives use, so a message that nobody wants stops nothing.
//!
//! The thread starts with the first message or receive; between hosts at once, because a caller has to be answered. It is
//! joined when the mail is dropped: with its group, or when the group gets other peers. What is under way then aborts the
//! group; what is written is delivered.

mod carrier;
mod link;
mod post;
pub(crate) mod wire;

use std::collections::VecDeque;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::arena::verdict::Verdict;
use crate::fate::Fate;
use crate::group::join;
use crate::operation::{Source, Target};
use crate::queue::lock;
use crate::ticket::Ticket;
use crate::{Address, Error, Secret};
use carrier::Carrier;

/// Sends and receives that can be under way; a caller who starts more waits.
const MOST_PENDING: usize = 1 << 16;

/// Makes the group's failure known and returns the one that counts.
pub(crate) type Condemn = Arc<dyn Fn(&Verdict) -> Error + Send + Sync>;

/// How the peers are reached.
pub(crate) enum Ways {
    /// Through sockets of this host, opened when they are needed.
    Host(UnixListener),
    /// Through TCP, opened when it is needed, with what the ranks of the job know.
    Network { listener: TcpListener, secret: Option<Secret> },
}

/// What a rank's mail has to know about its group.
pub(crate) struct Setup {
    pub(crate) rank: usize,
    pub(crate) addresses: Vec<Address>,
    pub(crate) generation: u64,
    pub(crate) ways: Ways,
    pub(crate) fate: Fate,
    /// Ranks can read each other's memory.
    pub(crate) single_copy: bool,
}

/// One rank's messages of one generation of a group.
pub(crate) struct Mail {
    shared: Arc<Shared>,
    /// What the thread will need, until it starts.
    setup: Mutex<Option<(Setup, Condemn)>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Who made it: a forked child has a copy, which must not speak for its parent.
    process: u32,
}

struct Shared {
    inbox: Mutex<Inbox>,
    /// For callers who wait for room.
    room: Condvar,
    /// For the thread: look into the inbox.
    wake: EventFd,
}

#[derive(Default)]
struct Inbox {
    orders: VecDeque<Order>,
    /// Orders and what the thread has under way.
    pending: usize,
    failure: Option<Error>,
    closing: bool,
}

/// What a caller wants.
enum Task {
    Send { source: Source, to: usize },
    Receive { target: Target, from: Option<usize> },
}

struct Order {
    task: Task,
    tag: u64,
    timeout: Duration,
    deadline: Instant,
    ticket: Ticket,
}

/// The abstract name under which a rank takes messages of a generation.
fn socket_name(address: &Address, generation: u64) -> Vec<u8> {
    [&address.socket[..], format!("-mail-{generation}").as_bytes()].concat()
}

/// Opens the socket for messages of a generation, before any peer can want to use it.
pub(crate) fn listen(address: &Address, generation: u64) -> Result<UnixListener, Error> {
    SocketAddr::from_abstract_name(socket_name(address, generation))
        .and_then(|name| UnixListener::bind_addr(&name))
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| Error::system("listen on a Unix socket for messages", error))
}

impl Mail {
    pub(crate) fn new(setup: Setup, condemn: Condemn) -> Result<Mail, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake =
            EventFd::from_value_and_flags(0, flags).map_err(|error| Error::system("create an event handle", error))?;
        let answers = matches!(setup.ways, Ways::Network { .. });
        let mail = Mail {
            shared: Arc::new(Shared { inbox: Mutex::new(Inbox::default()), room: Condvar::new(), wake }),
            setup: Mutex::new(Some((setup, condemn))),
            thread: Mutex::new(None),
            process: std::process::id(),
        };
        if answers {
            mail.start()?;
        }
        Ok(mail)
    }

    /// Gives `source` to a rank. Its memory is valid until the ticket is finished.
    pub(crate) fn send(&self, source: Source, to: usize, tag: u64, timeout: Duration) -> Result<Ticket, Error> {
        self.post(Task::Send { source, to }, tag, timeout)
    }

    /// Fills `target` from a rank, or from whoever is first. Its memory is valid until the ticket is finished.
    pub(crate) fn receive(
        &self,
        target: Target,
        from: Option<usize>,
        tag: u64,
        timeout: Duration,
    ) -> Result<Ticket, Error> {
        self.post(Task::Receive { target, from }, tag, timeout)
    }

    fn post(&self, task: Task, tag: u64, timeout: Duration) -> Result<Ticket, Error> {
        let deadline = Instant::now() + timeout;
        let mut inbox = lock(&self.shared.inbox);
        while inbox.failure.is_none() && inbox.pending >= MOST_PENDING {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::invalid(format!("{MOST_PENDING} sends and receives are already in progress")));
            }
            inbox = self.shared.room.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(failure) = &inbox.failure {
            return Err(failure.clone());
        }
        self.start()?;
        let ticket = Ticket::new();
        inbox.pending += 1;
        inbox.orders.push_back(Order { task, tag, timeout, deadline, ticket: ticket.clone() });
        // With more than one order the thread has been told already.
        if inbox.orders.len() == 1 {
            self.shared.rouse();
        }
        Ok(ticket)
    }

    fn start(&self) -> Result<(), Error> {
        let Some((setup, condemn)) = lock(&self.setup).take() else { return Ok(()) };
        let shared = Arc::clone(&self.shared);
        let builder = std::thread::Builder::new().name("instep-mail".to_owned());
        let thread = builder
            .spawn(move || Carrier::new(setup, condemn, shared).run())
            .map_err(|error| Error::system("start a thread", error))?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// The group is aborted: everything under way fails, and so does what comes.
    pub(crate) fn fail(&self, error: &Error) {
        let mut inbox = lock(&self.shared.inbox);
        if inbox.failure.is_none() {
            inbox.failure = Some(error.clone());
            self.shared.rouse();
            self.shared.room.notify_all();
        }
    }

    /// Whether something is under way.
    pub(crate) fn is_busy(&self) -> bool {
        lock(&self.shared.inbox).pending > 0
    }
}

impl Shared {
    fn rouse(&self) {
        // A counter that is full wakes the thread as well.
        let _ = self.wake.write(1);
    }
}

impl Drop for Mail {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The thread is the parent's.
            std::mem::forget(lock(&self.thread).take());
            return;
        }
        lock(&self.shared.inbox).closing = true;
        self.shared.rouse();
        if let Some(thread) = lock(&self.thread).take() {
            join(thread);
        }
        if let Some((setup, _)) = lock(&self.setup).take() {
            carrier::farewell::decline(setup);
        }
    }
}
