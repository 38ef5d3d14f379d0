//! The ranks that work together, as one of them holds them.
//!
//! Operations of a group happen one after the other, in the order in which they were given, the same on every rank.
//! [`Group::run`] does one on the caller's thread unless others are queued; [`Group::submit`] queues it for the group's
//! worker thread, which starts with the first such call. Different groups share nothing and run concurrently.
//!
//! [`Group::send`] and [`Group::receive`] stand beside that order: messages between two ranks with the same tag are received
//! in the order in which they were sent, and wait for nothing else.
//!
//! A failure is the group's: every rank gets it, everything in flight and queued fails with it, and so does what comes
//! later, until [`Group::reconfigure`] gives the same object new peers at a higher generation.
//!
//! Shutdown, when the group is dropped: what is queued or under way is aborted (the peers get that as an error), the worker
//! and the thread for messages are joined, then the membership is given up, which peers that still wait for this
//! rank notice. A copy of the group in a forked child is dropped without any of that: it does not speak for its parent.
#![expect(unsafe_code, reason = "callers vouch for buffers")]

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::abort::AbortGroup;
use crate::bootstrap::Bound;
use crate::call::{Call, Kind};
use crate::dtype::{Element, Reduction};
use crate::flight_recorder::FlightRecorder;
use crate::operation::{Operation, Source, Target};
use crate::p2p::P2p;
use crate::queue::{GroupShared, Job};
use crate::shm::arena::Arena;
use crate::sync::{ForkGuard, MAX_TIMEOUT, join, lock};
use crate::ticket::Ticket;
use crate::transport::builder::Connected;
use crate::{Address, Error, Rank};

/// Operations that can be queued; a caller who submits more waits until there is room.
const MAX_QUEUED: usize = 4096;

/// What the survivors of a reconfiguration agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconfigured {
    /// How many operations of the generation before every survivor completed; `None` if nobody survived it.
    pub completed_by_all: Option<u64>,
}

/// The ranks that work together. Shared by reference between threads.
pub struct Group {
    shared: Arc<GroupShared>,
    worker: Mutex<Option<JoinHandle<()>>>,
    /// One reconfiguration at a time.
    reconfiguring: Mutex<()>,
    bound: Bound,
    owner: ForkGuard,
}

impl Group {
    /// A rank that is connected to its peers.
    pub(crate) fn new(bound: Bound, connected: Connected, generation: u64) -> Result<Group, Error> {
        let group = Group {
            shared: Arc::new(GroupShared::new(generation, FlightRecorder(bound.options.recorder.clone()))),
            worker: Mutex::new(None),
            reconfiguring: Mutex::new(()),
            bound,
            owner: ForkGuard::new(),
        };
        group.install(connected)?;
        Ok(group)
    }

    /// Uses the connections to these peers from now on.
    fn install(&self, connected: Connected) -> Result<(), Error> {
        let Connected { transport, p2p } = connected;
        let world = p2p.addresses.len();
        let (rank, abort, shared) = (p2p.rank, p2p.abort.clone(), Arc::downgrade(&self.shared));
        let hosts: Vec<String> = p2p.addresses.iter().map(|address| address.host.clone()).collect();
        let abort_group: AbortGroup = Arc::new(move |reason| {
            abort.abort(reason);
            let error = abort.to_error(rank, &hosts);
            if let Some(shared) = shared.upgrade() {
                shared.fail_queue(&error);
            }
            error
        });
        let p2p = Arc::new(P2p::new(p2p, abort_group)?);
        let mut queue = lock(&self.shared.queue);
        queue.connected(&*transport, p2p, world);
        self.shared.recorder.connected(rank.0, world, queue.generation);
        *lock(&self.shared.transport) = Some(transport);
        Ok(())
    }

    /// This rank's number.
    pub fn rank(&self) -> Rank {
        lock(&self.shared.queue).rank
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        lock(&self.shared.queue).world
    }

    /// The generation it was last connected at.
    pub fn generation(&self) -> u64 {
        lock(&self.shared.queue).generation
    }

    /// Where this rank listens; stays the same over reconfigurations.
    pub fn address(&self) -> &Address {
        self.bound.address()
    }

    /// Whether these ranks would need a network to connect, see [`Bound::needs_network`].
    pub fn needs_network(&self, addresses: &[Address]) -> bool {
        self.bound.needs_network(addresses)
    }

    /// Opens a TCP port for a reconfiguration with ranks of other hosts, see [`Bound::open_to_network`].
    pub fn open_to_network(&self) -> Result<(), Error> {
        self.bound.open_to_network()
    }

    /// Whether long messages are read straight out of the peers' memory.
    pub fn uses_single_copy(&self) -> bool {
        lock(&self.shared.queue).single_copy
    }

    /// Why the group is aborted, if it is as far as this rank knows.
    pub fn failure(&self) -> Option<Error> {
        lock(&self.shared.queue).failure.clone()
    }

    /// The memory that the ranks share and a handle on every rank's process, in a group whose ranks all share memory.
    pub(crate) fn shared_memory(&self) -> Option<(Arc<Arena>, Arc<[OwnedFd]>)> {
        lock(&self.shared.transport).as_ref()?.shared_memory()
    }

    /// Queues an operation for the group's worker. What contradicts itself is refused at once.
    ///
    /// # Safety
    /// The memory of the operation stays valid, and is not used otherwise, until the ticket is finished.
    pub unsafe fn submit(&self, operation: Operation) -> Result<Ticket, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.submit_within(operation, self.bound.options.timeout) }
    }

    /// As [`Group::submit`], with a time limit of its own, counted from when the operation starts.
    ///
    /// # Safety
    /// As for [`Group::submit`].
    pub unsafe fn submit_within(&self, operation: Operation, timeout: Duration) -> Result<Ticket, Error> {
        self.queue_up(vec![operation], timeout)
    }

    /// Queues operations that happen one after the other, with nothing in between, and finish together. The time limit is
    /// for all of them, counted from when the first starts. If one contradicts itself, none is queued.
    ///
    /// # Safety
    /// As for [`Group::submit`], for all operations.
    pub unsafe fn submit_together(&self, operations: Vec<Operation>, timeout: Duration) -> Result<Ticket, Error> {
        self.queue_up(operations, timeout)
    }

    fn queue_up(&self, operations: Vec<Operation>, timeout: Duration) -> Result<Ticket, Error> {
        self.check_process()?;
        let mut queue = lock(&self.shared.queue);
        queue.admit(&operations)?;
        while queue.jobs.len() >= MAX_QUEUED {
            queue = self.shared.await_change(queue);
            queue.admit(&operations)?;
        }
        self.start_worker()?;
        let ticket = Ticket::new();
        let calls = operations.iter().filter_map(|operation| operation.check(queue.rank.0, queue.world).ok());
        let entries = calls.filter_map(|call| self.shared.recorder.submitted(&call)).collect();
        queue.jobs.push_back(Job { operations, entries, timeout, ticket: ticket.clone() });
        self.shared.work.notify_one();
        Ok(ticket)
    }

    /// Does an operation and returns when it is done: on this thread, or after what is queued.
    ///
    /// # Safety
    /// The memory of the operation is valid, and is not used otherwise, until this returns.
    pub unsafe fn run(&self, operation: Operation) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.run_within(operation, self.bound.options.timeout) }
    }

    /// Where its operations are written down.
    pub(crate) fn recorder(&self) -> FlightRecorder {
        self.shared.recorder.clone()
    }

    /// As [`Group::run`], with a time limit of its own, counted from when the operation starts.
    ///
    /// # Safety
    /// As for [`Group::run`].
    pub unsafe fn run_within(&self, operation: Operation, timeout: Duration) -> Result<(), Error> {
        self.check_process()?;
        let mut entry = {
            let mut queue = lock(&self.shared.queue);
            queue.admit(std::slice::from_ref(&operation))?;
            if queue.busy || !queue.jobs.is_empty() {
                drop(queue);
                // SAFETY: the caller's promise; we return when the ticket is finished.
                return unsafe { self.submit_within(operation, timeout) }?.join();
            }
            queue.busy = true;
            operation.check(queue.rank.0, queue.world).ok().and_then(|call| self.shared.recorder.begun(&call))
        };
        self.shared.perform(std::slice::from_ref(&operation), entry.as_mut_slice(), timeout).0
    }

    /// Gives a buffer to another rank, which must call [`Group::receive`] with the same tag and a buffer of the same size.
    /// To this rank itself is fine, too. A small message is finished when it is on its way, a large one when the other rank
    /// takes it. The time limit counts from now.
    ///
    /// # Safety
    /// The memory stays valid, and is not written to, until the ticket is finished.
    pub unsafe fn send(&self, source: Source, to: Rank, tag: u64, timeout: Duration) -> Result<Ticket, Error> {
        let p2p = self.p2p("to", Some(to))?;
        let call = Call::message(Kind::Send, source.bytes, Some(to), tag);
        self.shared.recorder.message(&call, || p2p.send(source, to, tag, timeout.min(MAX_TIMEOUT)))
    }

    /// Takes a message of exactly this size from a rank, or from whoever is first; [`Ticket::source`] tells who it was. The
    /// time limit counts from now.
    ///
    /// # Safety
    /// The memory stays valid, and is not used otherwise, until the ticket is finished.
    pub unsafe fn receive(
        &self,
        target: Target,
        from: Option<Rank>,
        tag: u64,
        timeout: Duration,
    ) -> Result<Ticket, Error> {
        let p2p = self.p2p("from", from)?;
        let call = Call::message(Kind::Receive, target.bytes, from, tag);
        self.shared.recorder.message(&call, || p2p.receive(target, from, tag, timeout.min(MAX_TIMEOUT)))
    }

    /// Whether this is the process that connected the group. What a forked child sends would be taken for its parent's.
    fn check_process(&self) -> Result<(), Error> {
        if self.owner.is_owner() {
            return Ok(());
        }
        Err(Error::invalid(
            "a forked process cannot use the group of its parent\nhint: start the process with spawn, or connect a group in it",
        ))
    }

    fn p2p(&self, direction: &str, peer: Option<Rank>) -> Result<Arc<P2p>, Error> {
        self.check_process()?;
        let queue = lock(&self.shared.queue);
        if let Some(failure) = &queue.failure {
            return Err(failure.clone());
        }
        if let Some(peer) = peer.filter(|peer| peer.0 >= queue.world) {
            return Err(Error::invalid(format!(
                "a message {direction} rank {peer}: it is not one of the {} ranks",
                queue.world
            )));
        }
        queue.p2p.clone().ok_or(Error::NotConnected)
    }

    /// Sums, averages … a vector over all ranks, in place.
    pub fn all_reduce<T: Element>(&self, values: &mut [T], reduction: Reduction) -> Result<(), Error> {
        let output = Target::of(values);
        let input = Source::new(output.pointer, output.bytes);
        // SAFETY: the slice is borrowed until the operation is done.
        unsafe { self.run(Operation::AllReduce { input, output, dtype: T::DTYPE, reduction }) }
    }

    /// Gives every rank the root's values.
    pub fn broadcast<T: Element>(&self, values: &mut [T], root: Rank) -> Result<(), Error> {
        // SAFETY: the slice is borrowed until the operation is done.
        unsafe { self.run(Operation::Broadcast { buffer: Target::of(values), dtype: T::DTYPE, root }) }
    }

    /// Gives every rank the values of all, one after the other.
    pub fn all_gather<T: Element>(&self, values: &[T], all: &mut [T]) -> Result<(), Error> {
        let outputs = Target::of(all).split(self.world_size());
        // SAFETY: the slices are borrowed until the operation is done.
        unsafe { self.run(Operation::AllGather { input: Source::of(values), outputs, dtype: T::DTYPE }) }
    }

    /// Gives every rank its part of the reduction of all values.
    pub fn reduce_scatter<T: Element>(&self, all: &[T], part: &mut [T], reduction: Reduction) -> Result<(), Error> {
        let inputs = Source::of(all).split(self.world_size());
        let output = Target::of(part);
        // SAFETY: the slices are borrowed until the operation is done.
        unsafe { self.run(Operation::ReduceScatter { inputs, output, dtype: T::DTYPE, reduction }) }
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<(), Error> {
        // SAFETY: no memory is involved.
        unsafe { self.run(Operation::Barrier) }
    }

    /// Fails everything in flight and queued, here and on the peers, and returns at once.
    pub fn abort(&self) {
        self.shared.abort();
    }

    /// Gives the group other peers, at a higher generation. What is under way is aborted first. After an error the group
    /// is not connected, and can be reconfigured again.
    pub fn reconfigure(
        &self,
        rank: Rank,
        addresses: &[Address],
        generation: u64,
        timeout: Duration,
    ) -> Result<Reconfigured, Error> {
        let _one_at_a_time = lock(&self.reconfiguring);
        let started = Instant::now();
        let before = self.generation();
        if generation <= before {
            return Err(Error::invalid(format!("generation {generation} does not follow {before}")));
        }
        self.bound.check(rank, addresses)?;
        self.abort();
        let (history, old_p2p) = {
            let mut queue = lock(&self.shared.queue);
            // What is under way returns as soon as it sees the abort.
            while queue.busy {
                queue = self.shared.await_change(queue);
            }
            let old = lock(&self.shared.transport).take();
            queue.history = old.as_ref().map(|transport| transport.completed()).or(queue.history);
            queue.abort = None;
            queue.failure = Some(Error::NotConnected);
            queue.generation = generation;
            (queue.history, queue.p2p.take())
        };
        // Ends its thread, which must not wait for the queue's lock in our hands.
        drop(old_p2p);
        let left = timeout.saturating_sub(started.elapsed());
        let connected = self.bound.connect_transport(rank, addresses, generation, history, left)?;
        let completed_by_all = connected.transport.agreed();
        self.install(connected)?;
        Ok(Reconfigured { completed_by_all })
    }

    fn start_worker(&self) -> Result<(), Error> {
        let mut worker = lock(&self.worker);
        if worker.is_none() {
            let shared = Arc::clone(&self.shared);
            let builder = std::thread::Builder::new().name("instep-group".to_owned());
            *worker =
                Some(builder.spawn(move || shared.work()).map_err(|error| Error::system("start a thread", error))?);
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.owner.is_owner() {
            return;
        }
        let p2p = {
            let mut queue = lock(&self.shared.queue);
            let p2p = queue.p2p.take();
            if queue.busy || !queue.jobs.is_empty() || p2p.as_ref().is_some_and(|p2p| p2p.is_busy()) {
                drop(queue);
                self.shared.abort();
            }
            p2p
        };
        drop(p2p);
        lock(&self.shared.queue).closing = true;
        self.shared.work.notify_one();
        if let Some(worker) = lock(&self.worker).take() {
            join(worker);
        }
    }
}
