//! What all transports do, and `builder`, the one place that decides which of them a group gets.
//!
//! | transport | where |
//! |---|---|
//! | [`crate::shm::transport::ShmTransport`] | all ranks share memory |
//! | [`crate::tcp::TcpTransport`] | no two ranks share memory |
//! | [`crate::hierarchical::HierarchicalTransport`] | otherwise: both |

pub(crate) mod builder;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::abort::Abort;
use crate::operation::Operation;
use crate::shm::arena::Arena;
use crate::ticket::Output;
use crate::{Error, Rank};

/// What does a group's collectives, as one rank holds it.
pub(crate) trait Transport: Send {
    fn rank(&self) -> Rank;

    /// Where the abort of the group is kept.
    fn abort(&self) -> Abort;

    /// Runs an operation whose buffers are valid until it returns. After an error the group is aborted, except for an
    /// operation that contradicts itself, of which nothing was sent.
    fn run(&mut self, operation: &Operation, timeout: Duration) -> Result<(), Error>;

    /// Lets the peers know that the group is aborted, where they do not see it.
    fn broadcast_abort(&mut self) {}

    /// Operations completed since the group was connected.
    fn completed(&self) -> u64;

    /// What survivors of the generation before agree to have completed.
    fn agreed(&self) -> Option<u64>;

    /// What the last operation that failed did to its output.
    fn output(&self) -> Output;

    /// Whether all ranks can read each other's memory.
    fn uses_single_copy(&self) -> bool {
        false
    }

    /// The memory that the ranks share and a handle on every rank's process, where all ranks share memory.
    fn shared_memory(&self) -> Option<(Arc<Arena>, Arc<[OwnedFd]>)> {
        None
    }
}
