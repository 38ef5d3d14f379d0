//! The order of a group's operations: what is queued, what is under way, what has failed.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use instep_recorder::Entry;

use crate::abort::Abort;
use crate::abort::AbortReason;
use crate::flight_recorder::FlightRecorder;
use crate::operation::Operation;
use crate::p2p::P2p;
use crate::sync::lock;
use crate::ticket::{Output, Ticket};
use crate::transport::Transport;
use crate::{Error, Rank};

/// What a group's threads share.
pub(crate) struct GroupShared {
    pub(crate) queue: Mutex<Queue>,
    /// For the worker: there is something to do, or the group closes.
    pub(crate) work: Condvar,
    /// For callers who wait for room in the queue or for the end of what is under way.
    changed: Condvar,
    /// Held by whoever made the queue busy.
    pub(crate) transport: Mutex<Option<Box<dyn Transport>>>,
    pub(crate) recorder: FlightRecorder,
}

pub(crate) struct Queue {
    pub(crate) jobs: VecDeque<Job>,
    /// An operation is under way.
    pub(crate) busy: bool,
    pub(crate) closing: bool,
    /// Callers who wait for a change.
    waiting: usize,
    pub(crate) failure: Option<Error>,
    pub(crate) rank: Rank,
    pub(crate) world: usize,
    pub(crate) generation: u64,
    pub(crate) single_copy: bool,
    /// For abort, which must not wait for the transport.
    pub(crate) abort: Option<Abort>,
    pub(crate) p2p: Option<Arc<P2p>>,
    /// Operations completed in the generation before, as this rank counts them.
    pub(crate) history: Option<u64>,
}

/// Operations with one ticket, one after the other.
pub(crate) struct Job {
    pub(crate) operations: Vec<Operation>,
    /// What the flight recorder has of them.
    pub(crate) entries: Vec<Entry>,
    pub(crate) timeout: Duration,
    pub(crate) ticket: Ticket,
}

impl Queue {
    pub(crate) fn admit(&self, operations: &[Operation]) -> Result<(), Error> {
        for operation in operations {
            operation.check(self.rank.0, self.world)?;
        }
        self.failure.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn connected(&mut self, transport: &dyn Transport, p2p: Arc<P2p>, world: usize) {
        self.rank = transport.rank();
        self.world = world;
        self.single_copy = transport.uses_single_copy();
        self.abort = Some(transport.abort());
        self.p2p = Some(p2p);
        self.failure = None;
    }
}

impl GroupShared {
    /// Not connected yet.
    pub(crate) fn new(generation: u64, recorder: FlightRecorder) -> GroupShared {
        let queue = Queue {
            jobs: VecDeque::new(),
            busy: false,
            closing: false,
            waiting: 0,
            failure: Some(Error::NotConnected),
            rank: Rank(0),
            world: 0,
            generation,
            single_copy: false,
            abort: None,
            p2p: None,
            history: None,
        };
        let transport = Mutex::new(None);
        GroupShared { queue: Mutex::new(queue), work: Condvar::new(), changed: Condvar::new(), transport, recorder }
    }

    pub(crate) fn await_change<'a>(&self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        queue.waiting += 1;
        queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        queue.waiting -= 1;
        queue
    }

    /// The group is aborted: nothing queued will happen. What is under way finds out by itself.
    pub(crate) fn fail_queue(&self, error: &Error) {
        let jobs = {
            let mut queue = lock(&self.queue);
            queue.failure.get_or_insert_with(|| error.clone());
            self.changed.notify_all();
            std::mem::take(&mut queue.jobs)
        };
        // Callers' functions run in here: no lock is held.
        for job in jobs {
            job.entries.iter().for_each(|entry| self.recorder.ended(Some(entry), false));
            job.ticket.finish(Err(error.clone()), Output::Untouched);
        }
        self.spread();
    }

    /// Has the transport tell the peers that the group is aborted. If it is at work, it does so itself, or whoever put it to
    /// work does.
    fn spread(&self) {
        if let Ok(mut transport) = self.transport.try_lock()
            && let Some(transport) = transport.as_mut()
        {
            transport.broadcast_abort();
        }
    }

    /// As [`GroupShared::fail_queue`], and messages fail, too.
    pub(crate) fn fail(&self, error: &Error) {
        self.fail_queue(error);
        let p2p = lock(&self.queue).p2p.clone();
        if let Some(p2p) = p2p {
            p2p.fail(error);
        }
    }

    pub(crate) fn abort(&self) {
        let (by, abort) = {
            let queue = lock(&self.queue);
            (queue.rank, queue.abort.clone())
        };
        if let Some(abort) = abort {
            abort.abort(&AbortReason::Aborted { by });
        }
        self.fail(&Error::Aborted { by });
    }

    /// Does operations for which the queue was made busy.
    pub(crate) fn perform(
        &self,
        operations: &[Operation],
        entries: &mut [Entry],
        timeout: Duration,
    ) -> (Result<(), Error>, Output) {
        let (result, output) = match lock(&self.transport).as_mut() {
            None => (Err(Error::NotConnected), Output::Untouched),
            Some(transport) => {
                run_all(&mut **transport, operations, timeout, &mut RecordedJob { recorder: &self.recorder, entries })
            }
        };
        if let Err(error) = &result {
            self.fail(error);
        }
        let mut queue = lock(&self.queue);
        queue.busy = false;
        // Waking is a system call: only when somebody waits.
        if !queue.jobs.is_empty() {
            self.work.notify_one();
        }
        if queue.waiting > 0 {
            self.changed.notify_all();
        }
        // Somebody may have aborted the group while the transport was in our hands, and gone well.
        let aborted = result.is_ok() && queue.abort.as_ref().is_some_and(Abort::is_aborted);
        drop(queue);
        if aborted {
            self.spread();
        }
        (result, output)
    }

    /// The worker: queued operations in order, until the group is dropped.
    pub(crate) fn work(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if queue.closing {
                return;
            }
            if queue.busy || queue.jobs.is_empty() {
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let Some(mut job) = queue.jobs.pop_front() else { continue };
            queue.busy = true;
            if queue.waiting > 0 {
                self.changed.notify_all();
            }
            drop(queue);
            let (result, output) = self.perform(&job.operations, &mut job.entries, job.timeout);
            job.ticket.finish(result, output);
            queue = lock(&self.queue);
        }
    }
}

/// What the flight recorder has of operations that are done together; nothing where there is no recorder.
struct RecordedJob<'a> {
    recorder: &'a FlightRecorder,
    entries: &'a mut [Entry],
}

impl RecordedJob<'_> {
    fn run(
        &mut self,
        transport: &mut dyn Transport,
        index: usize,
        operation: &Operation,
        timeout: Duration,
    ) -> Result<(), Error> {
        self.recorder.started(self.entries.get_mut(index));
        let result = transport.run(operation, timeout);
        let ended = if result.is_ok() { index + 1 } else { self.entries.len() };
        for entry in self.entries.get(index..ended).unwrap_or_default() {
            self.recorder.ended(Some(entry), result.is_ok());
        }
        result
    }
}

fn run_all(
    transport: &mut dyn Transport,
    operations: &[Operation],
    timeout: Duration,
    recorded: &mut RecordedJob<'_>,
) -> (Result<(), Error>, Output) {
    if let [operation] = operations {
        let result = recorded.run(transport, 0, operation, timeout);
        let output = if result.is_ok() { Output::Complete } else { transport.output() };
        return (result, output);
    }
    let started = Instant::now();
    for (index, operation) in operations.iter().enumerate() {
        if let Err(error) = recorded.run(transport, index, operation, timeout.saturating_sub(started.elapsed())) {
            let output = if index == 0 { transport.output() } else { Output::Undefined };
            return (Err(error), output);
        }
    }
    (Ok(()), Output::Complete)
}
