//! Output on its way to the master: on disk, in order, never more than a bound.
//!
//! The supervisor appends, a thread sends in batches. While the master takes lines, a task that writes faster than they
//! can be sent is slowed by its own pipe ([`Spool::has_room`]). While it does not, output beyond the bound is dropped,
//! and a line says how much: training does not wait for a log.
//!
//! A batch whose answer is lost is sent again, so a line may appear twice after a broken connection; none is lost.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use instep_api::logs::LogRecord;
use instep_client::sync::{lock, wait_timeout_while};
use instep_client::{Backoff, Client, Error};

/// Bytes that wait at most.
const BOUND: u64 = 64 << 20;
/// Bytes of a batch at most, unless one line is longer.
const BATCH: usize = 1 << 20;
/// Lines of a batch at most.
const BATCH_LINES: usize = 2000;
/// Lines are gathered for so long.
const GATHER: Duration = Duration::from_millis(50);
/// A master that took nothing for so long takes nothing.
const STALLED: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const ROUTE: &str = "/api/v1/task/logs";

struct State {
    file: File,
    /// Bytes in the file.
    end: u64,
    /// Of these, delivered.
    sent: u64,
    /// Left out because there was no room.
    dropped: u64,
    /// When the master last took something, or this began.
    taken: Instant,
    /// Nothing more is appended; what is there may be sent until then.
    closing: Option<Instant>,
}

/// The queue on disk with its thread.
pub struct Spool {
    shared: Arc<Shared>,
    sender: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Spool {
    /// Begins an empty one; what is appended goes to the master of the client.
    pub fn start(path: &Path, client: Client) -> io::Result<Spool> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let state = State { file, end: 0, sent: 0, dropped: 0, taken: Instant::now(), closing: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let theirs = Arc::clone(&shared);
        let sender = thread::Builder::new().name("instep-task-log".to_owned()).spawn(move || send(&theirs, &client))?;
        Ok(Spool { shared, sender: Some(sender) })
    }

    /// Whether more output should be read; if not, whoever writes it waits.
    pub fn has_room(&self) -> bool {
        let state = self.shared.lock();
        state.end < BOUND || state.taken.elapsed() > STALLED
    }

    /// Appends lines, or counts those for which there is no room. `note` makes a line that says how many were left out.
    pub fn append(&self, records: &[LogRecord], note: impl FnOnce(u64) -> LogRecord) {
        let mut state = self.shared.lock();
        let mut bytes = Vec::new();
        if state.dropped > 0 && state.end < BOUND {
            encode(&mut bytes, &note(state.dropped));
        }
        records.iter().for_each(|record| encode(&mut bytes, record));
        if bytes.is_empty() {
            return;
        }
        let end = state.end;
        // A disk that is full is like a spool that is full.
        if end >= BOUND || state.file.write_all_at(&bytes, end).is_err() {
            state.dropped += records.len() as u64;
            return;
        }
        state.end += bytes.len() as u64;
        state.dropped = 0;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Waits until everything is delivered, for at most so long. Gives the bytes that are not.
    pub fn close(mut self, patience: Duration) -> u64 {
        self.shared.lock().closing = Some(Instant::now() + patience);
        self.shared.changed.notify_all();
        if let Some(sender) = self.sender.take() {
            // It panics never; if it did, the count below still tells the truth.
            let _ = sender.join();
        }
        let state = self.shared.lock();
        state.end - state.sent
    }
}

fn encode(bytes: &mut Vec<u8>, record: &LogRecord) {
    // Text, numbers and times: always JSON.
    if serde_json::to_writer(&mut *bytes, record).is_ok() {
        bytes.push(b'\n');
    }
}

/// The thread: one batch after the other, until closed and empty.
fn send(shared: &Shared, client: &Client) {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    while let Some(batch) = next(shared) {
        if batch.is_empty() {
            continue;
        }
        let delivered = match client.post_json(ROUTE, &request(&batch), &[]) {
            Ok(_) => true,
            // The master has heard it and does not want it; it will not want it later either. 401 means that it has
            // given the allocation up, and with it the token.
            Err(Error::Refused { status: 400 | 401 | 403 | 404 | 413 | 422, .. }) => true,
            Err(_) => false,
        };
        let mut state = shared.lock();
        if delivered {
            backoff.reset();
            state.sent += batch.len() as u64;
            state.taken = Instant::now();
            if state.sent == state.end && state.file.set_len(0).is_ok() {
                (state.sent, state.end) = (0, 0);
            }
        } else {
            let pause = backoff.pause();
            let left = state.closing.map_or(pause, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return;
            }
            let was_closing = state.closing.is_some();
            let unchanged = |state: &mut State| state.closing.is_some() == was_closing;
            drop(wait_timeout_while(&shared.changed, state, pause.min(left), unchanged));
        }
    }
}

/// The next bytes to send, empty if there was nothing for a while; `None` at the end.
fn next(shared: &Shared) -> Option<Vec<u8>> {
    let state = shared.lock();
    let idle = |state: &mut State| state.end == state.sent && state.closing.is_none();
    let state = wait_timeout_while(&shared.changed, state, Duration::from_secs(1), idle);
    if state.end == state.sent {
        return state.closing.is_none().then(Vec::new);
    }
    let gathering = state.closing.is_none() && state.end - state.sent < BATCH as u64;
    drop(state);
    if gathering {
        thread::sleep(GATHER);
    }
    let state = shared.lock();
    let waiting = usize::try_from(state.end - state.sent).unwrap_or(usize::MAX);
    let mut size = waiting.min(BATCH);
    loop {
        let mut bytes = vec![0; size];
        if state.file.read_exact_at(&mut bytes, state.sent).is_err() {
            // A disk that cannot be read back: nothing can be delivered any more.
            return None;
        }
        bytes.truncate(whole_lines(&bytes));
        if !bytes.is_empty() || size == waiting {
            return Some(bytes);
        }
        // A line that is longer than a batch is a batch.
        size = waiting.min(size * 2);
    }
}

/// Bytes up to the end of the last whole line, and no more lines than a batch may have.
fn whole_lines(bytes: &[u8]) -> usize {
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    ends.take(BATCH_LINES).last().unwrap_or(0)
}

fn request(batch: &[u8]) -> Vec<u8> {
    let mut body = b"{\"logs\":[".to_vec();
    let lines = batch.strip_suffix(b"\n").unwrap_or(batch);
    body.extend(lines.iter().map(|byte| if *byte == b'\n' { b',' } else { *byte }));
    body.extend_from_slice(b"]}");
    body
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc;

    use instep_client::Settings;
    use serde_json::Value;

    use super::*;

    fn line(text: &str) -> LogRecord {
        LogRecord { log: Some(text.to_owned()), ..LogRecord::default() }
    }

    /// A master that answers with these statuses, then always 200; tells which lines it accepted.
    fn master(mut statuses: Vec<u16>) -> (String, mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, accepted) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                loop {
                    let (mut length, mut header) = (0, String::new());
                    while stream.read_line(&mut header).unwrap_or(0) > 2 {
                        if let Some(value) = header.to_lowercase().strip_prefix("content-length: ") {
                            length = value.trim().parse().unwrap();
                        }
                        header.clear();
                    }
                    let mut body = vec![0; length];
                    if length == 0 || stream.read_exact(&mut body).is_err() {
                        break;
                    }
                    let status = if statuses.is_empty() { 200 } else { statuses.remove(0) };
                    let body: Value = serde_json::from_slice(&body).unwrap();
                    for record in body["logs"].as_array().unwrap().iter().filter(|_| status == 200) {
                        let _ = sender.send(record["log"].as_str().unwrap().to_owned());
                    }
                    // Only now: the test counts what arrived once the last answer is there.
                    write!(stream.get_mut(), "HTTP/1.1 {status} x\r\nContent-Length: 2\r\n\r\n{{}}").unwrap();
                }
            }
        });
        (address, accepted)
    }

    fn spool(address: &str) -> (Spool, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let client = Client::new(Settings::at(address.parse().unwrap())).unwrap();
        (Spool::start(&folder.path().join("spool"), client).unwrap(), folder)
    }

    #[test]
    fn lines_arrive_in_order_though_the_master_stumbles() {
        let (address, accepted) = master(vec![503, 500]);
        let (spool, folder) = spool(&address);
        for number in 0..5000 {
            spool.append(&[line(&format!("line {number}\n"))], |_| line("dropped"));
        }
        assert_eq!(spool.close(Duration::from_secs(20)), 0);
        let lines: Vec<String> = accepted.try_iter().collect();
        let expected: Vec<String> = (0..5000).map(|number| format!("line {number}\n")).collect();
        assert_eq!(lines, expected);
        assert_eq!(std::fs::metadata(folder.path().join("spool")).unwrap().len(), 0);
    }

    #[test]
    fn nobody_waits_for_ever_for_a_master_that_is_gone() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let (spool, _folder) = spool(&address);
        spool.append(&[line("x\n")], |_| line("dropped"));
        assert!(spool.close(Duration::from_millis(200)) > 0);
    }

    #[test]
    fn beyond_the_bound_lines_are_counted() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let (spool, folder) = spool(&address);
        let long = line(&"x".repeat(1 << 20));
        for _ in 0..70 {
            spool.append(std::slice::from_ref(&long), |_| line("dropped"));
        }
        // However long that took, on a machine with other work.
        spool.shared.lock().taken = Instant::now();
        assert!(!spool.has_room());
        assert!(spool.shared.lock().dropped >= 5);
        assert!(std::fs::metadata(folder.path().join("spool")).unwrap().len() < BOUND + (2 << 20));
        spool.close(Duration::ZERO);
    }

    #[test]
    fn batches_are_whole_lines() {
        assert_eq!(whole_lines(b"{}\n{}\n{"), 6);
        assert_eq!(whole_lines(b"{"), 0);
        assert_eq!(whole_lines("{}\n".repeat(BATCH_LINES + 5).as_bytes()), 3 * BATCH_LINES);
        assert_eq!(request(b"{}\n{}\n"), b"{\"logs\":[{},{}]}");
    }
}
