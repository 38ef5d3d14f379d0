//! Reports that never make a training step wait: queued, sent in batches by a thread, repeated until they arrive.
//!
//! [`Reporter::report`] and [`Reporter::log`] put something into a bounded queue and return. The thread sends what has
//! gathered as one numbered batch and waits for the answer; meanwhile the next batch gathers. A batch that is not
//! answered is sent again under its number, for as long as it takes, and the master stores each number once: a report
//! is there once, whatever happens to the connection or to the master.
//!
//! When the queue is full, because the master is away for long, new reports are dropped and counted, and
//! [`Reporter::news`] says so: a training that goes on is worth more than its chart. Shutdown: [`Reporter::close`] gives
//! what is queued a deadline, then lets the thread end; a thread inside a request ends when that does.

mod queue;
mod sender;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use instep_api::identifiers::{RunId, TrialId};
use instep_api::wire::Timestamp;

use self::queue::{Item, Shared, State};
use self::sender::Sender;
use crate::client::Client;
use crate::sync::{lock, wait_timeout};

/// Bytes that may be queued: some 300,000 reports of ten metrics.
const LARGEST_QUEUE: usize = 64 << 20;
/// Bytes of one report or line.
const LARGEST_ITEM: usize = 8 << 20;

/// Whose reports these are.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Reporting {
    pub trial: TrialId,
    /// Which start of it.
    pub run: RunId,
    /// Names this reporter: a random text that no other has.
    pub reporter: String,
    /// Which of the processes of the trial this is.
    pub rank: i64,
    /// Whether this process says regularly that the trial lives.
    pub heartbeat: bool,
}

/// Why a report was not queued.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The master will not take anything of this trial any more.
    #[error("reporting has stopped: {0}")]
    Failed(String),
    /// It is larger than any report should be.
    #[error("a report of {0} bytes is too large: at most {LARGEST_ITEM}")]
    TooLarge(usize),
    /// `close` was called.
    #[error("reports are closed")]
    Closed,
    /// A copy of the process that the reporter belongs to, such as a worker that loads data.
    #[error("this process was forked from the reporting one and cannot report")]
    Forked,
}

/// What could not be delivered in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    /// Reports and lines that were still queued.
    pub left: usize,
    /// Why, as far as it is known.
    pub why: String,
}

/// Sends reports in the background.
pub struct Reporter {
    shared: Arc<Shared>,
    process: u32,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Reporter {
    /// Starts the thread.
    pub fn start(client: Arc<Client>, reporting: Reporting) -> std::io::Result<Reporter> {
        let shared = Arc::<Shared>::default();
        let sender = Sender::new(shared.clone(), client, reporting);
        let thread = thread::Builder::new().name("instep-report".to_owned()).spawn(move || sender.run())?;
        Ok(Reporter { shared, process: std::process::id(), thread: Mutex::new(Some(thread)) })
    }

    /// Queues metrics: `values` is a JSON object, `batches` a JSON list. Gives whether there are [`Reporter::news`].
    pub fn report(
        &self,
        group: &str,
        step: Option<i64>,
        values: String,
        batches: Option<&str>,
        time: Timestamp,
    ) -> Result<bool, ReportError> {
        let (group, values, batches) = (group.to_owned(), values, batches.map(str::to_owned));
        self.queue(Item::Report { group, step, time, values, batches })
    }

    /// Notes how far the trial is, from 0 to 1. Gives whether there are [`Reporter::news`].
    pub fn progress(&self, progress: f64) -> Result<bool, ReportError> {
        let mut state = self.accepting()?;
        state.progress = Some(progress);
        self.shared.wake(&mut state);
        drop(state);
        Ok(self.shared.has_news.load(Ordering::Relaxed))
    }

    /// Queues a line of output. Gives whether there are [`Reporter::news`].
    pub fn log(&self, line: &str, stream: &str, time: Timestamp) -> Result<bool, ReportError> {
        self.queue(Item::Line { line: line.to_owned(), stream: stream.to_owned(), time })
    }

    /// The state, if something may be added to it.
    fn accepting(&self) -> Result<MutexGuard<'_, State>, ReportError> {
        if std::process::id() != self.process {
            return Err(ReportError::Forked);
        }
        let state = self.shared.lock();
        if let Some(why) = &state.failed {
            return Err(ReportError::Failed(why.clone()));
        }
        if state.closing { Err(ReportError::Closed) } else { Ok(state) }
    }

    fn queue(&self, item: Item) -> Result<bool, ReportError> {
        let size = item.size();
        if size > LARGEST_ITEM {
            return Err(ReportError::TooLarge(size));
        }
        let mut state = self.accepting()?;
        if state.queued_bytes + size > LARGEST_QUEUE {
            if state.dropped == 0 {
                let what = "the queue of reports is full, new ones are dropped until the master answers again";
                self.shared.add_news(&mut state, what.to_owned());
            }
            state.dropped += 1;
        } else {
            state.queued_bytes += size;
            state.queue.push_back(item);
            self.shared.wake(&mut state);
        }
        drop(state);
        Ok(self.shared.has_news.load(Ordering::Relaxed))
    }

    /// What people should know, once.
    pub fn news(&self) -> Vec<String> {
        let mut state = self.shared.lock();
        self.shared.has_news.store(false, Ordering::Relaxed);
        std::mem::take(&mut state.news)
    }

    /// Waits until everything that was queued so far is stored by the master.
    pub fn flush(&self, timeout: Duration) -> Result<(), Undelivered> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        self.shared.work.notify_one();
        loop {
            if let Some(why) = &state.failed {
                return Err(Undelivered { left: state.left(), why: why.clone() });
            }
            if state.left() == 0 {
                return Ok(());
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                let why = state.trouble.clone().unwrap_or_else(|| "the master is slow".to_owned());
                return Err(Undelivered { left: state.left(), why });
            };
            state = wait_timeout(&self.shared.progress, state, left);
        }
    }

    /// Sends what is left within `timeout`, then ends the thread. The second time it does nothing.
    pub fn close(&self, timeout: Duration) -> Result<(), Undelivered> {
        let Some(thread) = lock(&self.thread).take() else { return Ok(()) };
        if std::process::id() != self.process {
            // The thread is not in this copy of the process.
            return Ok(());
        }
        self.shared.lock().closing = true;
        self.shared.work.notify_one();
        let outcome = self.flush(timeout);
        let mut state = self.shared.lock();
        state.abandoned = true;
        let dropped = state.dropped;
        drop(state);
        self.shared.work.notify_one();
        if outcome.is_ok() {
            // It has nothing to do any more, so this takes no time.
            let _ = thread.join();
        }
        match outcome {
            Ok(()) if dropped > 0 => {
                let why = "the queue was full while the master did not answer".to_owned();
                Err(Undelivered { left: usize::try_from(dropped).unwrap_or(usize::MAX), why })
            }
            outcome => outcome,
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        let _ = self.close(Duration::ZERO);
    }
}
