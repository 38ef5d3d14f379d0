//! What the caller and the thread of a reporter share: the queue, how the thread is doing, and what people should know.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use instep_api::wire::Timestamp;

use crate::sync::lock;

/// Sentences kept until somebody asks for them.
const LONGEST_NEWS: usize = 100;

#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Something to do for the thread.
    pub(super) work: Condvar,
    /// Something was done by the thread.
    pub(super) progress: Condvar,
    /// There is something in `State::news`; looked at with every report, so it costs no lock.
    pub(super) has_news: AtomicBool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) queue: VecDeque<Item>,
    pub(super) queued_bytes: usize,
    /// The thread waits to be woken.
    pub(super) asleep: bool,
    /// Things in the batch that is being sent.
    pub(super) in_flight: usize,
    /// How far the trial is, if that is still to be sent; only the last word counts.
    pub(super) progress: Option<f64>,
    pub(super) dropped: u64,
    pub(super) closing: bool,
    /// Deadlines are over: what is left stays unsent.
    pub(super) abandoned: bool,
    /// Why nothing can be sent any more.
    pub(super) failed: Option<String>,
    /// Why the last attempt did not work.
    pub(super) trouble: Option<String>,
    pub(super) news: Vec<String>,
}

/// What is queued: little more than what the caller gave, as the thread has more time to put it into words.
pub(super) enum Item {
    Report { group: String, step: Option<i64>, time: Timestamp, values: String, batches: Option<String> },
    Line { line: String, stream: String, time: Timestamp },
}

impl Item {
    /// About its bytes in a batch.
    pub(super) fn size(&self) -> usize {
        const FRAME: usize = 150;
        match self {
            Item::Report { group, values, batches, .. } => {
                FRAME + group.len() + values.len() + batches.as_ref().map_or(0, String::len)
            }
            Item::Line { line, .. } => FRAME + line.len(),
        }
    }
}

impl State {
    pub(super) fn left(&self) -> usize {
        self.queue.len() + self.in_flight + usize::from(self.progress.is_some())
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Wakes the thread if it does not look by itself.
    pub(super) fn wake(&self, state: &mut State) {
        if std::mem::take(&mut state.asleep) {
            self.work.notify_one();
        }
    }

    pub(super) fn add_news(&self, state: &mut State, what: String) {
        if state.news.len() < LONGEST_NEWS {
            state.news.push(what);
        }
        self.has_news.store(true, Ordering::Relaxed);
    }
}
