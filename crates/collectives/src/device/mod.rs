//! Collectives on memory of one GPU that several ranks share.
//!
//! The ranks are processes on one host with the same GPU, which NCCL refuses. Each has an arena in device memory that the
//! others open through the driver (CUDA IPC), and a stream; what they lay out and take is [`layout`]'s. The host only
//! passes signals: that everybody has *ordered* its part. That the parts are *done* is for the GPU to wait for, by
//! events that all processes share, so that no thread waits for the GPU and a caller's stream goes on as with NCCL.
//!
//! In a chunk, with the two halves of the arena in turns:
//!
//! 1. The stream waits until nobody reads this half of the arena any more, copies the input into it, marks *written*.
//! 2. The signal: calls are compared, and everybody knows that the marks of all are set.
//! 3. The stream waits for *written* of all, folds or copies what is wanted into the output, marks *read*.
//!
//! Signals go through a [`Group`] that serves for nothing else, so that operations on the GPU and on the host do not wait
//! for each other. A rank that dies or does not come is noticed there, and named.

#![expect(unsafe_code, reason = "device memory of tensors comes as addresses")]

mod driver;
mod kernel;
mod layout;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use driver::{Event, Gpu, HANDLE_BYTES, Kernel, Memory, Stream, Trouble, UUID_BYTES};
use layout::{Layout, Range, Take};

use crate::call::{CALL_WORDS, Call, Kind};
use crate::dtype::{DataType, Reduction};
use crate::operation::{Operation, Source, Target};
use crate::ticket::{Output, Ticket};
use crate::{Error, Group, Rank};

/// Bytes of one half of a rank's arena: what goes at once. Costs twice this of device memory for each rank and group.
const HALF: usize = 32 << 20;
const HALVES: usize = 2;

/// What a rank tells of itself: whether all went well, its device, its arena, its two marks for each half.
const GREETING: usize = 1 + UUID_BYTES + HANDLE_BYTES * (1 + 2 * HALVES);

/// The ranks of a group, on their GPU.
pub struct DeviceGroup {
    gpu: Arc<Gpu>,
    stream: usize,
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
    /// To be called by all ranks of `group`, which serves for this alone from here on. The inner error says why their GPUs
    /// cannot be used in this way; it is the same decision on every rank.
    pub fn connect(group: Arc<Group>, ordinal: i32, timeout: Duration) -> Result<Result<DeviceGroup, String>, Error> {
        let prepared = Prepared::new(ordinal);
        let mut greeting = [0u8; GREETING];
        if let Ok(prepared) = &prepared {
            greeting.copy_from_slice(&prepared.greeting);
        }
        let greetings = all_of(&group, &greeting, timeout)?;
        let refusal = match &prepared {
            Err(trouble) => Some(trouble.to_string()),
            Ok(_) if greetings.iter().any(|other| other[0] == 0) => Some("another rank cannot use its GPU".to_owned()),
            Ok(_) if greetings.iter().any(|other| other[1..=UUID_BYTES] != greeting[1..=UUID_BYTES]) => {
                Some("the ranks have different GPUs".to_owned())
            }
            Ok(_) => None,
        };
        // What is prepared must not go before all have decided, because others may be opening it.
        let opened = match (prepared, &refusal) {
            (Ok(prepared), None) => prepared.open(&greetings, group.rank().0).map_err(|trouble| trouble.to_string()),
            _ => Err(refusal.unwrap_or_default()),
        };
        let verdicts = all_of(&group, &[u8::from(opened.is_ok())], timeout)?;
        let arena = match opened {
            Ok(arena) if verdicts.iter().all(|verdict| verdict[0] == 1) => arena,
            Ok(_) => return Ok(Err("another rank cannot reach the memory of all".to_owned())),
            Err(reason) => return Ok(Err(reason)),
        };
        let gpu = Arc::clone(&arena.gpu);
        let stream = arena.stream.number();
        let (jobs, queue) = channel();
        let thread = std::thread::Builder::new()
            .name("instep-device".to_owned())
            .spawn(move || work(arena, &group, &queue))
            .map_err(|cause| Error::system("start a thread", cause))?;
        Ok(Ok(DeviceGroup { gpu, stream, jobs: Mutex::new(Some(jobs)), thread: Some(thread) }))
    }

    /// Whether a reduction can be done on the GPU: all that the host can do.
    pub fn can_reduce(dtype: DataType, reduction: Reduction) -> bool {
        reduction.check(dtype).is_ok() && kernel::program(dtype, reduction).is_some()
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
        self.gpu.enter()?;
        let ready = self.gpu.event(false)?;
        self.gpu.record(stream, &ready)?;
        let done = Arc::new(self.gpu.event(false)?);
        let ticket = Ticket::new();
        let job = Job { operations, ready, done: Arc::clone(&done), timeout, ticket: ticket.clone() };
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

/// What a rank has before it knows the others.
struct Prepared {
    gpu: Arc<Gpu>,
    memory: Memory,
    written: Vec<Event>,
    read: Vec<Event>,
    greeting: Vec<u8>,
}

impl Prepared {
    fn new(ordinal: i32) -> Result<Prepared, Trouble> {
        let gpu = Gpu::open(ordinal)?;
        gpu.enter()?;
        let memory = gpu.allocate(HALF * HALVES)?;
        let marks = || (0..HALVES).map(|_| gpu.event(true)).collect::<Result<Vec<Event>, Trouble>>();
        let (written, read) = (marks()?, marks()?);
        let mut greeting = vec![1u8];
        greeting.extend(gpu.uuid()?);
        greeting.extend(memory.handle()?);
        for event in written.iter().chain(&read) {
            greeting.extend(event.shared()?);
        }
        Ok(Prepared { gpu, memory, written, read, greeting })
    }

    fn open(self, greetings: &[Vec<u8>], rank: usize) -> Result<Arena, Trouble> {
        let Prepared { gpu, memory, written, read, .. } = self;
        let open = |greeting: &Vec<u8>| Peer::open(&gpu, greeting);
        let mut peers = greetings[..rank].iter().map(open).collect::<Result<Vec<Peer>, Trouble>>()?;
        peers.push(Peer { memory, written, read });
        for greeting in &greetings[rank + 1..] {
            peers.push(open(greeting)?);
        }
        let stream = gpu.stream()?;
        let table = gpu.allocate(peers.len() * HALVES * size_of::<u64>())?;
        let sources =
            (0..HALVES).flat_map(|half| peers.iter().map(move |peer| peer.memory.address() + (half * HALF) as u64));
        let bytes: Vec<u8> = sources.flat_map(u64::to_ne_bytes).collect();
        gpu.upload(table.address(), &bytes)?;
        Ok(Arena { gpu, rank, peers, table, stream, kernels: BTreeMap::new(), turn: 0 })
    }
}

/// One rank's arena and marks, our own or another's.
struct Peer {
    memory: Memory,
    written: Vec<Event>,
    read: Vec<Event>,
}

impl Peer {
    fn open(gpu: &Arc<Gpu>, greeting: &[u8]) -> Result<Peer, Trouble> {
        let mut handles = greeting[1 + UUID_BYTES..].chunks_exact(HANDLE_BYTES).map(|bytes| {
            let mut handle = [0; HANDLE_BYTES];
            handle.copy_from_slice(bytes);
            handle
        });
        let mut next = || handles.next().unwrap_or([0; HANDLE_BYTES]);
        let memory = gpu.open_memory(next())?;
        let mut marks = || (0..HALVES).map(|_| gpu.open_event(next())).collect::<Result<Vec<Event>, Trouble>>();
        let (written, read) = (marks()?, marks()?);
        Ok(Peer { memory, written, read })
    }
}

/// What the thread of a group works with.
struct Arena {
    gpu: Arc<Gpu>,
    rank: usize,
    peers: Vec<Peer>,
    /// The addresses of all ranks' halves, for the kernels.
    table: Memory,
    stream: Stream,
    kernels: BTreeMap<(u8, u8), Kernel>,
    turn: usize,
}

fn work(mut arena: Arena, group: &Group, queue: &Receiver<Job>) {
    let entered = arena.gpu.enter();
    while let Ok(job) = queue.recv() {
        let result = entered.clone().map_err(Error::from).and_then(|()| arena.perform_all(&job, group));
        let output = if result.is_ok() { Output::Complete } else { Output::Undefined };
        job.ticket.finish(result, output);
    }
    arena.retire();
}

impl Arena {
    fn perform_all(&mut self, job: &Job, group: &Group) -> Result<(), Error> {
        self.stream.wait(&job.ready)?;
        for operation in &job.operations {
            self.perform(operation, group, job.timeout)?;
        }
        Ok(self.stream.record(&job.done)?)
    }

    fn perform(&mut self, operation: &Operation, group: &Group, timeout: Duration) -> Result<(), Error> {
        let world = self.peers.len();
        let call = operation.check(self.rank, world)?;
        let layout = Layout::of(operation, self.rank, world);
        let step = layout.step(HALF);
        let mut chunks = layout.chunks(HALF);
        let mut chunk = 0;
        while chunk < chunks {
            let half = self.turn % HALVES;
            self.turn += 1;
            self.lay_out(&layout, chunk, step, half)?;
            let signals = signal(group, &call, chunks, timeout)?;
            chunks = agree(&call, self.rank, &signals, self.turn as u64)?.max(chunks);
            self.take(&layout, chunk, step, half)?;
            chunk += 1;
        }
        Ok(())
    }

    fn lay_out(&self, layout: &Layout, chunk: usize, step: usize, half: usize) -> Result<(), Trouble> {
        for peer in &self.peers {
            self.stream.wait(&peer.read[half])?;
        }
        let own = &self.peers[self.rank];
        for (segment, give) in layout.gives.iter().enumerate() {
            if let Some(part) = give.chunk(chunk, step) {
                let target = own.memory.address() + (half * HALF + segment * step) as u64;
                self.copy(target, part.address, part.bytes)?;
            }
        }
        self.stream.record(&own.written[half])
    }

    fn take(&mut self, layout: &Layout, chunk: usize, step: usize, half: usize) -> Result<(), Trouble> {
        for peer in &self.peers {
            self.stream.wait(&peer.written[half])?;
        }
        for take in &layout.takes {
            let Some(part) = take.target().chunk(chunk, step) else { continue };
            match take {
                Take::Copy { rank, segment, .. } => {
                    let source = self.peers[*rank].memory.address() + (half * HALF + segment * step) as u64;
                    self.copy(part.address, source, part.bytes)?;
                }
                Take::Fold { segment, dtype, reduction, .. } => {
                    self.fold(part, (segment * step) as u64, half, *dtype, *reduction)?;
                }
            }
        }
        self.stream.record(&self.peers[self.rank].read[half])
    }

    fn copy(&self, target: u64, source: u64, bytes: usize) -> Result<(), Trouble> {
        // SAFETY: one side is a part of an arena, the other of memory that `submit` was promised.
        unsafe { self.stream.copy(target, source, bytes) }
    }

    fn fold(
        &mut self,
        target: Range,
        offset: u64,
        half: usize,
        dtype: DataType,
        reduction: Reduction,
    ) -> Result<(), Trouble> {
        let key = (dtype as u8, reduction.code());
        if !self.kernels.contains_key(&key) {
            let program = kernel::program(dtype, reduction).unwrap_or_default();
            self.kernels.insert(key, self.gpu.kernel(&program, kernel::NAME)?);
        }
        let Some(kernel) = self.kernels.get(&key) else { return Ok(()) };
        let factor = match reduction {
            Reduction::PremultipliedSum(factor) => factor,
            _ => 1.0,
        };
        let mut sources = self.table.address() + (half * self.peers.len() * size_of::<u64>()) as u64;
        let (mut ranks, mut offset, mut to) = (self.peers.len() as u32, offset, target.address);
        let mut count = (target.bytes / kernel::element_size(dtype)) as u64;
        let mut factor = factor;
        let mut arguments: [*mut c_void; 6] = [
            (&raw mut sources).cast(),
            (&raw mut ranks).cast(),
            (&raw mut offset).cast(),
            (&raw mut to).cast(),
            (&raw mut count).cast(),
            (&raw mut factor).cast(),
        ];
        let blocks = count.div_ceil(u64::from(kernel::THREADS)).clamp(1, u64::from(kernel::MOST_BLOCKS)) as u32;
        // SAFETY: the arguments of `kernel::program`; sources are arenas, the target is what `submit` was promised.
        unsafe { kernel.launch(&self.stream, blocks, kernel::THREADS, &mut arguments) }
    }

    /// Waits until nobody reads our arena any more.
    fn retire(&self) {
        for event in self.peers.iter().flat_map(|peer| &peer.read) {
            if self.stream.wait(event).is_err() {
                return;
            }
        }
        // Whatever is wrong now, nobody is there to be told.
        let _ = self.stream.synchronize();
    }
}

/// What a rank calls and how many chunks its part takes.
type Signal = [u64; CALL_WORDS + 1];

fn signal(group: &Group, call: &Call, chunks: usize, timeout: Duration) -> Result<Vec<Signal>, Error> {
    let mut words: Signal = [0; CALL_WORDS + 1];
    words[..CALL_WORDS].copy_from_slice(&call.words());
    words[CALL_WORDS] = chunks as u64;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let all = all_of(group, &bytes, timeout)?;
    let read = |bytes: &Vec<u8>| {
        let mut words: Signal = [0; CALL_WORDS + 1];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
            *word = bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        }
        words
    };
    Ok(all.iter().map(read).collect())
}

/// Whether all ranks call the same, and how many chunks it takes.
fn agree(call: &Call, rank: usize, signals: &[Signal], sequence: u64) -> Result<usize, Error> {
    for (other_rank, signal) in signals.iter().enumerate() {
        let mut words = [0; CALL_WORDS];
        words.copy_from_slice(&signal[..CALL_WORDS]);
        let other = Call::from_words(words).ok_or_else(|| Error::invalid("another rank sent what is no call"))?;
        let same = match call.kind {
            // Sizes may differ from pair to pair.
            Kind::AllToAll => (other.kind, other.dtype) == (call.kind, call.dtype),
            _ => other.words() == call.words(),
        };
        if !same {
            return Err(Error::Mismatch {
                rank: Rank(rank),
                call: *call,
                other_rank: Rank(other_rank),
                other,
                sequence,
            });
        }
    }
    Ok(signals.iter().map(|signal| signal[CALL_WORDS] as usize).max().unwrap_or(1))
}

/// Everybody's bytes, as many from each.
fn all_of(group: &Group, own: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>, Error> {
    let mut all = vec![vec![0u8; own.len()]; group.world_size()];
    let outputs = all.iter_mut().map(|bytes| Target::new(bytes.as_mut_ptr(), bytes.len())).collect();
    let operation =
        Operation::AllGather { input: Source::new(own.as_ptr(), own.len()), outputs, dtype: DataType::Bytes };
    // SAFETY: memory that lives here until this returns.
    unsafe { group.run_within(operation, timeout)? };
    Ok(all)
}
