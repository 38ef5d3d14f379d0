//! What a caller holds while its operation is under way.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Error;

/// What an operation has done to its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Nothing yet: it can be tried again as it is, in place too.
    Untouched,
    /// It is what was asked for.
    Complete,
    /// Some of it may be written.
    Undefined,
}

/// An operation under way. Dropping the ticket does not stop the operation.
#[derive(Clone, Debug)]
pub struct Ticket {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    outcome: Mutex<Option<(Result<(), Error>, Output)>>,
    finished: Condvar,
}

impl Ticket {
    pub(crate) fn new() -> Ticket {
        Ticket { state: Arc::new(State { outcome: Mutex::new(None), finished: Condvar::new() }) }
    }

    pub(crate) fn finish(&self, result: Result<(), Error>, output: Output) {
        let mut outcome = self.state.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if outcome.is_none() {
            *outcome = Some((result, output));
            self.state.finished.notify_all();
        }
    }

    /// Waits for the end of the operation, at most so long; [`Error::Unfinished`] then, and the operation goes on.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        let started = Instant::now();
        let mut outcome = self.state.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some((result, _)) = outcome.as_ref() {
                return result.clone();
            }
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(Error::Unfinished { waited: timeout });
            }
            outcome = self.state.finished.wait_timeout(outcome, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits however long it takes: the operation has a deadline of its own, and so have those before it.
    pub(crate) fn join(&self) -> Result<(), Error> {
        loop {
            match self.wait(Duration::from_secs(3600)) {
                Err(Error::Unfinished { .. }) => {}
                result => return result,
            }
        }
    }

    /// Whether it has ended, well or not.
    pub fn is_finished(&self) -> bool {
        self.state.outcome.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// What the output is once the operation has ended; [`Output::Undefined`] while it is under way.
    pub fn output(&self) -> Output {
        let outcome = self.state.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.as_ref().map_or(Output::Undefined, |(_, output)| *output)
    }
}
