//! What a caller holds while its operation is under way.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{Error, Rank};

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
    state: Arc<TicketState>,
}

#[derive(Debug)]
struct TicketState {
    completion: Mutex<Completion>,
    finished: Condvar,
}

#[derive(Clone, Debug)]
struct Outcome {
    result: Result<(), Error>,
    output: Output,
    source: Option<Rank>,
}

type Callback = Box<dyn FnOnce(&Result<(), Error>) + Send>;

enum Completion {
    UnderWay(Vec<Callback>),
    Finished(Outcome),
}

impl fmt::Debug for Completion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Completion::UnderWay(_) => formatter.write_str("UnderWay"),
            Completion::Finished(outcome) => outcome.fmt(formatter),
        }
    }
}

impl Ticket {
    pub(crate) fn new() -> Ticket {
        Ticket {
            state: Arc::new(TicketState {
                completion: Mutex::new(Completion::UnderWay(Vec::new())),
                finished: Condvar::new(),
            }),
        }
    }

    fn completion(&self) -> MutexGuard<'_, Completion> {
        self.state.completion.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only without locks: callers' functions run in here.
    pub(crate) fn finish(&self, result: Result<(), Error>, output: Output) {
        self.finish_from(result, output, None);
    }

    /// As [`Ticket::finish`], of something that was received from somebody.
    pub(crate) fn finish_from(&self, result: Result<(), Error>, output: Output, source: Option<Rank>) {
        let mut completion = self.completion();
        let Completion::UnderWay(callbacks) = &mut *completion else { return };
        let callbacks = std::mem::take(callbacks);
        *completion = Completion::Finished(Outcome { result: result.clone(), output, source });
        self.state.finished.notify_all();
        drop(completion);
        for callback in callbacks {
            call(callback, &result);
        }
    }

    /// Has `callback` called once with how the operation ended: on the thread that ends it, before anything else happens
    /// there, or right here if it has ended already. No lock of the group is held meanwhile. A panic in it stays in it.
    pub fn when_finished(&self, callback: impl FnOnce(&Result<(), Error>) + Send + 'static) {
        let result = match &mut *self.completion() {
            Completion::UnderWay(callbacks) => {
                callbacks.push(Box::new(callback));
                return;
            }
            Completion::Finished(outcome) => outcome.result.clone(),
        };
        callback(&result);
    }

    /// Waits for the end of the operation, at most so long; [`Error::Unfinished`] then, and the operation goes on.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        let started = Instant::now();
        let mut completion = self.completion();
        loop {
            if let Completion::Finished(outcome) = &*completion {
                return outcome.result.clone();
            }
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(Error::Unfinished { waited: timeout });
            }
            completion = self.state.finished.wait_timeout(completion, left).unwrap_or_else(PoisonError::into_inner).0;
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
        matches!(&*self.completion(), Completion::Finished(_))
    }

    /// What the output is once the operation has ended; [`Output::Undefined`] while it is under way.
    pub fn output(&self) -> Output {
        match &*self.completion() {
            Completion::UnderWay(_) => Output::Undefined,
            Completion::Finished(outcome) => outcome.output,
        }
    }

    /// Who sent what a finished [`crate::Group::receive`] received; `None` for everything else.
    pub fn source(&self) -> Option<Rank> {
        match &*self.completion() {
            Completion::UnderWay(_) => None,
            Completion::Finished(outcome) => outcome.source,
        }
    }
}

/// The thread that ends operations goes on whatever a callback does.
fn call(callback: Callback, result: &Result<(), Error>) {
    let _ = catch_unwind(AssertUnwindSafe(|| callback(result)));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn callbacks_are_called_once_before_and_after_the_end() {
        let ticket = Ticket::new();
        let (sender, receiver) = channel();
        for number in 0..2 {
            let sender = sender.clone();
            ticket.when_finished(move |result| sender.send((number, result.is_ok())).unwrap());
        }
        assert!(receiver.try_recv().is_err() && !ticket.is_finished());
        ticket.when_finished(|_| panic!("a caller's own trouble"));
        ticket.finish_from(Ok(()), Output::Complete, Some(Rank(3)));
        ticket.finish(Err(Error::NotConnected), Output::Untouched);
        ticket.when_finished(move |result| sender.send((2, result.is_ok())).unwrap());
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [(0, true), (1, true), (2, true)]);
        assert_eq!((ticket.source(), ticket.output()), (Some(Rank(3)), Output::Complete));
    }
}
