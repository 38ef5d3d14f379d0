//! The ranks that work together, as one of them holds them.
//!
//! Operations of a group happen one after the other, in the order in which they were given, the same on every rank.
//! [`Group::run`] does one on the caller's thread unless others are queued; [`Group::submit`] queues it for the group's
//! worker thread, which starts with the first such call. Different groups share nothing and run concurrently.
//!
//! A failure is the group's: every rank gets it, everything in flight and queued fails with it, and so does what comes
//! later, until [`Group::reconfigure`] gives the same object new peers at a higher generation.
//!
//! Shutdown, when the group is dropped: what is queued or under way is aborted (the peers get that as an error), the worker
//! is joined, then the place in the arena is given up, which peers that still wait for this rank notice. A copy of the group
//! in a forked child is dropped without any of that: it does not speak for its parent.
#![expect(unsafe_code, reason = "callers vouch for buffers")]

use std::collections::VecDeque;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::arena::handshake::{self, Meeting};
use crate::arena::verdict::Verdict;
use crate::dtype::{Element, Reduction};
use crate::engine::Engine;
use crate::operation::{Operation, Source, Target};
use crate::ticket::{Output, Ticket};
use crate::{Address, Error, Rank};

/// Operations that can be queued; a caller who submits more waits until there is room.
const LONGEST_QUEUE: usize = 4096;
const SMALLEST_SLOT: usize = 64 << 10;

/// How a group works. All ranks must use the same `slot_bytes`.
#[derive(Clone, Debug)]
pub struct Options {
    /// How messages call this host; its own name unless given.
    pub host: Option<String>,
    /// How long an operation may take that does not say so itself.
    pub timeout: Duration,
    /// From how many bytes on peers read each other's memory, if the kernel permits it; `None`: never.
    pub single_copy_bytes: Option<usize>,
    /// Bytes of a slot in shared memory, two of which every rank has. A step uses a quarter of it, to stay in the private
    /// cache, or all of it when there are more ranks than cores.
    pub slot_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            host: None,
            timeout: Duration::from_secs(30 * 60),
            single_copy_bytes: Some(32 << 20),
            slot_bytes: 1 << 20,
        }
    }
}

/// A rank that can be met but has not met its peers yet.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    address: Address,
    options: Options,
}

/// What the survivors of a reconfiguration agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconfigured {
    /// How many operations of the generation before every survivor completed; `None` if nobody survived it.
    pub completed_by_all: Option<u64>,
}

/// The ranks that work together. Shared by reference between threads.
pub struct Group {
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
    /// One reconfiguration at a time.
    reconfiguring: Mutex<()>,
    bound: Bound,
    /// Who made it.
    process: u32,
}

struct Shared {
    queue: Mutex<Queue>,
    /// For the worker: there is something to do, or the group closes.
    work: Condvar,
    /// For callers who wait for room in the queue or for the end of what is under way.
    changed: Condvar,
    /// Held by whoever made the queue busy.
    engine: Mutex<Option<Engine>>,
}

struct Queue {
    jobs: VecDeque<Job>,
    /// An operation is under way.
    busy: bool,
    closing: bool,
    /// Callers who wait for a change.
    waiting: usize,
    failure: Option<Error>,
    rank: usize,
    world: usize,
    generation: u64,
    single_copy: bool,
    /// For abort, which must not wait for the engine.
    arena: Option<Arc<Arena>>,
    /// Operations completed in the generation before, as this rank counts them.
    history: Option<u64>,
}

struct Job {
    operation: Operation,
    timeout: Duration,
    ticket: Ticket,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Group {
    /// Makes this process ready to be met. The address is for the other ranks.
    pub fn bind(options: Options) -> Result<Bound, Error> {
        if options.slot_bytes < SMALLEST_SLOT || !options.slot_bytes.is_multiple_of(4096) {
            return Err(Error::invalid(format!(
                "slot_bytes is {}, it must be a multiple of 4096 and at least {SMALLEST_SLOT}",
                options.slot_bytes
            )));
        }
        let own_name = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let host = options.host.clone().or_else(own_name).unwrap_or_else(|| "localhost".to_owned());
        let (listener, address) = handshake::bind(host)?;
        Ok(Bound { listener, address, options })
    }

    /// This rank's number.
    pub fn rank(&self) -> Rank {
        Rank(lock(&self.shared.queue).rank)
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        lock(&self.shared.queue).world
    }

    /// The generation it was last connected at.
    pub fn generation(&self) -> u64 {
        lock(&self.shared.queue).generation
    }

    /// Where this rank can be met; stays the same over reconfigurations.
    pub fn address(&self) -> &Address {
        &self.bound.address
    }

    /// Whether large buffers are read straight out of the peers' memory.
    pub fn uses_single_copy(&self) -> bool {
        lock(&self.shared.queue).single_copy
    }

    /// Why the group is aborted, if it is as far as this rank knows.
    pub fn failure(&self) -> Option<Error> {
        lock(&self.shared.queue).failure.clone()
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
        let mut queue = lock(&self.shared.queue);
        queue.admit(&operation)?;
        while queue.jobs.len() >= LONGEST_QUEUE {
            queue = self.shared.await_change(queue);
            queue.admit(&operation)?;
        }
        self.start_worker()?;
        let ticket = Ticket::new();
        queue.jobs.push_back(Job { operation, timeout, ticket: ticket.clone() });
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

    /// As [`Group::run`], with a time limit of its own, counted from when the operation starts.
    ///
    /// # Safety
    /// As for [`Group::run`].
    pub unsafe fn run_within(&self, operation: Operation, timeout: Duration) -> Result<(), Error> {
        {
            let mut queue = lock(&self.shared.queue);
            queue.admit(&operation)?;
            if queue.busy || !queue.jobs.is_empty() {
                drop(queue);
                // SAFETY: the caller's promise; we return when the ticket is finished.
                return unsafe { self.submit_within(operation, timeout) }?.join();
            }
            queue.busy = true;
        }
        self.shared.perform(&operation, timeout).0
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
        let history = {
            let mut queue = lock(&self.shared.queue);
            // What is under way returns as soon as it looks at the verdict.
            while queue.busy {
                queue = self.shared.await_change(queue);
            }
            let old = lock(&self.shared.engine).take();
            queue.history = old.as_ref().map(Engine::completed).or(queue.history);
            queue.arena = None;
            queue.failure = Some(Error::NotConnected);
            queue.generation = generation;
            queue.history
        };
        let engine =
            self.bound.meet(rank, addresses, generation, history, timeout.saturating_sub(started.elapsed()))?;
        let completed_by_all = engine.agreed();
        let mut queue = lock(&self.shared.queue);
        queue.connected(&engine, addresses.len());
        *lock(&self.shared.engine) = Some(engine);
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
        if self.process != std::process::id() {
            return;
        }
        {
            let queue = lock(&self.shared.queue);
            if queue.busy || !queue.jobs.is_empty() {
                drop(queue);
                self.shared.abort();
            }
        }
        lock(&self.shared.queue).closing = true;
        self.shared.work.notify_one();
        if let Some(worker) = lock(&self.worker).take() {
            // A worker that panicked has nothing more to say.
            let _ = worker.join();
        }
    }
}

impl Bound {
    /// Where this rank can be met.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Meets the other ranks, whose addresses are given in the order of ranks. All give the same generation.
    pub fn connect(
        self,
        rank: Rank,
        addresses: &[Address],
        generation: u64,
        timeout: Duration,
    ) -> Result<Group, Error> {
        self.check(rank, addresses)?;
        let engine = self.meet(rank, addresses, generation, None, timeout)?;
        let mut queue = Queue {
            jobs: VecDeque::new(),
            busy: false,
            closing: false,
            waiting: 0,
            failure: None,
            rank: rank.0,
            world: addresses.len(),
            generation,
            single_copy: false,
            arena: None,
            history: None,
        };
        queue.connected(&engine, addresses.len());
        let shared = Shared {
            queue: Mutex::new(queue),
            work: Condvar::new(),
            changed: Condvar::new(),
            engine: Mutex::new(Some(engine)),
        };
        Ok(Group {
            shared: Arc::new(shared),
            worker: Mutex::new(None),
            reconfiguring: Mutex::new(()),
            bound: self,
            process: std::process::id(),
        })
    }

    fn check(&self, rank: Rank, addresses: &[Address]) -> Result<(), Error> {
        match addresses.get(rank.0) {
            None => Err(Error::invalid(format!("rank {rank} is not one of {} addresses", addresses.len()))),
            Some(address) if *address != self.address => {
                Err(Error::invalid(format!("the address given for rank {rank} is not the one bound here")))
            }
            Some(_) => Ok(()),
        }
    }

    fn meet(
        &self,
        rank: Rank,
        addresses: &[Address],
        generation: u64,
        history: Option<u64>,
        timeout: Duration,
    ) -> Result<Engine, Error> {
        let started = Instant::now();
        let timeout = timeout.min(Duration::from_secs(365 * 24 * 3600));
        let meeting = Meeting {
            listener: &self.listener,
            rank: rank.0,
            addresses,
            generation,
            slot_bytes: self.options.slot_bytes,
            timeout,
            deadline: started + timeout,
        };
        let met = meeting.hold()?;
        let hosts = addresses.iter().map(|address| address.host.clone()).collect();
        let left = timeout.saturating_sub(started.elapsed());
        Engine::new(met, rank.0, hosts, self.options.single_copy_bytes, history, left)
    }
}

impl Queue {
    fn admit(&self, operation: &Operation) -> Result<(), Error> {
        operation.check(self.rank, self.world)?;
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn connected(&mut self, engine: &Engine, world: usize) {
        self.rank = engine.rank();
        self.world = world;
        self.single_copy = engine.uses_single_copy();
        self.arena = Some(Arc::clone(engine.arena()));
        self.failure = None;
    }

    /// The group is aborted: nothing queued will happen.
    fn fail(&mut self, error: &Error) {
        if self.failure.is_none() {
            self.failure = Some(error.clone());
        }
        for job in self.jobs.drain(..) {
            job.ticket.finish(Err(error.clone()), Output::Untouched);
        }
    }
}

impl Shared {
    fn await_change<'a>(&self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        queue.waiting += 1;
        queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        queue.waiting -= 1;
        queue
    }

    fn abort(&self) {
        let mut queue = lock(&self.queue);
        let by = queue.rank;
        if let Some(arena) = &queue.arena {
            arena.abort(&Verdict::Aborted { by });
        }
        queue.fail(&Error::Aborted { by: Rank(by) });
        self.changed.notify_all();
    }

    /// Does an operation for which the queue was made busy.
    fn perform(&self, operation: &Operation, timeout: Duration) -> (Result<(), Error>, Output) {
        let (result, output) = match lock(&self.engine).as_mut() {
            None => (Err(Error::NotConnected), Output::Untouched),
            Some(engine) => {
                let result = engine.run(operation, timeout);
                let output = if result.is_ok() { Output::Complete } else { engine.output() };
                (result, output)
            }
        };
        let mut queue = lock(&self.queue);
        queue.busy = false;
        if let Err(error) = &result {
            queue.fail(error);
        }
        // Waking is a system call: only when somebody waits.
        if !queue.jobs.is_empty() {
            self.work.notify_one();
        }
        if queue.waiting > 0 {
            self.changed.notify_all();
        }
        drop(queue);
        (result, output)
    }

    /// The worker: queued operations in order, until the group is dropped.
    fn work(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if queue.closing {
                return;
            }
            if queue.busy || queue.jobs.is_empty() {
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let Some(job) = queue.jobs.pop_front() else { continue };
            queue.busy = true;
            if queue.waiting > 0 {
                self.changed.notify_all();
            }
            drop(queue);
            let (result, output) = self.perform(&job.operation, job.timeout);
            job.ticket.finish(result, output);
            queue = lock(&self.queue);
        }
    }
}
