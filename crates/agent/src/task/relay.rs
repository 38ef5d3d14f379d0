//! What guardian and supervisor say to each other, through two pipes that no task can reach.
//!
//! ```text
//! guardian ── the order, then a line for every stop ──▶ stdin of the supervisor
//! guardian ◀── how the share ended, as its last word ── stdout of the supervisor
//! ```
//!
//! The supervisor runs as the task's user, who may neither read what the agent wants nor write how it ended: both are files
//! of the agent's user, with which only the guardian deals.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use instep_api::link::{Ending, Exit};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::order::{StopOrder, TaskOrder};

/// Bytes of an order at most, as of its file.
const LONGEST_ORDER: usize = 64 << 20;
/// Characters of a reason, so that an end fits into a pipe, however it is escaped: nobody reads it before the end.
const LONGEST_WHY: usize = 8000;
/// Bytes of an end that are read.
const LONGEST_EXIT: u64 = 64 << 10;
const CHUNK: usize = 64 << 10;

/// Sends a line to the supervisor. One that is gone is noticed by its end.
pub fn send(pipe: &mut impl Write, value: &impl serde::Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value).map_err(io::Error::other)?;
    line.push(b'\n');
    pipe.write_all(&line)
}

/// Lets reads and writes of a pipe fail instead of waiting.
pub fn never_wait(pipe: impl AsFd) -> io::Result<()> {
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

/// What the supervisor said of the end, read after its own end.
pub fn exit(pipe: impl Read + AsFd) -> Option<Ending> {
    // Somebody may hold the other side open; what was said is in the pipe by now.
    never_wait(&pipe).ok()?;
    let mut bytes = Vec::new();
    match pipe.take(LONGEST_EXIT).read_to_end(&mut bytes) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => None,
        Ok(_) | Err(_) => serde_json::from_slice(&bytes).ok(),
    }
}

/// An end as the supervisor says it.
pub fn exit_line(ending: Ending) -> io::Result<Vec<u8>> {
    let short = |why: String| why.chars().take(LONGEST_WHY).collect();
    let exit = match ending.exit {
        Exit::Code { code, why } => Exit::Code { code, why: why.map(short) },
        Exit::Failed { why } => Exit::Failed { why: short(why) },
        Exit::Lost { why } => Exit::Lost { why: short(why) },
        Exit::Killed => Exit::Killed,
    };
    serde_json::to_vec(&Ending { exit, ..ending }).map_err(io::Error::other)
}

/// The supervisor's side: what comes after the order.
pub struct Orders {
    /// `None` once the guardian has closed it.
    pipe: Option<File>,
    buffer: Vec<u8>,
}

impl Orders {
    /// Waits for the order.
    pub fn receive(mut pipe: File) -> io::Result<(TaskOrder, Orders)> {
        let mut buffer = Vec::new();
        let end = loop {
            if let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                break end;
            }
            let read = read_once(&mut pipe, &mut buffer)?;
            if read == 0 || buffer.len() > LONGEST_ORDER {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the guardian sent no order"));
            }
        };
        let order = serde_json::from_slice(&buffer[..end]).map_err(io::Error::other)?;
        buffer.drain(..=end);
        never_wait(&pipe)?;
        Ok((order, Orders { pipe: Some(pipe), buffer }))
    }

    /// What to wait for.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// The last stop that has come since the last call.
    pub fn take(&mut self) -> Option<StopOrder> {
        if let Some(pipe) = &mut self.pipe
            && matches!(read_once(pipe, &mut self.buffer), Ok(0))
        {
            // The guardian is gone, and we are about to be told by a signal.
            self.pipe = None;
        }
        let end = self.buffer.iter().rposition(|byte| *byte == b'\n')?;
        let lines: Vec<u8> = self.buffer.drain(..=end).collect();
        lines.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).next_back()
    }
}

/// One read, appended to a buffer.
fn read_once(pipe: &mut File, buffer: &mut Vec<u8>) -> io::Result<usize> {
    let mut chunk = vec![0; CHUNK];
    let read = pipe.read(&mut chunk)?;
    buffer.extend_from_slice(&chunk[..read]);
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::task::testing::order;

    fn pipe() -> (File, File) {
        let (reader, writer): (OwnedFd, OwnedFd) = nix::unistd::pipe().unwrap();
        (reader.into(), writer.into())
    }

    #[test]
    fn an_order_is_followed_by_stops_of_which_the_last_counts() {
        let (reader, mut writer) = pipe();
        let stop = |grace_seconds| StopOrder { grace_seconds, why: "line\nbreak".to_owned(), lost: false };
        send(&mut writer, &order()).unwrap();
        send(&mut writer, &stop(30)).unwrap();
        let (received, mut orders) = Orders::receive(reader).unwrap();
        assert_eq!(received, order());
        assert_eq!(orders.take(), Some(stop(30)));
        assert_eq!(orders.take(), None);
        send(&mut writer, &stop(9)).unwrap();
        send(&mut writer, &stop(0)).unwrap();
        writer.write_all(b"{half").unwrap();
        assert_eq!(orders.take(), Some(stop(0)));
        drop(writer);
        assert_eq!(orders.take(), None);
        assert!(orders.as_fd().is_none());
    }

    #[test]
    fn a_guardian_that_says_nothing_is_an_error() {
        let (reader, writer) = pipe();
        drop(writer);
        assert!(Orders::receive(reader).is_err());
    }

    #[test]
    fn the_end_is_read_although_somebody_holds_the_pipe() {
        let (reader, mut writer) = pipe();
        let long = Exit::Failed { why: "\u{1}".repeat(100_000) };
        writer.write_all(&exit_line(long.into()).unwrap()).unwrap();
        let Some(Ending { exit: Exit::Failed { why }, .. }) = exit(reader) else { panic!("nothing was read") };
        assert_eq!(why.len(), LONGEST_WHY);
        let (reader, _writer) = pipe();
        assert_eq!(exit(reader), None);
    }
}
