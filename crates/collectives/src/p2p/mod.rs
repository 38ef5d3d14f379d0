//! Messages between two ranks: send and receive, beside the order of the collectives.
//!
//! | module | what it is for |
//! |---|---|
//! | `matching` | which message goes to which receive, what to say next: pure |
//! | `wire` | what ranks say to each other, as bytes |
//! | `link` | one connection |
//! | `request` | sends and receives on their way from callers to the progress thread |
//! | `progress` | the thread that performs what `matching` decides |
//!
//! Inside a host every rank listens on an abstract Unix socket of the generation; a connection is opened with the first
//! message or receive between two ranks. Both may open one at the same time: each then writes to its own and reads both.
//! Between hosts it is the same over TCP, at a port that the rank has for messages alone. Either way connections are separate
//! from what collectives use, so a message that nobody wants stops nothing.
//!
//! The thread starts with the first message or receive; between hosts at once, because a caller has to be answered. It is
//! joined when [`P2p`] is dropped: with its group, or when the group gets other peers. What is under way then aborts the
//! group; what is written is delivered.

pub(crate) mod config;
mod link;
mod matching;
mod progress;
mod request;
pub(crate) mod wire;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::abort::AbortGroup;
use crate::operation::{Source, Target};
use crate::sync::{ForkGuard, join, lock, until};
use crate::tcp::secret::Nonces;
use crate::ticket::Ticket;
use crate::{Error, Rank};
use config::{P2pConfig, P2pListener};
use progress::ProgressThread;
use request::{MAX_PENDING, P2pShared, QueuedRequest, RequestKind};

/// One rank's messages of one generation of a group.
pub(crate) struct P2p {
    shared: Arc<P2pShared>,
    /// What the thread will need, until it starts.
    config: Mutex<Option<(P2pConfig, AbortGroup)>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    owner: ForkGuard,
}

impl P2p {
    pub(crate) fn new(config: P2pConfig, abort_group: AbortGroup) -> Result<P2p, Error> {
        let answers = matches!(config.listener, P2pListener::Network { .. });
        let p2p = P2p {
            shared: Arc::new(P2pShared::new()?),
            config: Mutex::new(Some((config, abort_group))),
            thread: Mutex::new(None),
            owner: ForkGuard::new(),
        };
        if answers {
            p2p.start()?;
        }
        Ok(p2p)
    }

    /// Gives `source` to a rank. Its memory is valid until the ticket is finished.
    pub(crate) fn send(&self, source: Source, to: Rank, tag: u64, timeout: Duration) -> Result<Ticket, Error> {
        self.submit(RequestKind::Send { source, to }, tag, timeout)
    }

    /// Fills `target` from a rank, or from whoever is first. Its memory is valid until the ticket is finished.
    pub(crate) fn receive(
        &self,
        target: Target,
        from: Option<Rank>,
        tag: u64,
        timeout: Duration,
    ) -> Result<Ticket, Error> {
        self.submit(RequestKind::Receive { target, from }, tag, timeout)
    }

    fn submit(&self, kind: RequestKind, tag: u64, timeout: Duration) -> Result<Ticket, Error> {
        let deadline = Instant::now() + timeout;
        let mut inbox = lock(&self.shared.inbox);
        while inbox.failure.is_none() && inbox.pending >= MAX_PENDING {
            let left = until(deadline);
            if left.is_zero() {
                return Err(Error::invalid(format!("{MAX_PENDING} sends and receives are already under way")));
            }
            inbox = self.shared.wait_for_room(inbox, left);
        }
        if let Some(failure) = &inbox.failure {
            return Err(failure.clone());
        }
        if let Err(error) = self.start() {
            if lock(&self.config).is_none() {
                // Without a thread nothing would notice that a request is late.
                inbox.failure = Some(error.clone());
            }
            return Err(error);
        }
        let ticket = Ticket::new();
        inbox.pending += 1;
        inbox.requests.push_back(QueuedRequest { kind, tag, timeout, deadline, ticket: ticket.clone() });
        // With more than one request the thread has been told already.
        if inbox.requests.len() == 1 {
            self.shared.wake_progress();
        }
        Ok(ticket)
    }

    fn start(&self) -> Result<(), Error> {
        let mut config = lock(&self.config);
        if config.is_none() {
            return Ok(());
        }
        let nonces = Nonces::of_system().map_err(|error| Error::system("read /dev/urandom", error))?;
        let Some((config, abort_group)) = config.take() else { return Ok(()) };
        let shared = Arc::clone(&self.shared);
        let builder = std::thread::Builder::new().name("instep-p2p".to_owned());
        let thread = builder
            .spawn(move || ProgressThread::new(config, abort_group, shared, nonces).run())
            .map_err(|error| Error::system("start a thread", error))?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// The group is aborted: everything under way fails, and so does what comes.
    pub(crate) fn fail(&self, error: &Error) {
        let mut inbox = lock(&self.shared.inbox);
        if inbox.failure.is_none() {
            inbox.failure = Some(error.clone());
            self.shared.wake_progress();
            self.shared.room.notify_all();
        }
    }

    /// Whether something is under way.
    pub(crate) fn is_busy(&self) -> bool {
        lock(&self.shared.inbox).pending > 0
    }
}

impl Drop for P2p {
    fn drop(&mut self) {
        if !self.owner.is_owner() {
            // The thread is the parent's.
            std::mem::forget(lock(&self.thread).take());
            return;
        }
        lock(&self.shared.inbox).closing = true;
        self.shared.wake_progress();
        if let Some(thread) = lock(&self.thread).take() {
            join(thread);
        }
        if let Some((config, _)) = lock(&self.config).take() {
            progress::shutdown::refuse_pending(config);
        }
    }
}
