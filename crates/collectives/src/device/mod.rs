//! Collectives on memory of GPUs.
//!
//! | module | what it is for |
//! |---|---|
//! | `shared` | ranks that share one GPU, which NCCL refuses: exchanged on the device |
//! | `staged` | all others, and what is so small that GPUs take longer: through memory of the host, pinned |
//! | `layout` | an operation as what a rank lays out and takes: pure |
//! | `signal` | what the hosts tell each other meanwhile |
//! | `kernel` | reductions as programs of the GPU |
//! | `driver` | the part of the CUDA driver that is used |
//!
//! Everything happens behind what the caller's stream has been given, and callers' streams wait for its end, on a stream
//! and a thread of the group. The host side goes through a [`Group`] that serves for nothing else, so that operations on the
//! GPU and on the host do not wait for each other. A rank that dies or does not come is noticed there, and named.

#![expect(unsafe_code, reason = "device memory of tensors comes as addresses")]

mod driver;
mod kernel;
mod layout;
mod shared;
mod signal;
mod staged;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use driver::{Event, Gpu, Stream, Trouble, UUID_BYTES};
use instep_recorder::Entry;
use shared::{Arena, Prepared};
use signal::all_of;
use staged::Stage;

use crate::call::Call;
use crate::diary::Diary;
use crate::dtype::{DataType, Reduction};
use crate::operation::Operation;
use crate::ticket::{Output, Ticket};
use crate::{Error, Group};

/// Up to so many bytes of a rank tensors go through the host also where ranks share a GPU: it changes between their processes
/// only at the end of its time slices.
const SMALL: usize = 1 << 20;

/// What a rank can do; what all can do is done.
const NOTHING: u8 = 0;
const STAGED: u8 = 1;
const SHARED: u8 = 2;

/// The ranks of a group, on their GPUs.
pub struct DeviceGroup {
    gpu: Arc<Gpu>,
    stream: usize,
    is_shared: bool,
    diary: Diary,
    /// Of this rank, and how many there are.
    place: (usize, usize),
    jobs: Mutex<Option<Sender<Job>>>,
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
    operations: Vec<Operation>,
    /// What the flight recorder has of them.
    entries: Vec<Entry>,
    ready: Event,
    done: Arc<Event>,
    timeout: Duration,
    ticket: Ticket,
}

impl DeviceTicket {
    /// Has a stream of the caller wait for the end of the operation.
    pub fn order(&self, stream: usize) -> Result<(), Error> {
        self.gpu.enter()?;
        Ok(self.gpu.order(stream, &self.done)?)
    }
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Error {
        Error::system("use the GPU", std::io::Error::other(trouble.to_string()))
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
        let opened = Gpu::open(ordinal).and_then(|gpu| {
            gpu.enter()?;
            let stream = Arc::new(gpu.stream()?);
            let stage = Stage::new(&gpu, Arc::clone(&stream), pin)?;
            Ok((gpu, stream, stage))
        });
        let prepared = match &opened {
            Ok((gpu, ..)) if share => Prepared::new(gpu).ok(),
            _ => None,
        };
        let able = match (&opened, &prepared) {
            (Err(_), _) => NOTHING,
            (Ok(_), None) => STAGED,
            (Ok(_), Some(_)) => SHARED,
        };
        let mut greeting = vec![able];
        greeting.extend(prepared.as_ref().map_or(vec![0; shared::GREETING], |prepared| prepared.greeting.clone()));
        let greetings = all_of(&group, &greeting, timeout)?;
        let (gpu, stream, stage) = match opened {
            Ok(opened) if greetings.iter().all(|other| other[0] != NOTHING) => opened,
            Ok(_) => return Ok(Err("another rank cannot use its GPU".to_owned())),
            Err(trouble) => return Ok(Err(trouble.to_string())),
        };
        let alike = |other: &Vec<u8>| other[..=UUID_BYTES] == greeting[..=UUID_BYTES];
        // What is prepared must not go before all have decided, because others may be opening it.
        let arena = prepared.filter(|_| greetings.iter().all(alike)).map(|prepared| {
            let greetings: Vec<Vec<u8>> = greetings.iter().map(|other| other[1..].to_vec()).collect();
            prepared.open(&greetings, group.rank().0, Arc::clone(&stream))
        });
        let arena = arena.and_then(Result::ok);
        let verdicts = all_of(&group, &[u8::from(arena.is_some())], timeout)?;
        let arena = arena.filter(|_| verdicts.iter().all(|verdict| verdict[0] == 1));
        let place = (group.rank().0, group.world_size());
        let (number, is_shared, diary) = (stream.number(), arena.is_some(), home.diary());
        let (jobs, queue) = channel();
        let worker = Worker { gpu: Arc::clone(&gpu), stream, arena, stage, diary: diary.clone(), sequence: 0 };
        let thread = std::thread::Builder::new()
            .name("instep-device".to_owned())
            .spawn(move || worker.run(&group, &queue))
            .map_err(|cause| Error::system("start a thread", cause))?;
        let (jobs, thread) = (Mutex::new(Some(jobs)), Some(thread));
        Ok(Ok(DeviceGroup { gpu, stream: number, is_shared, diary, place, jobs, thread }))
    }

    /// Whether a reduction can be done on the GPU: all that the host can do.
    pub fn can_reduce(dtype: DataType, reduction: Reduction) -> bool {
        reduction.check(dtype).is_ok() && kernel::program(dtype, reduction).is_some()
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
        let (rank, world) = self.place;
        let calls =
            operations.iter().map(|operation| operation.check(rank, world)).collect::<Result<Vec<Call>, Error>>()?;
        self.gpu.enter()?;
        let ready = self.gpu.event(false)?;
        self.gpu.record(stream, &ready)?;
        let done = Arc::new(self.gpu.event(false)?);
        let ticket = Ticket::new();
        let entries = calls.iter().filter_map(|call| self.diary.submitted(call)).collect();
        let job = Job { operations, entries, ready, done: Arc::clone(&done), timeout, ticket: ticket.clone() };
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if !sent {
            return Err(Error::NotConnected);
        }
        Ok(DeviceTicket { ticket, gpu: Arc::clone(&self.gpu), done })
    }
}

impl Drop for DeviceGroup {
    fn drop(&mut self) {
        *self.jobs.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.thread.take().into_iter().for_each(crate::group::join);
    }
}

/// One operation while it is done.
struct Turn<'a> {
    call: Call,
    group: &'a Group,
    sequence: u64,
    timeout: Duration,
}

/// What the thread of a group works with.
struct Worker {
    gpu: Arc<Gpu>,
    stream: Arc<Stream>,
    /// Where the ranks share their GPU.
    arena: Option<Arena>,
    stage: Stage,
    diary: Diary,
    sequence: u64,
}

impl Worker {
    fn run(mut self, group: &Group, queue: &Receiver<Job>) {
        let entered = self.gpu.enter();
        while let Ok(job) = queue.recv() {
            let result = entered.clone().map_err(Error::from).and_then(|()| self.perform_all(&job, group));
            let output = if result.is_ok() { Output::Complete } else { Output::Undefined };
            job.ticket.finish(result, output);
        }
        if let Some(arena) = &self.arena {
            arena.retire();
        }
        // Whatever is wrong now, nobody is there to be told.
        let _ = self.stream.synchronize();
    }

    fn perform_all(&mut self, job: &Job, group: &Group) -> Result<(), Error> {
        let mut entries = job.entries.clone();
        let mut result = self.stream.wait(&job.ready).map_err(Error::from);
        for (index, operation) in job.operations.iter().enumerate() {
            if result.is_ok() {
                self.diary.started(entries.get_mut(index));
                result = self.perform(operation, group, job.timeout);
            }
            self.diary.ended(entries.get(index), result.is_ok());
        }
        result?;
        Ok(self.stream.record(&job.done)?)
    }

    fn perform(&mut self, operation: &Operation, group: &Group, timeout: Duration) -> Result<(), Error> {
        let call = operation.check(group.rank().0, group.world_size())?;
        let turn = Turn { call, group, sequence: self.sequence, timeout };
        self.sequence += 1;
        // Where parts may differ, all_to_all, not every rank would come to the same conclusion.
        let small = (1..=SMALL).contains(&operation.bytes());
        match &mut self.arena {
            Some(arena) if !small => arena.perform(operation, &turn),
            _ => self.stage.perform(operation, &turn),
        }
    }
}
