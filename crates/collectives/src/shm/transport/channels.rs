//! Several threads for one operation on much memory, where a host has cores to spare.
//!
//! However a core asks for lines that another core has written, it gets a few gigabytes of them a second; two cores get
//! twice as much. A *channel* is one thread of every rank, with counters and slots of its own (see [`crate::shm::arena`]). It takes
//! its share of every buffer through them, the same share on every rank, as if that was an operation by itself. The thread
//! that has the operation is the first channel; the others are made when they are needed first, and sleep in between.
//!
//! No bit of a result depends on the number of channels: see [`crate::partition`].

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::pipeline::{StepContext, StepError, StepResult};
use super::{ShmTransport, Work};
use crate::Error;

/// What a channel is asked to do, with its own part of the arena.
type ChannelJob = Box<dyn FnOnce(&mut ShmTransport) -> Result<(), Error> + Send>;

/// The channels of a rank beside the first.
pub(super) struct Channels {
    /// How many all ranks have, with the first.
    pub(super) count: usize,
    /// What each must have to move to be worth waking.
    pub(super) least_bytes: usize,
    threads: Vec<ChannelThread>,
}

struct ChannelThread {
    jobs: Sender<ChannelJob>,
    answers: Receiver<ChannelResult>,
}

struct ChannelResult {
    result: Result<(), Error>,
    touched: bool,
}

/// Jobs under way: their memory is lent until all have ended.
struct RunningJobs<'a> {
    channels: &'a [ChannelThread],
    touched: bool,
}

impl Channels {
    /// Only the thread that has the operation.
    pub(super) fn first() -> Channels {
        Channels { count: 1, least_bytes: 0, threads: Vec::new() }
    }

    /// How many are worth waking for an operation that moves so many bytes.
    pub(super) fn worth(&self, bytes: usize) -> usize {
        (bytes / self.least_bytes.max(1)).clamp(1, self.count)
    }
}

impl ChannelThread {
    /// Its thread ends when this is dropped, which a forked child may do as well: nobody waits for it.
    fn start(mut transport: ShmTransport) -> Result<ChannelThread, Error> {
        let (jobs, wanted) = channel::<ChannelJob>();
        let (ended, answers) = channel();
        let work = move || {
            for job in wanted {
                let result = job(&mut transport);
                if ended.send(ChannelResult { result, touched: transport.touched }).is_err() {
                    return;
                }
            }
        };
        let named = thread::Builder::new().name("instep-channel".to_owned());
        named.spawn(work).map_err(|error| Error::system("start a thread", error))?;
        Ok(ChannelThread { jobs, answers })
    }
}

impl RunningJobs<'_> {
    /// Waits for all; gives the first error.
    fn end(&mut self) -> Result<(), Error> {
        let (mut result, mut panicked) = (Ok(()), false);
        for channel in std::mem::take(&mut self.channels) {
            let Ok(answer) = channel.answers.recv() else {
                panicked = true;
                continue;
            };
            self.touched |= answer.touched;
            result = result.and(answer.result);
        }
        // Not before all have ended: they have the caller's memory.
        assert!(!panicked, "a channel answers every job");
        result
    }
}

impl Drop for RunningJobs<'_> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl ShmTransport {
    /// Has each of so many channels do its share, the first one in this thread.
    pub(super) fn in_channels<S: Send + 'static>(
        &mut self,
        channels: usize,
        context: &StepContext,
        share: impl Fn(usize) -> S,
        as_work: fn(&S) -> Work<'_>,
        own: impl FnOnce(&mut ShmTransport, &S) -> StepResult,
    ) -> StepResult {
        let job = |channel: usize| -> ChannelJob {
            let (share, whole, left) = (share(channel), context.whole(self.arena.world()), context.left());
            Box::new(move |transport| transport.run_part(&as_work(&share), &whole, left))
        };
        let jobs: Vec<ChannelJob> = (1..channels).map(job).collect();
        while self.channels.threads.len() < jobs.len() {
            let number = self.channels.threads.len() + 1;
            let channel = ChannelThread::start(self.sibling(number)).map_err(StepError::Failed)?;
            self.channels.threads.push(channel);
        }
        let threads = std::mem::take(&mut self.channels.threads);
        let mut under_way = RunningJobs { channels: &threads[..jobs.len()], touched: false };
        for (channel, job) in threads.iter().zip(jobs) {
            channel.jobs.send(job).expect("a channel takes jobs until it is dropped");
        }
        let own = own(self, &share(0));
        let others = under_way.end();
        self.touched |= under_way.touched;
        drop(under_way);
        self.channels.threads = threads;
        own.and(others.map_err(StepError::Failed))
    }
}
