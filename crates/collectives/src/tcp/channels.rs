//! Several connections between the same two ranks, with a thread each, where hosts have cores to spare.
//!
//! One thread moves a few gigabytes a second through a socket, and less if it encrypts them. A *channel* is a whole
//! [`TcpTransport`]: connections to all peers, their keys, memory for what comes in. A large operation is divided among them: each
//! does its [share](super::share) as if that was an operation by itself, on a thread of its own. The thread that has the operation is
//! the first channel. It does small operations alone, and takes part in all others, so that every rank hears there from every
//! other before it returns. The others' threads start when they are needed first, and sleep in between.
//!
//! Ranks agree on the number of channels from their addresses, before they connect. No bit of a result depends on it: see
//! [`crate::partition`].
//!
//! The channels of a rank are one group: they share its [`AbortFlag`](crate::abort::AbortFlag), so that whichever fails first ends the
//! others and says why, and each tells its own connections. Between operations all have the same sequence number.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::share::Share;
use super::stream::Stream;
use super::{TcpMembership, TcpTransport};
use crate::abort::{Abort, AbortReason};
use crate::operation::{Operation, Whole, hold_apart};
use crate::partition::NetworkChannels;
use crate::sync::{ForkGuard, MAX_TIMEOUT, join};
use crate::ticket::Output;
use crate::transport::Transport;
use crate::{Error, Rank};

/// One rank's side of the collectives over TCP.
pub(crate) struct TcpChannels {
    channels: NetworkChannels,
    first: TcpTransport,
    others: Vec<OtherChannel>,
    /// Operations completed, in all channels.
    completed: u64,
    touched: bool,
    owner: ForkGuard,
}

/// A channel beside the first.
struct OtherChannel {
    /// Here between operations.
    transport: Option<Box<TcpTransport>>,
    /// Once it was needed.
    thread: Option<ChannelThread>,
}

struct ChannelThread {
    jobs: Sender<Job>,
    answers: Receiver<Answer>,
    thread: JoinHandle<()>,
}

/// A share of an operation, whose memory is lent until it is answered.
struct Job {
    transport: Box<TcpTransport>,
    operation: Operation,
    share: Share,
    whole: Whole,
    left: Duration,
}

struct Answer {
    transport: Box<TcpTransport>,
    result: Result<(), Error>,
}

/// Channels at work: all have ended before this is gone.
struct RunningChannels<'a> {
    channels: &'a mut [OtherChannel],
    touched: bool,
}

impl ChannelThread {
    fn start() -> Result<ChannelThread, Error> {
        let (jobs, wanted) = channel::<Job>();
        let (ended, answers) = channel();
        let work = move || {
            for Job { mut transport, operation, share, whole, left } in wanted {
                let result = transport.run_share(&operation, share, &whole, left);
                if ended.send(Answer { transport, result }).is_err() {
                    return;
                }
            }
        };
        let named = std::thread::Builder::new().name("instep-network".to_owned());
        let thread = named.spawn(work).map_err(|error| Error::system("start a thread", error))?;
        Ok(ChannelThread { jobs, answers, thread })
    }
}

impl RunningChannels<'_> {
    /// Waits for all; gives the first error.
    fn end(&mut self) -> Result<(), Error> {
        let (mut result, mut panicked) = (Ok(()), false);
        for OtherChannel { transport, thread } in std::mem::take(&mut self.channels) {
            // Nobody has it who was not given anything.
            let (Some(thread), None) = (thread, &transport) else { continue };
            let Ok(answer) = thread.answers.recv() else {
                panicked = true;
                continue;
            };
            self.touched |= answer.transport.output() == Output::Undefined;
            *transport = Some(answer.transport);
            result = result.and(answer.result);
        }
        // Not before all have ended: they have the caller's memory.
        assert!(!panicked, "a channel answers every job");
        result
    }
}

impl Drop for RunningChannels<'_> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl TcpChannels {
    /// With the connections of every channel, in the order of members. Exchanges with the others how many operations of the
    /// generation before they completed.
    pub(crate) fn new(
        connections: Vec<Vec<Option<Stream>>>,
        membership: &TcpMembership,
        channels: NetworkChannels,
        history: Option<u64>,
        timeout: Duration,
    ) -> Result<TcpChannels, Error> {
        let count = connections.len();
        let entered: Arc<[AtomicBool]> = membership.members.iter().map(|_| AtomicBool::default()).collect();
        let mut transports = connections.into_iter().map(|connections| {
            Box::new(TcpTransport::unused(connections, membership.clone(), count, Arc::clone(&entered)))
        });
        let mut first = *transports.next().expect("there is always a first channel");
        let others = transports.map(|transport| OtherChannel { transport: Some(transport), thread: None }).collect();
        first.agree_on_history(history, timeout)?;
        let owner = ForkGuard::new();
        let mut channels = TcpChannels { channels, first, others, completed: 0, touched: false, owner };
        channels.align();
        Ok(channels)
    }

    /// From now on notices when another host is silent.
    pub(crate) fn start_heartbeat(&mut self, connections: Vec<Option<Stream>>) -> Result<(), Error> {
        self.first.start_heartbeat(connections)
    }

    /// Runs a part of what the group's ranks called, in the time that is left for it; as [`TcpChannels::run`] otherwise.
    pub(crate) fn run_part(&mut self, operation: &Operation, whole: &Whole, left: Duration) -> Result<(), Error> {
        let count = Share::count(self.channels, operation, self.first.world());
        self.first.entered.iter().for_each(|entered| entered.store(false, Ordering::Relaxed));
        let result = if count == 1 {
            let result = self.first.run_share(operation, Share::WHOLE, whole, left);
            self.touched = self.first.output() == Output::Undefined;
            result
        } else {
            self.divide(count, operation, whole, left)
        };
        match result {
            Ok(()) => {
                self.completed += 1;
                self.align();
                Ok(())
            }
            Err(error) => {
                // Those that took no part have not said so yet.
                self.broadcast_abort();
                Err(error)
            }
        }
    }

    /// Has each of so many channels do its share, the first one in this thread.
    fn divide(&mut self, count: usize, operation: &Operation, whole: &Whole, left: Duration) -> Result<(), Error> {
        // What one channel receives another one may still have to send.
        let held = match operation {
            Operation::AllToAll { inputs, outputs, dtype } => hold_apart(inputs, outputs).map(|(memory, inputs)| {
                (memory, Operation::AllToAll { inputs, outputs: outputs.clone(), dtype: *dtype })
            }),
            _ => None,
        };
        let operation = held.as_ref().map_or(operation, |(_, operation)| operation);
        let others = &mut self.others[..count - 1];
        for other in others.iter_mut().filter(|other| other.thread.is_none()) {
            match ChannelThread::start() {
                Ok(thread) => other.thread = Some(thread),
                Err(error) => {
                    self.first.abort().abort(&AbortReason::Aborted { by: self.first.rank() });
                    return Err(error);
                }
            }
        }
        let mut running = RunningChannels { channels: others, touched: false };
        for (number, OtherChannel { transport, thread }) in running.channels.iter_mut().enumerate() {
            let thread = thread.as_ref().expect("its thread was started above");
            let transport = transport.take().expect("a channel that has ended gave its connections back");
            let share = Share::new(number + 1, self.channels);
            let job = Job { transport, operation: operation.clone(), share, whole: *whole, left };
            thread.jobs.send(job).expect("a channel takes jobs until it is dropped");
        }
        let own = self.first.run_share(operation, Share::new(0, self.channels), whole, left);
        let result = own.and(running.end());
        self.touched = running.touched | (self.first.output() == Output::Undefined);
        result
    }

    /// Channels that took no part count the operation, too: what they say last is said after it.
    fn align(&mut self) {
        let sequence = self.first.sequence;
        self.others.iter_mut().filter_map(|other| other.transport.as_mut()).for_each(|other| other.sequence = sequence);
    }
}

impl Transport for TcpChannels {
    fn rank(&self) -> Rank {
        self.first.rank()
    }

    fn abort(&self) -> Abort {
        self.first.abort()
    }

    fn run(&mut self, operation: &Operation, timeout: Duration) -> Result<(), Error> {
        let call = operation.check(self.first.index, self.first.world())?;
        let timeout = timeout.min(MAX_TIMEOUT);
        let whole = Whole { call, sequence: self.completed, ranks: self.first.world(), timeout };
        self.run_part(operation, &whole, timeout)
    }

    /// Sends the abort reason to all peers, if there is one and it is not sent yet.
    fn broadcast_abort(&mut self) {
        self.first.broadcast_abort();
        self.others.iter_mut().filter_map(|other| other.transport.as_mut()).for_each(|other| other.broadcast_abort());
    }

    fn completed(&self) -> u64 {
        self.completed
    }

    fn agreed(&self) -> Option<u64> {
        self.first.agreed
    }

    fn output(&self) -> Output {
        if self.touched { Output::Undefined } else { Output::Untouched }
    }
}

impl Drop for TcpChannels {
    fn drop(&mut self) {
        if !self.owner.is_owner() {
            return;
        }
        // What is decided goes ahead of the goodbyes.
        self.broadcast_abort();
        for ChannelThread { jobs, thread, .. } in self.others.iter_mut().filter_map(|other| other.thread.take()) {
            drop(jobs);
            join(thread);
        }
    }
}
