//! Whether a group is aborted, and why: the first reason counts, for collectives and messages alike.
//!
//! [`Abort`] is what all parts of a group look at and any of them can set; [`AbortReason`] says why. Where ranks share memory
//! the reason lies in their arena; elsewhere it lies in the [`AbortFlag`] of each process, and the peers must be told.

mod flag;
mod reason;

use std::sync::Arc;

use crate::shm::arena::Arena;
use crate::{Error, Rank};
pub(crate) use flag::{AbortFlag, Position};
pub(crate) use reason::{ABORT_BYTES, ABORT_WORDS, AbortReason};

/// Makes the group's failure known and returns the one that counts.
pub(crate) type AbortGroup = Arc<dyn Fn(&AbortReason) -> Error + Send + Sync>;

/// Where the abort of a group is kept, by transport.
#[derive(Clone)]
pub(crate) enum Abort {
    /// In shared memory: all ranks see it at once.
    Shm(Arc<Arena>),
    /// In this process: the peers must be told.
    Tcp(Arc<AbortFlag>),
    /// In the memory of this host, and in this process for those of other hosts, which must be told.
    Hierarchical(Arc<Arena>, Arc<AbortFlag>),
}

impl Abort {
    /// Aborts the group for this reason, unless it is aborted already.
    pub(crate) fn abort(&self, reason: &AbortReason) {
        match self {
            Abort::Shm(arena) => arena.abort(reason),
            Abort::Tcp(flag) => flag.abort(reason),
            Abort::Hierarchical(arena, flag) => {
                arena.abort(reason);
                flag.abort(&arena.abort_reason().unwrap_or_else(|| reason.clone()));
            }
        }
    }

    pub(crate) fn is_aborted(&self) -> bool {
        match self {
            Abort::Shm(arena) => arena.is_aborted(),
            Abort::Tcp(flag) => flag.abort_reason().is_some(),
            Abort::Hierarchical(arena, flag) => arena.is_aborted() || flag.abort_reason().is_some(),
        }
    }

    /// Why the group is aborted, once it is.
    pub(crate) fn abort_reason(&self) -> Option<AbortReason> {
        match self {
            Abort::Shm(arena) => arena.abort_reason(),
            Abort::Tcp(flag) => flag.abort_reason().cloned(),
            Abort::Hierarchical(arena, flag) => arena.abort_reason().or_else(|| flag.abort_reason().cloned()),
        }
    }

    /// The abort as the error that callers get: by this rank itself, if no reason was written. `hosts` is by rank.
    pub(crate) fn to_error(&self, own_rank: Rank, hosts: &[String]) -> Error {
        self.abort_reason().map_or(Error::Aborted { by: own_rank }, |reason| reason.to_error(hosts))
    }
}
