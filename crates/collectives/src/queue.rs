//! The order of a group's operations: what is queued, what is under way, what has failed.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use instep_recorder::Entry;

use crate::arena::verdict::Verdict;
use crate::diary::Diary;
use crate::fate::Fate;
use crate::mail::Mail;
use crate::operation::Operation;
use crate::ticket::{Output, Ticket};
use crate::transport::Engine;
use crate::{Error, Rank};

/// What a group's threads share.
pub(crate) struct Shared {
    pub(crate) queue: Mutex<Queue>,
    /// For the worker: there is something to do, or the group closes.
    pub(crate) work: Condvar,
    /// For callers who wait for room in the queue or for the end of what is under way.
    changed: Condvar,
    /// Held by whoever made the queue busy.
    pub(crate) engine: Mutex<Option<Engine>>,
    pub(crate) diary: Diary,
}

pub(crate) struct Queue {
    pub(crate) jobs: VecDeque<Job>,
    /// An operation is under way.
    pub(crate) busy: bool,
    pub(crate) closing: bool,
    /// Callers who wait for a change.
    waiting: usize,
    pub(crate) failure: Option<Error>,
    pub(crate) rank: usize,
    pub(crate) world: usize,
    pub(crate) generation: u64,
    pub(crate) single_copy: bool,
    /// For abort, which must not wait for the engine.
    pub(crate) fate: Option<Fate>,
    pub(crate) mail: Option<Arc<Mail>>,
    /// Operations completed in the generation before, as this rank counts them.
    pub(crate) history: Option<u64>,
}

/// Operations with one ticket, one after the other.
pub(crate) struct Job {
    pub(crate) operations: Vec<Operation>,
    /// What the diary has of them.
    pub(crate) entries: Vec<Entry>,
    pub(crate) timeout: Duration,
    pub(crate) ticket: Ticket,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    pub(crate) fn admit(&self, operations: &[Operation]) -> Result<(), Error> {
        for operation in operations {
            operation.check(self.rank, self.world)?;
        }
        self.failure.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn connected(&mut self, engine: &Engine, mail: Arc<Mail>, world: usize) {
        self.rank = engine.rank();
        self.world = world;
        self.single_copy = engine.uses_single_copy();
        self.fate = Some(engine.fate());
        self.mail = Some(mail);
        self.failure = None;
    }
}

impl Shared {
    /// Not connected yet.
    pub(crate) fn new(generation: u64, diary: Diary) -> Shared {
        let queue = Queue {
            jobs: VecDeque::new(),
            busy: false,
            closing: false,
            waiting: 0,
            failure: Some(Error::NotConnected),
            rank: 0,
            world: 0,
            generation,
            single_copy: false,
            fate: None,
            mail: None,
            history: None,
        };
        let engine = Mutex::new(None);
        Shared { queue: Mutex::new(queue), work: Condvar::new(), changed: Condvar::new(), engine, diary }
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
            job.entries.iter().for_each(|entry| self.diary.ended(Some(entry), false));
            job.ticket.finish(Err(error.clone()), Output::Untouched);
        }
        self.spread();
    }

    /// Has the engine tell the peers that the group is aborted. If it is at work, it does so itself, or whoever put it to
    /// work does.
    fn spread(&self) {
        if let Ok(mut engine) = self.engine.try_lock()
            && let Some(engine) = engine.as_mut()
        {
            engine.tell();
        }
    }

    /// As [`Shared::fail_queue`], and messages fail, too.
    pub(crate) fn fail(&self, error: &Error) {
        self.fail_queue(error);
        let mail = lock(&self.queue).mail.clone();
        if let Some(mail) = mail {
            mail.fail(error);
        }
    }

    pub(crate) fn abort(&self) {
        let (by, fate) = {
            let queue = lock(&self.queue);
            (queue.rank, queue.fate.clone())
        };
        if let Some(fate) = fate {
            fate.abort(&Verdict::Aborted { by });
        }
        self.fail(&Error::Aborted { by: Rank(by) });
    }

    /// Does operations for which the queue was made busy.
    pub(crate) fn perform(
        &self,
        operations: &[Operation],
        entries: &mut [Entry],
        timeout: Duration,
    ) -> (Result<(), Error>, Output) {
        let (result, output) = match lock(&self.engine).as_mut() {
            None => (Err(Error::NotConnected), Output::Untouched),
            Some(engine) => run_all(engine, operations, timeout, &mut Notes { diary: &self.diary, entries }),
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
        // Somebody may have aborted the group while the engine was in our hands, and gone well.
        let aborted = result.is_ok() && queue.fate.as_ref().is_some_and(Fate::is_aborted);
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

/// What the diary has of operations that are done together; nothing where there is no recorder.
struct Notes<'a> {
    diary: &'a Diary,
    entries: &'a mut [Entry],
}

impl Notes<'_> {
    fn run(
        &mut self,
        engine: &mut Engine,
        index: usize,
        operation: &Operation,
        timeout: Duration,
    ) -> Result<(), Error> {
        self.diary.started(self.entries.get_mut(index));
        let result = engine.run(operation, timeout);
        let ended = if result.is_ok() { index + 1 } else { self.entries.len() };
        for entry in self.entries.get(index..ended).unwrap_or_default() {
            self.diary.ended(Some(entry), result.is_ok());
        }
        result
    }
}

fn run_all(
    engine: &mut Engine,
    operations: &[Operation],
    timeout: Duration,
    notes: &mut Notes<'_>,
) -> (Result<(), Error>, Output) {
    if let [operation] = operations {
        let result = notes.run(engine, 0, operation, timeout);
        let output = if result.is_ok() { Output::Complete } else { engine.output() };
        return (result, output);
    }
    let started = Instant::now();
    for (index, operation) in operations.iter().enumerate() {
        if let Err(error) = notes.run(engine, index, operation, timeout.saturating_sub(started.elapsed())) {
            let output = if index == 0 { engine.output() } else { Output::Undefined };
            return (Err(error), output);
        }
    }
    (Ok(()), Output::Complete)
}
