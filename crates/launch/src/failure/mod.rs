//! How a worker ended, and what is known about why.
//!
//! A worker whose entry point is wrapped with torch's `record` leaves its exception in an *error file*:
//! `{"message": {"message": "<Type>: <text>", "extraInfo": {"py_callstack": "...", "timestamp": "<unix seconds>"}}}`;
//! the short form `{"message": "<text>", "timestamp": <seconds>}` is read too. The file comes from user code, so
//! nothing in it is taken for granted.

pub mod blame;
pub mod cause;
pub(crate) mod hang;
pub(crate) mod hang_detector;
mod inquiry;

use std::fs;
use std::io::Read;
use std::path::Path;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::blame::{Blame, BlameKind};
use self::cause::{Cause, Round, WorkerEnd};
use crate::output::fold::describe_ranks;

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

/// One worker that has ended; mostly one that did not end well.
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
    /// It ended, in whatever way, after the launcher had told it to.
    #[serde(default)]
    pub after_stop: bool,
    /// Whom its last output blames, if it failed because of another rank.
    #[serde(default)]
    pub blame: Option<Blame>,
    /// What to say of it where its exit alone would mislead.
    #[serde(default)]
    pub sentence: Option<String>,
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
        if let Some(sentence) = &self.sentence {
            return sentence.clone();
        }
        let because = match &self.message {
            Some(message) => format!(" ({})", shortened(message.lines().next().unwrap_or_default())),
            None => String::new(),
        };
        format!("rank {} on {} {}{because}", self.rank, self.host, self.exit.describe())
    }

    /// Whether the script has used its session in a way that it refuses, on every rank and every time.
    pub(crate) fn is_session_misuse(&self) -> bool {
        let kind = self.message.as_deref().and_then(|message| message.split_once(':')).map(|(kind, _)| kind);
        kind.is_some_and(|kind| kind.rsplit('.').next() == Some("SessionMisuse"))
    }

    /// As other nodes are told of it: what it wrote stays where it is.
    pub(crate) fn without_output(&self) -> Failure {
        Failure { traceback: None, last_lines: Vec::new(), ..self.clone() }
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

/// Who caused the end of a round, from those that have ended, well or not; see [`cause::root_cause`].
pub fn root_cause(ends: &[Failure], round: Round) -> Option<Cause> {
    let known: Vec<WorkerEnd> = ends
        .iter()
        .map(|end| WorkerEnd {
            rank: end.rank,
            // One of which there is something to say has ended too early.
            success: end.exit.success() && end.sentence.is_none(),
            time: end.time,
            stopped: end.stopped && end.sentence.is_none(),
            after_stop: end.after_stop,
            blame: end.blame.clone(),
        })
        .collect();
    cause::root_cause(&known, round)
}

/// The cause as people read it.
pub fn explain(cause: &Cause, ends: &[Failure]) -> String {
    let of = |rank: usize| ends.iter().find(|end| end.rank == rank);
    match cause {
        Cause::Failed { rank } => of(*rank).map_or_else(|| format!("rank {rank} failed"), Failure::describe),
        Cause::Absent { ranks, waiting, kind, operation } => {
            let first = ranks.first().and_then(|rank| of(*rank));
            let who = match (ranks.as_slice(), first) {
                ([rank], Some(end)) => format!("rank {rank} on {}", end.host),
                (ranks, _) => describe_ranks(ranks),
            };
            let waited_in = operation.as_ref().map_or_else(|| " for it".to_owned(), |name| format!(" in {name}"));
            match (first.filter(|end| !end.after_stop), kind) {
                (Some(end), _) if end.exit.success() => {
                    format!("{who} ended with exit code 0 while rank {waiting} waited{waited_in}")
                }
                (_, BlameKind::Lost) => format!("{who} left, while rank {waiting} waited{waited_in}"),
                (_, BlameKind::Late | BlameKind::Disagreement) => {
                    format!("{who} did not arrive, and rank {waiting} waited{waited_in} until its timeout")
                }
            }
        }
        Cause::Disagreement { ranks, noticed_by } => {
            let who = if ranks.is_empty() { "ranks".to_owned() } else { describe_ranks(ranks) };
            let text = of(*noticed_by).and_then(|end| end.message.as_ref()).and_then(|message| message.lines().next());
            let text = text.map(|text| format!(": {text}")).unwrap_or_default();
            format!("{who} do not call the same operations with the same sizes{text}")
        }
        Cause::Unknown { consequences } => format!(
            "not known: {} lost other ranks or timed out waiting for them, and none is known to have failed on its own",
            describe_ranks(consequences)
        ),
    }
}

/// What a worker's exception is, and whom it blames: from its error file, or else from its last lines.
pub(crate) fn explain_exit(
    rank: usize,
    exit: ExitStatus,
    error: Option<&ErrorFile>,
    lines: &[String],
) -> (Option<String>, Option<Blame>) {
    let aborted = exit.0 == -(Signal::SIGABRT as i32);
    if exit.success() || exit.0 < 0 && !aborted {
        return (error.map(|error| error.message.clone()), None);
    }
    let chain = match error {
        Some(ErrorFile { traceback: Some(traceback), .. }) => blame::exceptions(traceback.lines()),
        Some(error) => vec![blame::Exception::bare(&error.message)],
        None => blame::exceptions(lines.iter().map(String::as_str)),
    };
    let blame = blame::of_exceptions(&chain, rank).or_else(|| blame::of_abort(lines, rank).filter(|_| aborted));
    // The last one is what Python shows, unless it only came of the first.
    let own = if blame.is_none() && chain.last().is_some_and(|last| last.blames_others(rank)) {
        chain.first()
    } else {
        chain.last()
    };
    let message = error.map(|error| error.message.clone()).or_else(|| own.map(|exception| exception.line.clone()));
    (message, blame)
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
    use super::{ErrorFile, ExitStatus, Failure, explain, explain_exit, parse_error_file, root_cause};
    use crate::failure::blame::{Blame, BlameKind};
    use crate::failure::cause::Round;
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
            after_stop: stopped,
            blame: None,
            sentence: None,
            error_file: None,
            message: None,
            traceback: None,
            last_lines: Vec::new(),
        }
    }

    fn explained(ends: &[Failure], world_size: usize) -> String {
        let cause = root_cause(ends, Round { world_size, is_final: true }).expect("somebody failed");
        explain(&cause, ends)
    }

    #[test]
    fn the_cause_is_explained_in_a_sentence() {
        let blames = |rank: usize, kind: BlameKind, ranks: &[usize], operation: Option<&str>| {
            let blame = Blame { kind, ranks: ranks.to_vec(), operation: operation.map(str::to_owned) };
            Failure { blame: Some(blame), ..failure(rank, 2.0, false) }
        };
        let own = Failure { message: Some("ValueError: no\nhint".to_owned()), ..failure(1, 3.0, false) };
        let left = Failure { exit: ExitStatus(0), ..failure(1, 1.0, false) };
        let stopped = failure(1, 9.0, true);
        let lost = blames(0, BlameKind::Lost, &[1], Some("all_reduce"));
        let unnamed = |rank: usize| blames(rank, BlameKind::Lost, &[], None);
        let mut differ = blames(0, BlameKind::Disagreement, &[0, 1], None);
        differ.message = Some("Mismatch: rank 0 called a but rank 1 called b".to_owned());
        let cases: [(Vec<Failure>, &str); 7] = [
            (vec![lost.clone(), own], "rank 1 on a exited with code 1 (ValueError: no)"),
            (vec![lost.clone(), left.clone()], "rank 1 on a ended with exit code 0 while rank 0 waited in all_reduce"),
            (vec![unnamed(0), left], "rank 1 on a ended with exit code 0 while rank 0 waited for it"),
            (vec![lost, stopped.clone()], "rank 1 on a left, while rank 0 waited in all_reduce"),
            (
                vec![blames(0, BlameKind::Late, &[1], Some("barrier")), stopped],
                "rank 1 on a did not arrive, and rank 0 waited in barrier until its timeout",
            ),
            (
                vec![unnamed(0), unnamed(1)],
                "not known: ranks 0-1 lost other ranks or timed out waiting for them, and none",
            ),
            (
                vec![differ],
                "ranks 0-1 do not call the same operations with the same sizes: Mismatch: rank 0 called a but",
            ),
        ];
        for (ends, expected) in cases {
            let sentence = explained(&ends, 2);
            assert!(sentence.starts_with(expected), "{sentence}");
        }
    }

    #[test]
    fn the_exception_is_found_in_the_last_lines_if_there_is_no_error_file() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let raised = lines("step 3\nTraceback (most recent call last):\n  File \"t.py\", line 1, in f\nValueError: no");
        assert_eq!(explain_exit(0, ExitStatus(1), None, &raised), (Some("ValueError: no".to_owned()), None));
        assert_eq!(explain_exit(0, ExitStatus(-9), None, &raised), (None, None), "it was killed: that is history");
        let lost = "PeerLost: lost rank 1 on a during barrier (operation 2): its process ended, noticed by rank 0";
        let blame = Blame { kind: BlameKind::Lost, ranks: vec![1], operation: Some("barrier".to_owned()) };
        let error = ErrorFile { message: lost.to_owned(), ..ErrorFile::default() };
        let found = explain_exit(0, ExitStatus(1), Some(&error), &raised);
        assert_eq!(found, (Some(lost.to_owned()), Some(blame)), "the error file knows better");
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
    fn exit_statuses_are_described_in_words() {
        assert_eq!(ExitStatus(3).describe(), "exited with code 3");
        assert_eq!(ExitStatus(-9).describe(), "was killed by SIGKILL");
        assert_eq!(ExitStatus(-15).as_process_exit_code(), 143);
        assert_eq!(ExitStatus(3).as_process_exit_code(), 3);
    }

    proptest! {
        #[test]
        fn parsing_any_error_file_does_not_panic(bytes in any::<Vec<u8>>()) {
            parse_error_file(&bytes);
        }
    }
}
