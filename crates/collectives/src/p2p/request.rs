//! Sends and receives on their way from callers to the progress thread.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;

use crate::operation::{Source, Target};
use crate::sync::event_fd;
use crate::ticket::Ticket;
use crate::{Error, Rank};

/// Sends and receives that can be under way; a caller who starts more waits.
pub(super) const MAX_PENDING: usize = 1 << 16;

/// What callers and the progress thread share.
pub(super) struct P2pShared {
    pub(super) inbox: Mutex<Inbox>,
    /// For callers who wait for room.
    pub(super) room: Condvar,
    /// For the thread: look into the inbox.
    pub(super) wake: EventFd,
}

/// Requests that the progress thread has not taken yet, and how many there are in all.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) requests: VecDeque<QueuedRequest>,
    /// Requests here, and those that the thread has under way.
    pub(super) pending: usize,
    pub(super) failure: Option<Error>,
    pub(super) closing: bool,
}

/// What a caller wants.
pub(super) enum RequestKind {
    Send { source: Source, to: Rank },
    Receive { target: Target, from: Option<Rank> },
}

/// A send or receive as its caller gave it.
pub(super) struct QueuedRequest {
    pub(super) kind: RequestKind,
    pub(super) tag: u64,
    pub(super) timeout: Duration,
    pub(super) deadline: Instant,
    pub(super) ticket: Ticket,
}

impl P2pShared {
    pub(super) fn new() -> Result<P2pShared, Error> {
        Ok(P2pShared { inbox: Mutex::new(Inbox::default()), room: Condvar::new(), wake: event_fd()? })
    }

    /// Has the progress thread look into the inbox.
    pub(super) fn wake_progress(&self) {
        // A counter that is full wakes the thread as well.
        let _ = self.wake.write(1);
    }

    /// Waits until there may be room for another request, at most so long.
    pub(super) fn wait_for_room<'a>(&self, inbox: MutexGuard<'a, Inbox>, left: Duration) -> MutexGuard<'a, Inbox> {
        self.room.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0
    }
}
