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
pub(super) struct Monitor {
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// What wakes the thread.
#[derive(Clone)]
pub(super) struct Waker(Arc<PipeWriter>);

impl Waker {
    /// The group is aborted: nobody is to be waited for.
    pub(super) fn abort(&self) {
        self.say(ABORTED);
    }

    fn say(&self, word: u8) {
        // A thread that has ended has let everybody pass.
        let _ = self.0.as_ref().write_all(&[word]);
    }
}

struct MonitorThread {
    gpu: Arc<Gpu>,
    stream: Arc<Stream>,
    flags: Arc<Flags>,
    processes: Arc<[OwnedFd]>,
    waker: PipeReader,
}

impl Monitor {
    pub(super) fn new(
        gpu: Arc<Gpu>,
        stream: Arc<Stream>,
        flags: Arc<Flags>,
        processes: Arc<[OwnedFd]>,
    ) -> Result<Monitor, Error> {
        let (waker, writer) = pipe().map_err(|cause| Error::system("open a pipe", cause))?;
        let monitor = MonitorThread { gpu, stream, flags, processes, waker };
        let thread = std::thread::Builder::new()
            .name("instep-device-monitor".to_owned())
            .spawn(move || monitor.run())
            .map_err(|cause| Error::system("start a thread", cause))?;
        Ok(Monitor { waker: Waker(Arc::new(writer)), thread: Some(thread) })
    }

    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.waker.say(NOT_NEEDED);
        self.thread.take().into_iter().for_each(crate::sync::join);
    }
}

impl MonitorThread {
    fn run(mut self) {
        let entered = self.gpu.enter().is_ok();
        let mut alive: Vec<usize> = (0..self.processes.len()).collect();
        let mut aborted = false;
        loop {
            // A stream that cannot be asked any more waits for nothing.
            let waits = aborted && entered && !self.stream.is_idle().unwrap_or(true);
            let (waker, ended) =
                self.sleep(&alive, if waits { PollTimeout::from(AGAIN_MS) } else { PollTimeout::NONE });
            if waker {
                let mut word = [NOT_NEEDED];
                match self.waker.read(&mut word) {
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

    /// Sleeps until something happens: whether the waker was raised, and whose processes have ended.
    fn sleep(&self, alive: &[usize], timeout: PollTimeout) -> (bool, Vec<usize>) {
        let mut handles = vec![PollFd::new(self.waker.as_fd(), PollFlags::POLLIN)];
        handles.extend(alive.iter().map(|rank| PollFd::new(self.processes[*rank].as_fd(), PollFlags::POLLIN)));
        if poll(&mut handles, timeout).unwrap_or(0) == 0 {
            return (false, Vec::new());
        }
        let happened = |handle: &PollFd<'_>| handle.any() == Some(true);
        let ended = alive.iter().zip(&handles[1..]).filter(|(_, handle)| happened(handle)).map(|(rank, _)| *rank);
        (happened(&handles[0]), ended.collect())
    }
}
