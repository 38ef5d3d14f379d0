//! Who lets streams pass when what they wait for will not come: a thread that sleeps until a rank's process ends, or the
//! group is aborted.
//!
//! A process that has ended writes nothing more, so its counters are released once. After an abort the others live and
//! may still write, so theirs are released again and again until this rank's stream has done everything.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::driver::{Gpu, Stream};
use super::flags::Flags;
use crate::Error;

/// How often an aborted group's counters are released, in milliseconds.
const AGAIN_MS: u16 = 5;

/// What the thread is told: said, not left to the end of the pipe, of which forked children have copies.
const ABORTED: u8 = 1;
const NOT_NEEDED: u8 = 0;

/// Ends its thread when dropped; to be dropped when the stream has done everything.
pub(super) struct Watch {
    alarm: Alarm,
    thread: Option<JoinHandle<()>>,
}

/// What wakes the thread.
#[derive(Clone)]
pub(super) struct Alarm(Arc<PipeWriter>);

impl Alarm {
    /// The group is aborted: nobody is to be waited for.
    pub(super) fn abort(&self) {
        self.say(ABORTED);
    }

    fn say(&self, word: u8) {
        // A thread that has ended has let everybody pass.
        let _ = self.0.as_ref().write_all(&[word]);
    }
}

struct Watched {
    gpu: Arc<Gpu>,
    stream: Arc<Stream>,
    flags: Arc<Flags>,
    processes: Arc<[OwnedFd]>,
    alarm: PipeReader,
}

impl Watch {
    pub(super) fn new(
        gpu: Arc<Gpu>,
        stream: Arc<Stream>,
        flags: Arc<Flags>,
        processes: Arc<[OwnedFd]>,
    ) -> Result<Watch, Error> {
        let (alarm, writer) = pipe().map_err(|cause| Error::system("open a pipe", cause))?;
        let watched = Watched { gpu, stream, flags, processes, alarm };
        let thread = std::thread::Builder::new()
            .name("instep-device-watch".to_owned())
            .spawn(move || watched.run())
            .map_err(|cause| Error::system("start a thread", cause))?;
        Ok(Watch { alarm: Alarm(Arc::new(writer)), thread: Some(thread) })
    }

    pub(super) fn alarm(&self) -> &Alarm {
        &self.alarm
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.alarm.say(NOT_NEEDED);
        self.thread.take().into_iter().for_each(crate::sync::join);
    }
}

impl Watched {
    fn run(mut self) {
        let entered = self.gpu.enter().is_ok();
        let mut alive: Vec<usize> = (0..self.processes.len()).collect();
        let mut aborted = false;
        loop {
            // A stream that cannot be asked any more waits for nothing.
            let waits = aborted && entered && !self.stream.is_idle().unwrap_or(true);
            let (alarm, ended) =
                self.sleep(&alive, if waits { PollTimeout::from(AGAIN_MS) } else { PollTimeout::NONE });
            if alarm {
                let mut word = [NOT_NEEDED];
                match self.alarm.read(&mut word) {
                    Ok(1) if word == [ABORTED] => aborted = true,
                    _ => return,
                }
            }
            alive.retain(|rank| !ended.contains(rank));
            ended.iter().for_each(|rank| self.flags.release(*rank));
            if aborted {
                (0..self.processes.len()).for_each(|rank| self.flags.release(rank));
            }
        }
    }

    /// Sleeps until something happens: whether the alarm was raised, and whose processes have ended.
    fn sleep(&self, alive: &[usize], timeout: PollTimeout) -> (bool, Vec<usize>) {
        let mut handles = vec![PollFd::new(self.alarm.as_fd(), PollFlags::POLLIN)];
        handles.extend(alive.iter().map(|rank| PollFd::new(self.processes[*rank].as_fd(), PollFlags::POLLIN)));
        if poll(&mut handles, timeout).unwrap_or(0) == 0 {
            return (false, Vec::new());
        }
        let happened = |handle: &PollFd<'_>| handle.any() == Some(true);
        let ended = alive.iter().zip(&handles[1..]).filter(|(_, handle)| happened(handle)).map(|(rank, _)| *rank);
        (happened(&handles[0]), ended.collect())
    }
}
