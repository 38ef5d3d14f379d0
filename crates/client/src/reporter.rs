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

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use instep_api::identifiers::{RunId, TrialId};
use instep_api::metrics::ReportBatchResponse;
use instep_api::wire::Timestamp;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::client::Client;
use crate::error::Error;
use crate::retry::Backoff;
use crate::sync::{lock, wait_timeout};

/// Bytes that may be queued: some 300,000 reports of ten metrics.
const LARGEST_QUEUE: usize = 64 << 20;
/// Bytes of one report or line.
const LARGEST_ITEM: usize = 8 << 20;
/// Bytes of a batch, unless its one report is larger.
const LARGEST_BATCH: usize = 4 << 20;
/// Things in a batch, so that the master's transactions stay short.
const LONGEST_BATCH: usize = 2000;
/// Sentences kept until somebody asks for them.
const LONGEST_NEWS: usize = 100;
/// How often a trial says that it lives. The master gives it up after five minutes.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// While reports come, the thread looks for them so often, and they need not wake it: that would be most of their cost.
const LINGER: Duration = Duration::from_millis(20);
/// After so many looks at nothing it sleeps until it is woken.
const EMPTY_LOOKS: u32 = 50;
/// Without an answer for so long, people are told.
const SILENCE: Duration = Duration::from_secs(5);

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

struct Shared {
    state: Mutex<State>,
    /// Something to do for the thread.
    work: Condvar,
    /// Something was done by the thread.
    progress: Condvar,
    /// There is something in `State::news`; looked at with every report, so it costs no lock.
    has_news: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Item>,
    queued_bytes: usize,
    /// The thread waits to be woken.
    asleep: bool,
    /// Things in the batch that is being sent.
    in_flight: usize,
    /// How far the trial is, if that is still to be sent; only the last word counts.
    progress: Option<f64>,
    dropped: u64,
    closing: bool,
    /// Deadlines are over: what is left stays unsent.
    abandoned: bool,
    /// Why nothing can be sent any more.
    failed: Option<String>,
    /// Why the last attempt did not work.
    trouble: Option<String>,
    news: Vec<String>,
}

/// What is queued: little more than what the caller gave, as the thread has more time to put it into words.
enum Item {
    Report { group: String, step: Option<i64>, time: Timestamp, values: String, batches: Option<String> },
    Line { line: String, stream: String, time: Timestamp },
}

impl Item {
    /// About its bytes in a batch.
    fn size(&self) -> usize {
        const FRAME: usize = 150;
        match self {
            Item::Report { group, values, batches, .. } => {
                FRAME + group.len() + values.len() + batches.as_ref().map_or(0, String::len)
            }
            Item::Line { line, .. } => FRAME + line.len(),
        }
    }
}

impl Reporter {
    /// Starts the thread.
    pub fn start(client: Arc<Client>, reporting: Reporting) -> std::io::Result<Reporter> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            progress: Condvar::new(),
            has_news: AtomicBool::new(false),
        });
        let sender = Sender { shared: shared.clone(), client, reporting, sequence: 0 };
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
    pub fn flush(&self, patience: Duration) -> Result<(), Undelivered> {
        let deadline = Instant::now() + patience;
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

    /// Sends what is left within `patience`, then ends the thread. The second time it does nothing.
    pub fn close(&self, patience: Duration) -> Result<(), Undelivered> {
        let Some(thread) = lock(&self.thread).take() else { return Ok(()) };
        if std::process::id() != self.process {
            // The thread is not in this copy of the process.
            return Ok(());
        }
        self.shared.lock().closing = true;
        self.shared.work.notify_one();
        let outcome = self.flush(patience);
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

impl State {
    fn left(&self) -> usize {
        self.queue.len() + self.in_flight + usize::from(self.progress.is_some())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Wakes the thread if it does not look by itself.
    fn wake(&self, state: &mut State) {
        if std::mem::take(&mut state.asleep) {
            self.work.notify_one();
        }
    }

    fn add_news(&self, state: &mut State, what: String) {
        if state.news.len() < LONGEST_NEWS {
            state.news.push(what);
        }
        self.has_news.store(true, Ordering::Relaxed);
    }
}

/// `POST /trials/{id}/reports`, without copying what is queued.
#[derive(Serialize)]
struct Batch<'a> {
    reporter: &'a str,
    sequence: i64,
    reports: Vec<Report<'a>>,
    logs: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Report<'a> {
    group: &'a str,
    metrics: TrialMetrics<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TrialMetrics<'a> {
    trial_id: TrialId,
    trial_run_id: RunId,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps_completed: Option<i64>,
    report_time: Timestamp,
    metrics: Metrics<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metrics<'a> {
    avg_metrics: &'a RawValue,
    batch_metrics: Option<&'a RawValue>,
}

impl<'a> Metrics<'a> {
    fn of(values: &'a str, batches: Option<&'a str>) -> serde_json::Result<Metrics<'a>> {
        let batch_metrics = batches.map(serde_json::from_str).transpose()?;
        Ok(Metrics { avg_metrics: serde_json::from_str(values)?, batch_metrics })
    }
}

#[derive(Serialize)]
struct Line<'a> {
    log: &'a str,
    rank: i64,
    stdtype: &'a str,
    timestamp: Timestamp,
}

/// `POST /trials/{id}/progress`
#[derive(Serialize)]
struct Progress {
    progress: f64,
    is_raw: bool,
}

/// What the thread owns.
struct Sender {
    shared: Arc<Shared>,
    client: Arc<Client>,
    reporting: Reporting,
    sequence: i64,
}

impl Sender {
    fn run(mut self) {
        let mut next_heartbeat = Instant::now() + HEARTBEAT;
        loop {
            let batch = self.next_batch(self.reporting.heartbeat.then_some(next_heartbeat));
            if Instant::now() >= next_heartbeat && self.reporting.heartbeat {
                self.send_heartbeat();
                next_heartbeat = Instant::now() + HEARTBEAT;
            }
            match batch {
                None => return,
                Some(batch) if batch.is_empty() => self.send_progress(),
                Some(batch) => {
                    self.sequence += 1;
                    self.deliver(&format!("{}/reports", self.path()), &self.body(&batch));
                }
            }
        }
    }

    /// What has gathered; empty when it is time for a heartbeat or for progress, `None` when the end has come.
    fn next_batch(&self, heartbeat: Option<Instant>) -> Option<Vec<Item>> {
        let mut state = self.shared.lock();
        let mut empty_looks = 0;
        while state.queue.is_empty() {
            if state.progress.is_some() && !state.abandoned && state.failed.is_none() {
                return Some(Vec::new());
            }
            if state.closing || state.abandoned || state.failed.is_some() {
                return None;
            }
            let wait = heartbeat.map_or(HEARTBEAT, |at| at.saturating_duration_since(Instant::now()));
            if wait.is_zero() {
                return Some(Vec::new());
            }
            state.asleep = empty_looks >= EMPTY_LOOKS;
            let wait = if state.asleep { wait } else { wait.min(LINGER) };
            empty_looks += 1;
            state = wait_timeout(&self.shared.work, state, wait);
        }
        state.asleep = false;
        if state.abandoned {
            return None;
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(item) = state.queue.front() {
            let size = item.size();
            if batch.len() == LONGEST_BATCH || !batch.is_empty() && bytes + size > LARGEST_BATCH {
                break;
            }
            bytes += size;
            batch.extend(state.queue.pop_front());
        }
        state.queued_bytes -= bytes;
        state.in_flight = batch.len();
        Some(batch)
    }

    /// A numbered batch as the master takes it. Metrics are JSON already and are passed on as they are.
    fn body(&self, items: &[Item]) -> Vec<u8> {
        let (trial, run, rank) = (self.reporting.trial, self.reporting.run, self.reporting.rank);
        let mut batch = Batch {
            reporter: &self.reporting.reporter,
            sequence: self.sequence,
            reports: Vec::new(),
            logs: Vec::new(),
        };
        for item in items {
            match item {
                Item::Report { group, step, time, values, batches } => {
                    let Ok(metrics) = Metrics::of(values, batches.as_deref()) else {
                        self.shared.add_news(&mut self.shared.lock(), format!("metrics of {group} are not JSON"));
                        continue;
                    };
                    let metrics = TrialMetrics {
                        trial_id: trial,
                        trial_run_id: run,
                        steps_completed: *step,
                        report_time: *time,
                        metrics,
                    };
                    batch.reports.push(Report { group, metrics });
                }
                Item::Line { line, stream, time } => {
                    batch.logs.push(Line { log: line, rank, stdtype: stream, timestamp: *time });
                }
            }
        }
        serde_json::to_vec(&batch).expect("texts, numbers and JSON can be written as JSON")
    }

    /// Sends a batch until it is answered, the deadline of `close` is over, or the master refuses for good.
    fn deliver(&self, path: &str, body: &[u8]) {
        let begin = Instant::now();
        let mut backoff = Backoff::default();
        let mut told = false;
        loop {
            let error = match self.attempt(path, body) {
                Ok(answer) => return self.delivered(&answer, told),
                Err(error) => error,
            };
            let mut state = self.shared.lock();
            if !is_transient(&error) {
                state.failed = Some(described(&error));
                state.queue.clear();
                state.queued_bytes = 0;
                self.shared.add_news(&mut state, format!("reports are no longer stored: {}", described(&error)));
                self.shared.progress.notify_all();
                return;
            }
            state.trouble = Some(described(&error));
            if !told && begin.elapsed() >= SILENCE {
                told = true;
                let what = format!("{}; reports are queued and sent when it answers", described(&error));
                self.shared.add_news(&mut state, what);
            }
            let until = Instant::now() + backoff.pause();
            while !state.abandoned && Instant::now() < until {
                let left = until.saturating_duration_since(Instant::now());
                state = wait_timeout(&self.shared.work, state, left);
            }
            if state.abandoned {
                return;
            }
        }
    }

    fn attempt(&self, path: &str, body: &[u8]) -> Result<ReportBatchResponse, Error> {
        let answer = match self.client.post_json(path, body, &[]) {
            Err(error) if error.is_unauthenticated() && self.client.renew()? => self.client.post_json(path, body, &[]),
            outcome => outcome,
        }?;
        serde_json::from_slice(&answer).map_err(|error| Error::Protocol {
            address: self.client.address().clone(),
            what: format!("POST {path}: {error}"),
        })
    }

    fn delivered(&self, answer: &ReportBatchResponse, told: bool) {
        let mut state = self.shared.lock();
        state.in_flight = 0;
        state.trouble = None;
        for refused in &answer.refused {
            self.shared.add_news(&mut state, format!("the master refused a report: {}", refused.message));
        }
        if told {
            self.shared.add_news(&mut state, "the master answers again; sending queued reports".to_owned());
        }
        drop(state);
        self.shared.progress.notify_all();
    }

    /// Sends the last word on progress. It is not numbered: saying it twice is like saying it once.
    fn send_progress(&self) {
        let mut state = self.shared.lock();
        let Some(progress) = state.progress.take() else { return };
        state.in_flight = 1;
        drop(state);
        let body = serde_json::to_vec(&Progress { progress, is_raw: true }).expect("numbers can be written as JSON");
        self.deliver(&format!("{}/progress", self.path()), &body);
    }

    fn path(&self) -> String {
        format!("/api/v1/trials/{}", self.reporting.trial)
    }

    /// One try: if the master is away, the trial's next word comes with the next report or heartbeat.
    fn send_heartbeat(&self) {
        let path = self.path();
        let body = json!({"trialId": self.reporting.trial}).to_string();
        let _ = self.client.send_once(&ureq::http::Method::PATCH, &path, body.as_bytes());
    }
}

/// Whether the same batch may be taken later: everything that is not a verdict on this very batch or trial.
fn is_transient(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } => true,
        Error::Refused { status, .. } => *status >= 500 || *status == 429 || *status == 408,
        Error::Address { .. } | Error::Certificates { .. } | Error::Protocol { .. } => false,
    }
}

/// The error with its causes.
fn described(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
