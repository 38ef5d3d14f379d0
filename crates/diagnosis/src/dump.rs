//! Stacks of workers that have no group of the backend instep: Python's fault handler writes them, on a signal.
//!
//! `instep._stacks` has put it there and made a file for it. A process that does not catch the signal is never sent it: it
//! would end.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// SIGRTMIN + 15, which nobody uses.
const SIGNAL: i32 = 49;
/// A dump that has not grown for so long is complete.
const QUIET: Duration = Duration::from_millis(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// A dump is no longer than this.
const LONGEST: u64 = 1 << 20;

/// A dump that was asked for.
#[derive(Debug)]
pub(crate) struct Dump {
    file: PathBuf,
    /// What the file held before.
    begin: u64,
}

/// Asks a process for its stacks; none if it is not ready to be asked.
pub(crate) fn request(folder: &Path, process: u32) -> Option<Dump> {
    let file = folder.join(format!("stacks-{process}"));
    let begin = fs::symlink_metadata(&file).ok().filter(|found| found.is_file())?.len();
    if !catches(&fs::read_to_string(format!("/proc/{process}/status")).ok()?) {
        return None;
    }
    send(process).then_some(Dump { file, begin })
}

/// Whether a process handles the signal, by what the kernel says of it.
fn catches(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (SIGNAL - 1) & 1 == 1)
}

#[expect(unsafe_code, reason = "nix has no real-time signals")]
fn send(process: u32) -> bool {
    let Ok(process) = i32::try_from(process) else { return false };
    // SAFETY: a plain system call without pointers; the number is that of a process which handles this signal.
    process > 1 && unsafe { libc::kill(process, SIGNAL) } == 0
}

/// Waits for the dump until then.
pub(crate) fn answer(dump: &Dump, deadline: Instant) -> Option<String> {
    let (mut length, mut since) = (dump.begin, Instant::now());
    while Instant::now() < deadline {
        let now = fs::metadata(&dump.file).map_or(dump.begin, |found| found.len());
        if now != length {
            (length, since) = (now, Instant::now());
        } else if length > dump.begin && since.elapsed() >= QUIET {
            break;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let mut file = File::open(&dump.file).ok()?;
    file.seek(SeekFrom::Start(dump.begin)).ok()?;
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::{answer, catches, request};
    use std::time::Instant;

    #[test]
    fn a_process_that_does_not_catch_the_signal_is_not_sent_it() {
        assert!(catches("Name:\tpython\nSigCgt:\t0001000180000002\n"));
        assert!(!catches("SigCgt:\t0000000180000002\n") && !catches("") && !catches("SigCgt:\tx\n"));
        let folder = tempfile::tempdir().expect("a folder");
        let own = std::process::id();
        assert!(request(folder.path(), own).is_none(), "it has offered nothing");
        std::fs::write(folder.path().join(format!("stacks-{own}")), "").expect("written");
        assert!(request(folder.path(), own).is_none(), "it would end");
    }

    #[test]
    fn only_what_was_written_since_is_the_answer() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("stacks-1");
        std::fs::write(&file, "old\nnew\n").expect("written");
        let dump = super::Dump { file, begin: 4 };
        assert_eq!(answer(&dump, Instant::now()).as_deref(), Some("new\n"));
        assert_eq!(answer(&super::Dump { begin: 8, ..dump }, Instant::now()), None);
    }
}
