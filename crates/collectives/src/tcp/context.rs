//! What every exchange of an operation needs to know, and why one stops.

use std::time::{Duration, Instant};

use crate::LossCause;
use crate::abort::AbortReason;
use crate::call::Call;

/// What every exchange of an operation needs to know.
pub(super) struct ExchangeContext {
    pub(super) call: Call,
    pub(super) sequence: u64,
    /// Which operation of the caller, without the transport's own at the start.
    pub(super) user_sequence: u64,
    /// How many ranks' values the result is of.
    pub(super) ranks: usize,
    pub(super) timeout: Duration,
    pub(super) deadline: Instant,
}

/// Why an operation stops in the middle.
pub(super) enum ExchangeError {
    /// The group is aborted already.
    Aborted,
    Abort(AbortReason),
    /// By its index among the members.
    Lost(usize, LossCause),
    Deadline,
}

pub(super) type ExchangeResult = Result<(), ExchangeError>;
