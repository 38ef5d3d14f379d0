//! The output of a task: captured through two named pipes, cut into lines, put into the spool.
//!
//! The pipes stay open on our side for as long as the task lives, so their end says nothing; what is in them after the
//! last process has ended is read, and that is all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use instep_api::logs::LogRecord;
use instep_api::states::LogLevel;
use instep_api::wire::{Timestamp, Whole};
use instep_client::Client;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::hiding::Hidden;
use super::spool::Spool;
use crate::lines::{Cutter, Line};
use crate::order::TaskOrder;

/// Bytes that are read at a time.
const CHUNK: usize = 64 << 10;
/// Characters of an exception that are kept.
const LONGEST_EXCEPTION: usize = 400;

struct Stream {
    name: &'static str,
    reader: File,
    writer: File,
    cutter: Cutter,
    noticed: Noticed,
}

impl Stream {
    /// Makes a pipe with a name, `stdout.log` or `stderr.log`, where Determined's `wrap_rank` looks for it.
    fn open(folder: &Path, name: &'static str) -> io::Result<Stream> {
        let path = folder.join(format!("{name}.log"));
        // A first try of this task may have left one.
        let _ = fs::remove_file(&path);
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        // For reading and writing: so it opens at once, and has no end while we live.
        let flags = (OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).bits();
        let reader = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path)?;
        let writer = OpenOptions::new().write(true).open(&path)?;
        Ok(Stream { name, reader, writer, cutter: Cutter::default(), noticed: Noticed::default() })
    }
}

/// Both streams on their way to the master.
pub struct Output {
    streams: [Stream; 2],
    /// What all lines of this task have in common.
    label: LogRecord,
    hidden: Hidden,
    spool: Spool,
}

/// What lines of output tell about a failure.
#[derive(Debug, Default)]
struct Noticed {
    /// A module that Python did not find, if it said so.
    missing_module: Option<String>,
    /// A traceback has begun, and its exception has not come yet.
    in_traceback: bool,
    /// The last exception with a traceback.
    exception: Option<String>,
}

impl Noticed {
    fn line(&mut self, text: &str) {
        if self.missing_module.is_none() {
            self.missing_module = module_not_found(text).map(str::to_owned);
        }
        // torch begins every line of a traceback with the rank.
        let ranked = text.strip_prefix("[rank").and_then(|rest| rest.split_once("]: "));
        let text = ranked.map_or(text, |(_, rest)| rest).trim_end();
        if text.ends_with("Traceback (most recent call last):") {
            self.in_traceback = true;
        } else if self.in_traceback && !text.is_empty() && !text.starts_with(' ') {
            self.in_traceback = false;
            let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
            self.exception = Some(text.chars().map(plain).take(LONGEST_EXCEPTION).collect());
        }
    }
}

impl Output {
    /// Opens the pipes in a folder, and the spool.
    pub fn start(order: &TaskOrder, pipes: &Path, spool: &Path, client: Client) -> io::Result<Output> {
        let label = LogRecord {
            task_id: Some(order.start.task.clone()),
            allocation_id: Some(order.start.share.allocation.clone()),
            agent_id: Some(order.machine.agent.clone()),
            container_id: Some(order.start.container.clone()),
            source: Some("task".to_owned()),
            ..LogRecord::default()
        };
        let streams = [Stream::open(pipes, "stdout")?, Stream::open(pipes, "stderr")?];
        Ok(Output { streams, label, hidden: Hidden::of(order), spool: Spool::start(spool, client)? })
    }

    /// Where a program writes to.
    pub fn writers(&self) -> io::Result<(Stdio, Stdio)> {
        let [out, error] = &self.streams;
        Ok((out.writer.try_clone()?.into(), error.writer.try_clone()?.into()))
    }

    /// What to wait for; nothing while the spool has no room, so that the task waits instead.
    pub fn readers(&self) -> Vec<BorrowedFd<'_>> {
        if self.spool.has_room() {
            self.streams.iter().map(|stream| stream.reader.as_fd()).collect()
        } else {
            Vec::new()
        }
    }

    /// Takes what has come, at most a chunk of each stream. Says whether there was anything.
    pub fn take(&mut self) -> bool {
        if !self.spool.has_room() {
            return false;
        }
        let mut records = Vec::new();
        let mut any = false;
        for stream in &mut self.streams {
            let mut chunk = vec![0; CHUNK];
            let Ok(count @ 1..) = stream.reader.read(&mut chunk) else { continue };
            any = true;
            let (name, label, hidden, noticed) = (stream.name, &self.label, &self.hidden, &mut stream.noticed);
            stream.cutter.push(&chunk[..count], |line| records.push(record(label, name, line, hidden, noticed)));
        }
        self.append(&records);
        any
    }

    /// Takes everything that is left, after the last process has ended.
    pub fn finish(&mut self) {
        while self.take() || !self.spool.has_room() {
            if !self.spool.has_room() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let mut records = Vec::new();
        for stream in &mut self.streams {
            let (name, label, hidden, noticed) = (stream.name, &self.label, &self.hidden, &mut stream.noticed);
            stream.cutter.close(|line| records.push(record(label, name, line, hidden, noticed)));
        }
        self.append(&records);
    }

    /// Says something ourselves, in the form of Determined's own messages.
    pub fn say(&self, level: LogLevel, what: &str) {
        let process = std::process::id();
        let lines: Vec<LogRecord> = what
            .lines()
            .map(|line| LogRecord {
                level: Some(level),
                log: Some(format!("[{process}] instep: {line}\n")),
                stdtype: Some("stderr".to_owned()),
                timestamp: Some(now()),
                ..self.label.clone()
            })
            .collect();
        self.append(&lines);
    }

    /// A module that Python did not find.
    pub fn missing_module(&self) -> Option<&str> {
        self.streams.iter().find_map(|stream| stream.noticed.missing_module.as_deref())
    }

    /// The last exception that a Python program printed.
    pub fn exception(&self) -> Option<&str> {
        self.streams.iter().rev().find_map(|stream| stream.noticed.exception.as_deref())
    }

    /// A text without the task's secrets.
    pub fn masked(&self, text: String) -> String {
        self.hidden.mask(text)
    }

    /// Delivers what is left, for at most so long. Gives the bytes that were not.
    pub fn close(self, patience: Duration) -> u64 {
        // So that the last word is said about lines that were dropped.
        self.append(&[]);
        self.spool.close(patience)
    }

    fn append(&self, records: &[LogRecord]) {
        self.spool.append(records, |dropped| LogRecord {
            level: Some(LogLevel::Warning),
            log: Some(format!("instep: {dropped} lines of output were dropped here, the master was too slow\n")),
            stdtype: Some("stderr".to_owned()),
            timestamp: Some(now()),
            ..self.label.clone()
        });
    }
}

fn record(label: &LogRecord, stream: &str, bytes: &[u8], hidden: &Hidden, noticed: &mut Noticed) -> LogRecord {
    let line = Line::read(bytes);
    let text = hidden.mask(line.text);
    noticed.line(&text);
    LogRecord {
        rank_id: line.rank.map(Whole),
        level: line.level,
        log: Some(text),
        stdtype: Some(stream.to_owned()),
        timestamp: Some(now()),
        ..label.clone()
    }
}

/// The module in `… No module named 'x.y'`.
fn module_not_found(text: &str) -> Option<&str> {
    let name = text.split_once("No module named ")?.1.trim().trim_start_matches(['\'', '"']);
    let end = name.find(|sign: char| !sign.is_alphanumeric() && sign != '_').unwrap_or(name.len());
    Some(&name[..end]).filter(|name| !name.is_empty())
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exception_behind_a_traceback_is_noticed() {
        let mut noticed = Noticed::default();
        let lines =
            "step 1\nTraceback (most recent call last):\n  File \"t.py\", line 1, in f\n    f()\nValueError: no\nbye\n";
        lines.lines().for_each(|line| noticed.line(line));
        assert_eq!(noticed.exception.as_deref(), Some("ValueError: no"));
    }

    #[test]
    fn a_module_that_is_not_there_is_noticed() {
        let cases = [
            ("ModuleNotFoundError: No module named 'determined'\n", Some("determined")),
            ("/usr/bin/python3: No module named determined\n", Some("determined")),
            ("(ModuleNotFoundError: No module named 'determined.launch')\n", Some("determined")),
            ("No module named \n", None),
            ("all is well\n", None),
        ];
        for (line, expected) in cases {
            assert_eq!(module_not_found(line), expected, "{line}");
        }
    }
}
