//! The thread of a reporter: sends what has gathered as one numbered batch after the other, and repeats each until it is
//! answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use instep_api::identifiers::{RunId, TrialId};
use instep_api::metrics::ReportBatchResponse;
use instep_api::wire::Timestamp;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::Reporting;
use super::queue::{Item, Shared};
use crate::client::Client;
use crate::error::Error;
use crate::retry::Backoff;
use crate::sync::wait_timeout;

/// Bytes of a batch, unless its one report is larger.
const LARGEST_BATCH: usize = 4 << 20;
/// Things in a batch, so that the master's transactions stay short.
const LONGEST_BATCH: usize = 2000;
/// How often a trial says that it lives. The master gives it up after five minutes.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// While reports come, the thread looks for them so often, and they need not wake it: that would be most of their cost.
const LINGER: Duration = Duration::from_millis(20);
/// After so many looks at nothing it sleeps until it is woken.
const EMPTY_LOOKS: u32 = 50;
/// Without an answer for so long, people are told.
const SILENCE: Duration = Duration::from_secs(5);

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
pub(super) struct Sender {
    shared: Arc<Shared>,
    client: Arc<Client>,
    reporting: Reporting,
    sequence: i64,
}

impl Sender {
    /// A thread that has sent nothing yet.
    pub(super) fn new(shared: Arc<Shared>, client: Arc<Client>, reporting: Reporting) -> Sender {
        Sender { shared, client, reporting, sequence: 0 }
    }

    /// What the thread does until the end.
    pub(super) fn run(mut self) {
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
