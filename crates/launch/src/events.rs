//! `--events FILE`: what happened to a job, as lines of JSON for programs.
//!
//! Every launcher writes what it knows. A thread writes the file behind a bounded queue: a disk that hangs costs events,
//! which are then counted, and never holds up the job.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

/// Events that wait to be written.
const QUEUE: usize = 4096;
/// How long the end of the launcher waits for the file.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Where events go; cheap to clone, and never blocks.
#[derive(Debug, Clone, Default)]
pub struct EventLog {
    queue: Option<SyncSender<Value>>,
    lost: Arc<AtomicU64>,
    began: Option<Instant>,
}

impl EventLog {
    /// Notes an event: its name and what belongs to it, as a JSON object.
    pub fn note(&self, event: &str, details: Value) {
        let (Some(queue), Some(began)) = (&self.queue, self.began) else { return };
        let mut line = Map::new();
        line.insert("time".to_owned(), json!(seconds_since_1970()));
        line.insert("elapsed".to_owned(), json!(began.elapsed().as_secs_f64()));
        line.insert("event".to_owned(), json!(event));
        if let Value::Object(details) = details {
            line.extend(details);
        }
        if queue.try_send(Value::Object(line)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The thread that writes the file; see [`EventWriter::close`].
#[derive(Debug)]
pub(crate) struct EventWriter {
    thread: JoinHandle<()>,
    done: Receiver<()>,
}

impl EventWriter {
    /// Opens the file for appending: a launcher that is started again continues it.
    pub(crate) fn open(path: &Path, began: Instant) -> io::Result<(EventLog, EventWriter)> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let (queue, events) = sync_channel(QUEUE);
        let (finished, done) = sync_channel(1);
        let log = EventLog { queue: Some(queue), lost: Arc::default(), began: Some(began) };
        let lost = log.lost.clone();
        let thread = std::thread::Builder::new().name("instep-events".to_owned()).spawn(move || {
            write_events(file, &events, &lost);
            let _ = finished.send(());
        })?;
        Ok((log, EventWriter { thread, done }))
    }

    /// Waits a moment for what is queued; all logs must have been dropped.
    pub(crate) fn close(self) {
        // A disk that hangs keeps its thread: the process ends without it.
        if !matches!(self.done.recv_timeout(CLOSE_TIMEOUT), Err(RecvTimeoutError::Timeout)) {
            let _ = self.thread.join();
        }
    }
}

fn write_events(mut file: File, events: &Receiver<Value>, lost: &AtomicU64) {
    for event in events {
        let missed = lost.swap(0, Ordering::Relaxed);
        let mut text = String::new();
        if missed > 0 {
            text = format!("{}\n", json!({"time": seconds_since_1970(), "event": "events_lost", "count": missed}));
        }
        text.push_str(&event.to_string());
        text.push('\n');
        // One write per event: several launchers may append to one file.
        if file.write_all(text.as_bytes()).is_err() {
            lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn seconds_since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::{EventLog, EventWriter};
    use serde_json::{Value, json};
    use std::time::Instant;

    #[test]
    fn events_are_lines_with_their_time() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("events.jsonl");
        for round in 0..2 {
            let (log, writer) = EventWriter::open(&path, Instant::now()).expect("opened");
            log.note("round_started", json!({"round": round}));
            drop(log);
            writer.close();
        }
        let text = std::fs::read_to_string(path).expect("written");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.len(), 2, "a second launcher appends");
        assert_eq!((&lines[1]["event"], &lines[1]["round"]), (&json!("round_started"), &json!(1)));
        assert!(lines[0]["time"].as_f64().is_some_and(|time| time > 1.7e9));
    }

    #[test]
    fn an_event_log_without_a_file_drops_events() {
        EventLog::default().note("round_started", json!({}));
    }
}
