//! How a worker ended, and what is known about why.
//!
//! A worker whose entry point is wrapped with torch's `record` leaves its exception in an *error file*:
//! `{"message": {"message": "<Type>: <text>", "extraInfo": {"py_callstack": "...", "timestamp": "<unix seconds>"}}}`;
//! the short form `{"message": "<text>", "timestamp": <seconds>}` is read too. The file comes from user code, so
//! nothing in it is taken for granted.

use std::fs;
use std::io::Read;
use std::path::Path;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// An error file larger than this is cut when read: it is shown to people.
const MAX_ERROR_FILE_BYTES: u64 = 1 << 20;

/// A worker's exit status: its code, or minus the signal that ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitStatus(pub i32);

impl ExitStatus {
    /// Ended by itself with 0.
    pub fn success(self) -> bool {
        self.0 == 0
    }

    /// The name of the signal that ended it.
    pub fn signal(self) -> Option<String> {
        (self.0 < 0).then(|| match Signal::try_from(-self.0) {
            Ok(signal) => signal.as_str().to_owned(),
            Err(_) => format!("signal {}", -self.0),
        })
    }

    /// The status as a shell would give it.
    pub fn as_process_exit_code(self) -> u8 {
        let code = if self.0 < 0 { 128 - self.0 } else { self.0 };
        u8::try_from(code).unwrap_or(1)
    }

    /// "exited with code 3", "was killed by SIGKILL".
    pub fn describe(self) -> String {
        match self.signal() {
            Some(signal) => format!("was killed by {signal}"),
            None => format!("exited with code {}", self.0),
        }
    }
}

/// One worker that did not end well.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Rank in the world.
    pub rank: usize,
    /// Rank on its node.
    pub local_rank: usize,
    /// The node.
    pub host: String,
    /// Its process id there.
    pub pid: i32,
    /// How it ended.
    pub exit: ExitStatus,
    /// When, in seconds since 1970: the error file's time if there is one, else when it was seen.
    pub time: f64,
    /// The launcher ended it because another worker had failed.
    pub stopped: bool,
    /// Where the worker wrote its exception.
    pub error_file: Option<String>,
    /// The exception: type and text.
    pub message: Option<String>,
    /// The exception's stack.
    pub traceback: Option<String>,
    /// The last lines it wrote.
    pub last_lines: Vec<String>,
}

impl Failure {
    /// "rank 1 on node-b exited with code 3 (ValueError: no)".
    pub fn describe(&self) -> String {
        let because = match &self.message {
            Some(message) => format!(" ({})", shortened(message.lines().next().unwrap_or_default())),
            None => String::new(),
        };
        format!("rank {} on {} {}{because}", self.rank, self.host, self.exit.describe())
    }
}

/// The beginning of a long line: the whole of it stands in the report.
fn shortened(line: &str) -> String {
    const LONGEST: usize = 60;
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// The failure that came first: workers the launcher ended itself are never the cause if there is another.
pub fn root_cause(failures: &[Failure]) -> Option<&Failure> {
    failures
        .iter()
        .min_by(|a, b| (a.stopped, a.time).partial_cmp(&(b.stopped, b.time)).unwrap_or(std::cmp::Ordering::Equal))
}

/// What an error file says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ErrorFile {
    /// The exception: type and text.
    pub message: String,
    /// The stack, if it was recorded.
    pub traceback: Option<String>,
    /// Seconds since 1970.
    pub time: Option<f64>,
}

/// Reads an error file; `None` if there is none or it says nothing.
pub fn read_error_file(path: &Path) -> Option<ErrorFile> {
    let text = read_bounded(path).ok()?;
    if text.is_empty() {
        return None;
    }
    Some(parse_error_file(&text))
}

fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MAX_ERROR_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn parse_error_file(bytes: &[u8]) -> ErrorFile {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let seconds = |value: &Value| match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_f64(),
    };
    let Ok(root) = serde_json::from_slice::<Value>(bytes) else {
        // Not JSON: still better shown than hidden.
        return ErrorFile { message: String::from_utf8_lossy(bytes).trim().to_owned(), ..ErrorFile::default() };
    };
    let message = root.get("message").unwrap_or(&root);
    let extra = message.get("extraInfo");
    ErrorFile {
        message: text(message.get("message").unwrap_or(message)),
        traceback: extra.and_then(|extra| extra.get("py_callstack")).map(text),
        time: extra.and_then(|extra| extra.get("timestamp")).or(root.get("timestamp")).and_then(seconds),
    }
}

/// Copies the root cause's error file to where *our* parent expects one, adding the exit code as torchrun does; a
/// message that is plain text stays as it is.
pub fn pass_on_error_file(from: &Path, to: &Path, exit: ExitStatus) -> std::io::Result<()> {
    let mut root: Value = serde_json::from_slice(&read_bounded(from)?)?;
    if let Some(Value::Object(message)) = root.get_mut("message") {
        message.insert("errorCode".to_owned(), exit.0.into());
    }
    fs::write(to, serde_json::to_vec(&root)?)
}

/// Writes an error file of the launcher's own, for a parent that expects one.
pub fn write_error_file(to: &Path, message: &str, seconds_since_1970: u64) -> std::io::Result<()> {
    let extra = json!({"py_callstack": message, "timestamp": seconds_since_1970.to_string()});
    fs::write(to, serde_json::to_vec(&json!({"message": {"message": message, "extraInfo": extra}}))?)
}

#[cfg(test)]
mod tests {
    use super::{ErrorFile, ExitStatus, Failure, parse_error_file, root_cause};
    use proptest::prelude::{any, proptest};

    fn failure(rank: usize, time: f64, stopped: bool) -> Failure {
        Failure {
            rank,
            local_rank: rank,
            host: "a".to_owned(),
            pid: 1,
            exit: ExitStatus(1),
            time,
            stopped,
            error_file: None,
            message: None,
            traceback: None,
            last_lines: Vec::new(),
        }
    }

    #[test]
    fn the_first_failure_is_the_cause_unless_we_caused_it() {
        let failures = [failure(0, 5.0, true), failure(1, 7.0, false), failure(2, 6.0, false), failure(3, 6.0, false)];
        assert_eq!(root_cause(&failures).map(|failure| failure.rank), Some(2));
        assert_eq!(root_cause(&failures[..1]).map(|failure| failure.rank), Some(0));
        assert_eq!(root_cause(&[]), None);
    }

    #[test]
    fn both_shapes_of_error_files_are_read() {
        let long = br#"{"message": {"message": "E: x", "extraInfo": {"py_callstack": "stack", "timestamp": "17"}}}"#;
        let parsed = ErrorFile { message: "E: x".to_owned(), traceback: Some("stack".to_owned()), time: Some(17.0) };
        assert_eq!(parse_error_file(long), parsed);
        let short = parse_error_file(br#"{"message": "gone", "timestamp": 18}"#);
        assert_eq!((short.message.as_str(), short.time), ("gone", Some(18.0)));
        assert_eq!(parse_error_file(b"plain text\n").message, "plain text");
    }

    #[test]
    fn statuses_read_well() {
        assert_eq!(ExitStatus(3).describe(), "exited with code 3");
        assert_eq!(ExitStatus(-9).describe(), "was killed by SIGKILL");
        assert_eq!(ExitStatus(-15).as_process_exit_code(), 143);
        assert_eq!(ExitStatus(3).as_process_exit_code(), 3);
    }

    proptest! {
        #[test]
        fn any_error_file_is_survived(bytes in any::<Vec<u8>>()) {
            parse_error_file(&bytes);
        }
    }
}
