//! Collectives on memory of GPUs.
//!
//! | module | what it is for |
//! |---|---|
//! | `shared` | ranks that share one GPU, which NCCL refuses: exchanged on the device |
//! | `pinned` | all_reduce by ranks of one host, where GPUs take longer or are not shared: through pinned memory of the host that all share |
//! | `staged` | everything else: through memory of the host that each rank pins for itself |
//! | `layout` | an operation as what a rank lays out and takes: pure |
//! | `flags` | what the GPU waits for: counters of all ranks, which the host can move too |
//! | `monitor` | lets streams pass that wait for a rank which is gone |
//! | `signal` | what the hosts tell each other meanwhile |
//! | `kernel` | reductions as programs of the GPU |
//! | `driver` | the part of the CUDA driver that is used |
//!
//! Everything happens on a stream of the group, behind what the caller's stream has been given, and callers' streams wait
//! for its end. [`DeviceGroup::submit`] has it ordered by a thread of the group, [`DeviceGroup::run`] by the caller's. The
//! host side goes through a [`Group`] that serves for nothing else, so that operations on the GPU and on the host do not
//! wait for each other. A rank that dies or does not come is noticed there, and named; what the GPU waits for is then
//! released, so that nobody hangs in it.
//!
//! Shutdown, when a [`DeviceGroup`] is dropped: the thread does what is queued and waits for the stream, then the monitor
//! ends, then the memory goes.

#![expect(unsafe_code, reason = "device memory of tensors comes as addresses")]

mod driver;
mod flags;
mod kernel;
mod layout;
mod monitor;
mod pinned;
mod shared;
mod signal;
mod staged;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use driver::{CudaError, Event, Gpu, Stream, UUID_BYTES};
use flags::Flags;
use instep_recorder::Entry;
use monitor::{Monitor, Waker};
use pinned::{Pinned, Reduce};
use shared::{Arena, Prepared};
use signal::{Turn, Until, agree, all_of, signal};
use staged::Stage;

use crate::call::Call;
use crate::dtype::{DataType, Reduction};
use crate::flight_recorder::FlightRecorder;
use crate::operation::Operation;
use crate::sync::lock;
use crate::ticket::{Output, Ticket};
use crate::{Error, Group};

/// Up to so many bytes for each rank of the group, tensors go through the host also where ranks share a GPU. It runs their
/// kernels in time slices, one process after the other, so that the more there are, the longer the smallest kernel takes;
/// copies to and from the host do not wait for a slice. Measured on an H200, for 2, 4 and 8 ranks.
const SMALL: usize = 512 << 10;

/// Up to how many bytes an all_reduce of so many ranks goes through memory of the host that they share also where they
/// share a GPU: there it takes longer the more bytes there are, on the GPU longer the more ranks there are. The sizes are
/// where the two meet on an H200 (bench/results/h200.json).
const fn most_pinned(world: usize) -> usize {
    match world {
        ..=2 => 9 << 19,
        3 => 4 << 20,
        4..=7 => 8 << 20,
        _ => 14 << 20,
    }
}

/// What a rank can do; what all can do is done.
const NOTHING: u8 = 0;
const STAGED: u8 = 1;
const SHARED: u8 = 2;

/// The ranks of a group, on their GPUs.
pub struct DeviceGroup {
    gpu: Arc<Gpu>,
    stream: usize,
    is_shared: bool,
    recorder: FlightRecorder,
    /// Of this rank, and how many there are.
    place: (usize, usize),
    /// Held by whoever gives the group something to do, so that everything has an order.
    jobs: Mutex<Option<Sender<Job>>>,
    /// Jobs that the thread has not done yet.
    queued: Arc<AtomicUsize>,
    worker: Arc<Mutex<Worker>>,
    /// For abort, which must not wait for the worker.
    group: Arc<Group>,
    waker: Option<Waker>,
    thread: Option<JoinHandle<()>>,
}

/// An operation on the GPU, under way. [`Ticket`] is finished when the GPU has been given everything.
pub struct DeviceTicket {
    /// How it went.
    pub ticket: Ticket,
    gpu: Arc<Gpu>,
    done: Arc<Event>,
}

struct Job {
    task: Task,
    done: Arc<Event>,
    ticket: Ticket,
}

/// What is to be done.
struct Task {
    operations: Vec<Operation>,
    /// What the flight recorder has of them.
    entries: Vec<Entry>,
    /// What the caller's stream had been given, unless that was done already.
    ready: Option<Event>,
    timeout: Duration,
}

impl DeviceTicket {
    /// Has a stream of the caller wait for the end of the operation.
    pub fn order(&self, stream: usize) -> Result<(), Error> {
        self.gpu.enter()?;
        Ok(self.gpu.order(stream, &self.done)?)
    }
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Error {
        Error::system("use the GPU", std::io::Error::other(error.to_string()))
    }
}

impl DeviceGroup {
    /// To be called by all ranks of `group`, which serves for this alone from here on; operations are written down as those of
    /// `home`. Without `share`, tensors travel through the host also where ranks share a GPU; without `pin`, through ordinary
    /// memory of it. The inner error says why GPUs cannot be used at all; it is the same decision on every rank.
    pub fn connect(
        group: Arc<Group>,
        home: &Group,
        ordinal: i32,
        share: bool,
        pin: bool,
        timeout: Duration,
    ) -> Result<Result<DeviceGroup, String>, Error> {
        let rank = group.rank().0;
        let opened = Gpu::open(ordinal).and_then(|gpu| {
            gpu.enter()?;
            let stream = Arc::new(gpu.stream()?);
            let stage = Stage::new(&gpu, Arc::clone(&stream), pin)?;
            Ok((gpu, stream, stage))
        });
        let prepared = match (&opened, group.shared_memory()) {
            (Ok((gpu, stream, _)), Some((memory, processes))) if share => Flags::new(gpu, memory, rank, stream)
                .map(Arc::new)
                .and_then(|flags| Ok((Prepared::new(gpu, Arc::clone(&flags))?, flags, processes)))
                .ok(),
            _ => None,
        };
        let able = match (&opened, &prepared) {
            (Err(_), _) => NOTHING,
            (Ok(_), None) => STAGED,
            (Ok(_), Some(_)) => SHARED,
        };
        let mut hello = vec![able];
        hello.extend(prepared.as_ref().map_or(vec![0; shared::HELLO_BYTES], |(prepared, ..)| prepared.hello.clone()));
        let hellos = all_of(&group, &hello, timeout)?;
        let (gpu, stream, stage) = match opened {
            Ok(opened) if hellos.iter().all(|other| other[0] != NOTHING) => opened,
            Ok(_) => return Ok(Err("another rank cannot use its GPU".to_owned())),
            Err(error) => return Ok(Err(error.to_string())),
        };
        let alike = |other: &Vec<u8>| other[..=UUID_BYTES] == hello[..=UUID_BYTES];
        // What is prepared must not go before all have decided, because others may be opening it.
        let shared = prepared.filter(|_| hellos.iter().all(alike)).and_then(|(prepared, flags, processes)| {
            let hellos: Vec<Vec<u8>> = hellos.iter().map(|other| other[1..].to_vec()).collect();
            let arena = prepared.open(&hellos, rank, Arc::clone(&stream)).ok()?;
            let monitor = Monitor::new(Arc::clone(&gpu), Arc::clone(&stream), flags, processes).ok()?;
            Some(Shared { arena, monitor })
        });
        let answers = all_of(&group, &[u8::from(shared.is_some())], timeout)?;
        let shared = shared.filter(|_| answers.iter().all(|answer| answer[0] == 1));
        let place = (rank, group.world_size());
        let (number, is_shared, recorder) = (stream.number(), shared.is_some(), home.recorder());
        let (own, waker) = (Arc::clone(&group), shared.as_ref().map(|shared| shared.monitor.waker().clone()));
        let (jobs, queue) = channel();
        let common = Common::NotTried;
        let worker = Worker {
            gpu: Arc::clone(&gpu),
            group,
            stream,
            shared,
            stage,
            common,
            recorder: recorder.clone(),
            sequence: 0,
        };
        let (worker, queued) = (Arc::new(Mutex::new(worker)), Arc::new(AtomicUsize::new(0)));
        let (works, counts) = (Arc::clone(&worker), Arc::clone(&queued));
        let thread = std::thread::Builder::new()
            .name("instep-device".to_owned())
            .spawn(move || work(&works, &queue, &counts))
            .map_err(|cause| Error::system("start a thread", cause))?;
        let (jobs, thread) = (Mutex::new(Some(jobs)), Some(thread));
        Ok(Ok(DeviceGroup {
            gpu,
            stream: number,
            is_shared,
            recorder,
            place,
            jobs,
            queued,
            worker,
            group: own,
            waker,
            thread,
        }))
    }

    /// Fails everything under way, here and on the peers, lets our stream pass, and returns at once.
    pub fn abort(&self) {
        self.group.abort();
        self.waker.iter().for_each(Waker::abort);
    }

    /// Whether a reduction can be done on the GPU: all that the host can do.
    pub fn can_reduce(dtype: DataType, reduction: Reduction) -> bool {
        reduction.check(dtype).is_ok() && kernel::has_programs(dtype)
    }

    /// Whether the ranks share a GPU, and exchange on it what is not small.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The stream on which everything happens, as the driver numbers it.
    pub fn stream(&self) -> usize {
        self.stream
    }

    /// Queues operations on device memory, behind what `stream` has been given so far.
    ///
    /// # Safety
    /// The memory of the operations is device memory of this GPU, and stays valid until the GPU has done them.
    pub unsafe fn submit(
        &self,
        operations: Vec<Operation>,
        stream: usize,
        timeout: Duration,
    ) -> Result<DeviceTicket, Error> {
        let task = self.task(operations, stream, timeout)?;
        self.queue(lock(&self.jobs).as_ref(), task)
    }

    /// Does operations on device memory, behind what `stream` has been given so far: whether they are done, as small ones
    /// are. If not, the GPU has been given everything, and `stream` waits for their end.
    ///
    /// # Safety
    /// As for [`DeviceGroup::submit`].
    pub unsafe fn run(&self, operations: Vec<Operation>, stream: usize, timeout: Duration) -> Result<bool, Error> {
        let mut task = self.task(operations, stream, timeout)?;
        let jobs = lock(&self.jobs);
        if self.queued.load(Ordering::Acquire) > 0 || jobs.is_none() {
            let ticket = self.queue(jobs.as_ref(), task)?;
            drop(jobs);
            ticket.ticket.join()?;
            return ticket.order(stream).map(|()| false);
        }
        // Nothing is queued, and nothing can be: no thread need be woken for this.
        let mut worker = lock(&self.worker);
        if worker.perform_all(&mut task, Until::HostKnows)? {
            return Ok(true);
        }
        let done = self.gpu.event()?;
        worker.stream.record(&done)?;
        self.gpu.order(stream, &done)?;
        Ok(false)
    }

    fn task(&self, operations: Vec<Operation>, stream: usize, timeout: Duration) -> Result<Task, Error> {
        let (rank, world) = self.place;
        let calls =
            operations.iter().map(|operation| operation.check(rank, world)).collect::<Result<Vec<Call>, Error>>()?;
        self.gpu.enter()?;
        // A mark in a stream that has nothing to do would still have the GPU change to this process.
        let ready = match self.gpu.is_idle(stream)? {
            true => None,
            false => {
                let ready = self.gpu.event()?;
                self.gpu.record(stream, &ready)?;
                Some(ready)
            }
        };
        let entries = calls.iter().filter_map(|call| self.recorder.submitted(call)).collect();
        Ok(Task { operations, entries, ready, timeout })
    }

    fn queue(&self, jobs: Option<&Sender<Job>>, task: Task) -> Result<DeviceTicket, Error> {
        let done = Arc::new(self.gpu.event()?);
        let ticket = Ticket::new();
        let jobs = jobs.ok_or(Error::NotConnected)?;
        self.queued.fetch_add(1, Ordering::AcqRel);
        let job = Job { task, done: Arc::clone(&done), ticket: ticket.clone() };
        jobs.send(job).map_err(|_| Error::NotConnected)?;
        Ok(DeviceTicket { ticket, gpu: Arc::clone(&self.gpu), done })
    }
}

impl Drop for DeviceGroup {
    fn drop(&mut self) {
        *lock(&self.jobs) = None;
        self.thread.take().into_iter().for_each(crate::sync::join);
    }
}

/// What the thread of a group does.
fn work(worker: &Mutex<Worker>, queue: &Receiver<Job>, queued: &AtomicUsize) {
    let entered = lock(worker).gpu.enter();
    while let Ok(Job { mut task, done, ticket }) = queue.recv() {
        let result = entered.clone().map_err(Error::from).and_then(|()| {
            let mut worker = lock(worker);
            worker.perform_all(&mut task, Until::StreamKnows)?;
            Ok(worker.stream.record(&done)?)
        });
        queued.fetch_sub(1, Ordering::AcqRel);
        let output = if result.is_ok() { Output::Complete } else { Output::Undefined };
        ticket.finish(result, output);
    }
    let worker = lock(worker);
    if let Some(shared) = &worker.shared {
        shared.arena.retire();
    }
    // Whatever is wrong now, nobody is there to be told.
    let _ = worker.stream.synchronize();
}

/// Where the ranks share their GPU. The monitor goes last: what the arena's memory waits for may need it.
struct Shared {
    arena: Arena,
    monitor: Monitor,
}

/// Whether pinned memory is shared: found out by the first all_reduce that would go through it.
enum Common {
    NotTried,
    Impossible,
    Ready(Box<Pinned>),
}

/// What orders a group's operations.
struct Worker {
    gpu: Arc<Gpu>,
    group: Arc<Group>,
    stream: Arc<Stream>,
    shared: Option<Shared>,
    stage: Stage,
    common: Common,
    recorder: FlightRecorder,
    sequence: u64,
}

impl Worker {
    /// Does everything, one after the other: whether the host knows that it is done.
    fn perform_all(&mut self, task: &mut Task, until: Until) -> Result<bool, Error> {
        let mut result = task.ready.as_ref().map_or(Ok(()), |ready| self.stream.wait(ready)).map_err(Error::from);
        let mut is_done = false;
        for (index, operation) in task.operations.iter().enumerate() {
            if result.is_ok() {
                self.recorder.started(task.entries.get_mut(index));
                // What comes before is done when the last one is.
                let until = if index + 1 == task.operations.len() { until } else { Until::StreamKnows };
                match self.perform(operation, task.timeout, until) {
                    Ok(known) => is_done = known,
                    Err(error) => result = Err(error),
                }
            }
            self.recorder.ended(task.entries.get(index), result.is_ok());
        }
        if result.is_err() {
            // Also when only our GPU is at fault: the others must not wait for us.
            self.group.abort();
            self.shared.iter().for_each(|shared| shared.monitor.waker().abort());
        }
        result.map(|()| is_done)
    }

    fn perform(&mut self, operation: &Operation, timeout: Duration, until: Until) -> Result<bool, Error> {
        let call = operation.check(self.group.rank().0, self.group.world_size())?;
        let world = self.group.world_size();
        let turn = Turn { call, group: &self.group, sequence: self.sequence, timeout };
        self.sequence += 1;
        if let Operation::AllReduce { input, output, dtype, reduction } = operation
            && (1..=self.most_pinned()).contains(&input.bytes)
        {
            if matches!(self.common, Common::NotTried) {
                // Only if all are at the same operation are all here.
                agree(&turn, &signal(&turn, 1)?)?;
                let pinned = Pinned::connect(&self.gpu, &self.stream, &self.group, self.stage.pins(), timeout)?;
                self.common = pinned.map_or(Common::Impossible, |pinned| Common::Ready(Box::new(pinned)));
            }
            if let Common::Ready(pinned) = &mut self.common {
                let (dtype, reduction) = (*dtype, *reduction);
                return pinned.perform(
                    Reduce { input: input.range(), output: output.range(), dtype, reduction },
                    &turn,
                    until,
                );
            }
        }
        // Where parts may differ, all_to_all, not every rank would come to the same conclusion.
        let small = (1..=SMALL * world).contains(&operation.bytes_of_all(world));
        match &mut self.shared {
            Some(shared) if !small => shared.arena.perform(operation, &turn).map(|()| false),
            _ => self.stage.perform(operation, &turn, until),
        }
    }

    /// Up to how many bytes an all_reduce goes through pinned memory that the ranks share.
    fn most_pinned(&self) -> usize {
        match &self.shared {
            Some(_) => most_pinned(self.group.world_size()),
            None => usize::MAX,
        }
    }
}
