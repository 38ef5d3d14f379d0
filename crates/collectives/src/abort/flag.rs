//! The abort of a group as one process knows it, where ranks do not share memory and must be told.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, OnceLock};

use nix::sys::eventfd::EventFd;

use super::AbortReason;
use crate::call::{Call, Kind};
use crate::sync::{event_fd, lock};
use crate::{DataType, Error};

/// Why the group is aborted, and something that wakes whoever waits in this process.
pub(crate) struct AbortFlag {
    reason: OnceLock<AbortReason>,
    wake: EventFd,
    /// The last operation that this rank began, for whoever finds a peer gone.
    under_way: Mutex<(Call, u64)>,
    /// Where this rank is among those of its host.
    position: Mutex<Position>,
}

/// The operation that a rank is in, or that it calls next, and the part of the arena's work that begins it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    pub(crate) operation: u64,
    pub(crate) part: u64,
}

impl AbortFlag {
    pub(crate) fn new() -> Result<AbortFlag, Error> {
        let nothing = Call::new(Kind::Barrier, DataType::Bytes, 0);
        let (under_way, position) = (Mutex::new((nothing, 0)), Mutex::new(Position::default()));
        Ok(AbortFlag { reason: OnceLock::new(), wake: event_fd()?, under_way, position })
    }

    /// Aborts the group for this reason, unless it is aborted already. Nobody reads the event: it stays.
    pub(crate) fn abort(&self, reason: &AbortReason) {
        if self.reason.set(reason.clone()).is_ok() {
            let _ = self.wake.write(1);
        }
    }

    pub(crate) fn abort_reason(&self) -> Option<&AbortReason> {
        self.reason.get()
    }

    /// An operation begins.
    pub(crate) fn begin(&self, call: Call, sequence: u64) {
        *lock(&self.under_way) = (call, sequence);
    }

    /// This rank is done with all operations before this one.
    pub(crate) fn set_position(&self, position: Position) {
        *lock(&self.position) = position;
    }

    pub(crate) fn position(&self) -> Position {
        *lock(&self.position)
    }

    /// The operation that began last.
    pub(crate) fn under_way(&self) -> (Call, u64) {
        *lock(&self.under_way)
    }

    /// What to poll: readable once the group is aborted.
    pub(crate) fn handle(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
