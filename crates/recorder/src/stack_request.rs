//! Asking a process for its stacks: a number into its named pipe, and a file with that number back.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;

use crate::clock;

/// Begins an answer when somebody holds the interpreter: what follows is Python's own dump, not JSON.
pub const HELD: &str = "held\n";
/// An answer is no longer than this.
const LONGEST_ANSWER: u64 = 1 << 20;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The named pipe of a process, beside its records.
pub fn pipe_path(records: &Path) -> PathBuf {
    records.with_extension("ask")
}

/// Where the answer to a request will be.
pub fn answer_path(records: &Path, number: u64) -> PathBuf {
    records.with_extension(format!("answer-{number:x}"))
}

/// Sends a request; its number is for [`answer`].
pub fn request(records: &Path) -> io::Result<u64> {
    // Different for all who ask at the same time; never 0, which stands for the end.
    let number = (clock::monotonic() ^ u64::from(std::process::id()).rotate_right(16)) | 1;
    // Without somebody who reads it, and when it is full, this fails at once.
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
    let mut pipe = File::options().write(true).custom_flags(flags).open(pipe_path(records))?;
    pipe.write_all(&number.to_le_bytes())?;
    Ok(number)
}

/// Waits for the answer until then, and takes it away; none if it does not come.
pub fn answer(records: &Path, number: u64, deadline: Instant) -> Option<String> {
    let path = answer_path(records, number);
    loop {
        if fs::metadata(&path).is_ok_and(|found| found.len() <= LONGEST_ANSWER) {
            let text = fs::read(&path).ok()?;
            let _ = fs::remove_file(&path);
            return Some(String::from_utf8_lossy(&text).into_owned());
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use std::io::Read;

    #[test]
    fn an_answer_is_removed_once_it_was_read() {
        let folder = tempfile::tempdir().unwrap();
        let records = folder.path().join("rank-0-1.records");
        assert!(request(&records).is_err(), "nobody is there");
        nix::unistd::mkfifo(&pipe_path(&records), Mode::from_bits_truncate(0o600)).unwrap();
        assert!(request(&records).is_err(), "nobody reads");
        let mut pipe = File::options().read(true).write(true).open(pipe_path(&records)).unwrap();
        let number = request(&records).unwrap();
        let mut heard = [0; 8];
        pipe.read_exact(&mut heard).unwrap();
        assert_eq!(u64::from_le_bytes(heard), number);
        assert_eq!(answer(&records, number, Instant::now()), None);
        fs::write(answer_path(&records, number), "stacks").unwrap();
        assert_eq!(answer(&records, number, Instant::now()).as_deref(), Some("stacks"));
        assert_eq!(answer(&records, number, Instant::now()), None);
    }
}
