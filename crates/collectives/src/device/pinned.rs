//! all_reduce by ranks of one host, through memory of the host that all of them share and their GPUs copy to and from.
//!
//! No kernel runs, so nobody waits for a time slice of a GPU that several processes share, and nothing is copied by the
//! host: it only adds up. The memory is an anonymous file that rank 0 makes and the others open through `/proc`:
//!
//! ```text
//! counters  for each rank: here, and done of each of its lanes
//! slots     for each rank: DEPTH chunks of its input, written by its GPU
//! results   DEPTH chunks of the result, of which every rank writes its segment and every GPU reads all
//! ```
//! Each rank pins its own slots and the results. Chunks are counted through the life of the group, the same on every rank;
//! chunk `c` lies at place `c % DEPTH`, of the slots and of the results:
//!
//! 1. `here > c`: the rank's input is in its slot, and its GPU has read the result of chunk `c - DEPTH`.
//! 2. When every rank's `here > c`, each lane of each reduces its segment of all slots into the results, in the order of
//!    ranks.
//! 3. `done > c`: it has. When `done > c` of all, each rank has its GPU copy the result of the chunk, and may have it write
//!    its own slot for chunk `c + DEPTH`.
//!
//! *Lanes* are threads that help to reduce, where there are cores to spare: one core gets only a few gigabytes a second of
//! what a GPU has written. They are woken when an operation begins, while its first chunk is on its way.
//!
//! So while chunk `c` is reduced, `c + 1` comes and `c - 1` goes, both at the full speed of the bus. A GPU does all copies of
//! one process before it turns to the next process: few chunks are therefore ordered ahead, lest one rank's last chunk come
//! before another's first.
//!
//! Everybody watches the counters and its GPU without sleeping, for a while; then it sleeps in between and looks who is
//! alive. What is wrong then, the group finds out and says, by a barrier that cannot succeed.
#![expect(unsafe_code, reason = "memory that other processes and the GPU write to")]

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, OFlag, fallocate, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::{Mode, fstat};

use super::driver::{Address, Event, Gpu, Stream, Trouble};
use super::layout::Range;
use super::signal::{Turn, Until, agree, all_of, signal};
use crate::dtype::{DataType, Reduction};
use crate::operation::Operation;
use crate::rank::LocalRank;
use crate::shm::arena::Arena;
use crate::{Error, Group, Rank, kernel, partition};

/// Chunks of a rank, and of the result, that are in memory: one comes, one is reduced, two go.
const DEPTH: usize = 4;
/// Chunks that are ordered from the GPU and not here yet.
const AHEAD: u64 = 1;
/// The longest chunk, in bytes, unless there are so many ranks that the memory would be more than this in all.
const LONGEST: usize = 1 << 20;
const MOST_MEMORY: usize = 64 << 20;
/// The shortest chunk of several: what the GPU takes to begin a copy weighs more than waiting for all of it.
const SHORTEST: usize = 512 << 10;
/// From so many ranks on, copies of different ranks take longer than anything else.
const MANY: usize = 8;
const PAGE: usize = 4096;
/// Threads of a rank that reduce.
const MOST_LANES: usize = 4;
/// What each of them must have of a chunk to be worth waking, in bytes.
const WORTH_WAKING: usize = 32 << 10;
/// Up to so many bytes of all ranks' inputs they are woken: of more, copies take longer than reducing.
const MOST_IN_LANES: usize = 8 << 20;
/// Bytes of a counter, which has cache lines of its own, and of those of a rank.
const COUNTER: usize = 128;
const LINE: usize = (1 + MOST_LANES) * COUNTER;
/// What is reduced before it is written to the results, past the caches: the bus reads memory faster than caches.
const BLOCK: usize = 16 << 10;

/// How long to watch without sleeping, and how long to sleep before the next look.
const WATCHED: Duration = Duration::from_micros(500);
const ASLEEP: Duration = Duration::from_micros(50);
/// How often to look who is alive.
const LOOK_AROUND: Duration = Duration::from_millis(10);
/// How far apart the deadlines of ranks that have met can be.
const GRACE: Duration = Duration::from_millis(200);

/// Where everything lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    world: usize,
    /// The most that a chunk can have, in bytes: whole pages.
    longest: usize,
}

impl Layout {
    fn of(world: usize) -> Layout {
        Layout { world, longest: (MOST_MEMORY / DEPTH / (world + 1)).clamp(PAGE, LONGEST) / PAGE * PAGE }
    }

    /// Of a rank, or of the results, which lie behind those of all ranks.
    fn slots(self, rank: usize) -> usize {
        (self.world * LINE).next_multiple_of(PAGE) + rank * self.slot_bytes()
    }

    fn slot_bytes(self) -> usize {
        DEPTH * self.longest
    }

    fn place(self, rank: usize, chunk: u64) -> usize {
        self.slots(rank) + (chunk % DEPTH as u64) as usize * self.longest
    }

    fn results(self) -> usize {
        self.world
    }

    fn total(self) -> usize {
        self.slots(self.world + 1)
    }
}

/// What a rank says of itself.
#[derive(Clone, Copy, Debug)]
enum Counter {
    Here,
    /// By one of its lanes.
    Done(usize),
}

/// The memory, mapped.
struct Memory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the mapping lives as long as this; counters are atomics, the rest is used under the rules of the module.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn create(layout: Layout) -> Result<(Memory, OwnedFd), Error> {
        let file = memfd_create("instep-device", MFdFlags::MFD_CLOEXEC)
            .map_err(|error| Error::system("create shared memory", error))?;
        // Allocated now: memory that runs out later would be a SIGBUS.
        fallocate(&file, FallocateFlags::empty(), 0, layout.total() as i64)
            .map_err(|error| Error::system("allocate shared memory", error))?;
        Ok((Memory::map(&file, layout)?, file))
    }

    /// Opens what another rank has made and named.
    fn open(name: &Name, layout: Layout) -> Result<Memory, Error> {
        let [process, file, ..] = name.0;
        let path = format!("/proc/{process}/fd/{file}");
        let file = open(path.as_str(), OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|error| Error::system("open shared memory", error))?;
        // Processes have other numbers in other containers.
        if Name::of(&file)?.0[2..] != name.0[2..] {
            return Err(Error::invalid("the shared memory is another one"));
        }
        Memory::map(&file, layout)
    }

    fn map(file: &OwnedFd, layout: Layout) -> Result<Memory, Error> {
        let size = NonZeroUsize::new(layout.total()).unwrap_or(NonZeroUsize::MIN);
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, file.as_fd(), 0) }
            .map_err(|error| Error::system("map shared memory", error))?;
        Ok(Memory { base: base.cast(), layout })
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add(offset)
    }

    fn counter(&self, rank: usize, counter: Counter) -> &AtomicU64 {
        debug_assert!(rank < self.layout.world);
        let offset = match counter {
            Counter::Here => 0,
            Counter::Done(lane) => (1 + lane) * COUNTER,
        };
        // SAFETY: the counters lie at the start of the mapping, aligned, and everybody treats them as atomics.
        unsafe { &*self.at(rank * LINE + offset).cast::<AtomicU64>() }
    }

    fn publish(&self, rank: usize, counter: Counter, value: u64) {
        self.counter(rank, counter).store(value, Ordering::Release);
    }

    fn has(&self, rank: usize, counter: Counter, value: u64) -> bool {
        self.counter(rank, counter).load(Ordering::Acquire) >= value
    }

    fn all_here(&self, value: u64) -> bool {
        (0..self.layout.world).all(|rank| self.has(rank, Counter::Here, value))
    }

    fn all_done(&self, lanes: usize, value: u64) -> bool {
        let done = |rank: usize| (0..lanes).all(|lane| self.has(rank, Counter::Done(lane), value));
        (0..self.layout.world).all(done)
    }

    /// Reduces one lane's segment of a chunk into the results.
    fn reduce(&self, who: Lane, chunk: Chunk, work: &Work, scratch: &mut Scratch) {
        let Work { dtype, reduction, lanes, .. } = *work;
        let (layout, element) = (self.layout, dtype.size());
        let number = who.rank * lanes + who.lane;
        let segment = partition::segment(chunk.bytes / element, element, layout.world * lanes, number);
        let stream = kernel::copy_of(usize::MAX, usize::MAX);
        let block = BLOCK / element;
        for start in segment.clone().step_by(block) {
            let count = block.min(segment.end - start);
            scratch.inputs.clear();
            let place = |rank: usize| self.at(layout.place(rank, chunk.number) + start * element);
            scratch.inputs.extend((0..layout.world).map(|rank| place(rank).cast_const()));
            let block = scratch.block.as_mut_ptr().cast::<u8>();
            // SAFETY: rule 2 of the module: all slots are filled, nobody else writes this segment of the results and nobody
            // reads it; the block is as long as what is reduced at a time.
            unsafe {
                kernel::reduce(dtype, reduction, &scratch.inputs, &[block], count);
                stream(block, place(layout.results()), count * element);
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped once, and used by nobody any more.
        let _ = unsafe { munmap(self.base.cast(), self.layout.total()) };
    }
}

/// What a reduction needs, kept from chunk to chunk.
struct Scratch {
    inputs: Vec<*const u8>,
    block: Vec<u64>,
}

// SAFETY: the addresses are only used while a chunk is reduced.
unsafe impl Send for Scratch {}

impl Scratch {
    fn new() -> Scratch {
        Scratch { inputs: Vec::new(), block: vec![0; BLOCK / size_of::<u64>()] }
    }
}

/// A thread of a rank.
#[derive(Clone, Copy, Debug)]
struct Lane {
    rank: usize,
    lane: usize,
}

/// What lanes have to know of an operation.
#[derive(Clone, Copy, Debug)]
struct Work {
    /// Chunks before this operation.
    first: u64,
    cut: Cut,
    dtype: DataType,
    reduction: Reduction,
    /// How many lanes of each rank work.
    lanes: usize,
}

impl Work {
    fn chunk(&self, index: u64) -> Chunk {
        let (start, end) = (self.cut.start(index as usize), self.cut.start(index as usize + 1));
        Chunk { number: self.first + index, start, bytes: end - start }
    }

    fn count(&self) -> u64 {
        self.cut.count() as u64
    }

    fn end(&self) -> u64 {
        self.first + self.count()
    }
}

/// The lanes of a rank beside the first, which is the thread that has the operation. They end when this is dropped.
struct Helpers {
    lanes: Vec<(Sender<Work>, JoinHandle<()>)>,
    /// Nothing more will come.
    over: Arc<AtomicBool>,
}

impl Helpers {
    fn start(memory: &Arc<Memory>, rank: usize, lanes: usize) -> Result<Helpers, Error> {
        let mut helpers = Helpers { lanes: Vec::new(), over: Arc::new(AtomicBool::new(false)) };
        for lane in 1..lanes {
            let (works, wanted) = channel::<Work>();
            let (memory, over) = (Arc::clone(memory), Arc::clone(&helpers.over));
            let help = move || {
                let mut scratch = Scratch::new();
                for work in wanted {
                    help(&memory, Lane { rank, lane }, &work, &mut scratch, &over);
                }
            };
            let thread = std::thread::Builder::new()
                .name("instep-device-lane".to_owned())
                .spawn(help)
                .map_err(|cause| Error::system("start a thread", cause))?;
            helpers.lanes.push((works, thread));
        }
        Ok(helpers)
    }

    fn wake(&self, work: &Work) {
        for (works, _) in self.lanes.iter().take(work.lanes - 1) {
            // It takes what it is given as long as this lives.
            let _ = works.send(*work);
        }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for (works, thread) in self.lanes.drain(..) {
            drop(works);
            crate::sync::join(thread);
        }
    }
}

/// What a lane beside the first does of an operation.
fn help(memory: &Memory, who: Lane, work: &Work, scratch: &mut Scratch, over: &AtomicBool) {
    for index in 0..work.count() {
        let chunk = work.chunk(index);
        let began = Instant::now();
        while !memory.all_here(chunk.number + 1) {
            if over.load(Ordering::Relaxed) {
                return;
            }
            if began.elapsed() < WATCHED { std::hint::spin_loop() } else { std::thread::sleep(ASLEEP) }
        }
        memory.reduce(who, chunk, work, scratch);
        memory.publish(who.rank, Counter::Done(who.lane), chunk.number + 1);
    }
}

/// What others open the memory by: process, number of the file there, and what tells it from every other file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name([u64; 4]);

impl Name {
    const NONE: Name = Name([0; 4]);

    fn of(file: &OwnedFd) -> Result<Name, Error> {
        let found = fstat(file).map_err(|error| Error::system("look at shared memory", error))?;
        Ok(Name([std::process::id().into(), file.as_raw_fd() as u64, found.st_dev, found.st_ino]))
    }

    fn bytes(self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn read(bytes: &[u8]) -> Name {
        let mut name = Name::NONE;
        for (word, bytes) in name.0.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        name
    }
}

/// A part of the memory that the GPU copies to and from by itself.
struct Pin {
    gpu: Arc<Gpu>,
    start: *mut u8,
}

// SAFETY: only an address.
unsafe impl Send for Pin {}

impl Pin {
    fn new(gpu: &Arc<Gpu>, start: *mut u8, bytes: usize) -> Result<Pin, Trouble> {
        gpu.pin(start.cast(), bytes)?;
        Ok(Pin { gpu: Arc::clone(gpu), start })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            self.gpu.unpin(self.start.cast());
        }
    }
}

/// What happens at a place.
struct Place {
    /// The input is there.
    here: Event,
    /// The result has gone to the GPU.
    gone: Event,
}

/// An all_reduce on device memory.
#[derive(Clone, Copy)]
pub(super) struct Reduce {
    pub(super) input: Range,
    pub(super) output: Range,
    pub(super) dtype: DataType,
    pub(super) reduction: Reduction,
}

/// See the module documentation.
pub(super) struct Pinned {
    rank: usize,
    /// From the GPU, and where callers' streams wait.
    stream: Arc<Stream>,
    /// Back to the GPU.
    back: Stream,
    places: Vec<Place>,
    scratch: Scratch,
    /// Chunks so far.
    chunk: u64,
    /// Whether there are more ranks than cores, so that who watches keeps another from its work.
    crowded: bool,
    /// Where the group's fate is to be seen.
    arena: Arc<Arena>,
    processes: Arc<[OwnedFd]>,
    /// How many lanes every rank has.
    lanes: usize,
    helpers: Helpers,
    _pins: [Pin; 2],
    memory: Arc<Memory>,
}

impl Pinned {
    /// Makes the memory, with all ranks of the group; none if that cannot be done, or a rank is not to pin, on every rank.
    pub(super) fn connect(
        gpu: &Arc<Gpu>,
        stream: &Arc<Stream>,
        group: &Group,
        pin: bool,
        timeout: Duration,
    ) -> Result<Option<Pinned>, Error> {
        let Some((arena, processes)) = group.shared_memory() else { return Ok(None) };
        let (rank, layout) = (group.rank().0, Layout::of(group.world_size()));
        let made = if rank == 0 { Memory::create(layout).ok() } else { None };
        let name = made.as_ref().and_then(|(_, file)| Name::of(file).ok()).unwrap_or(Name::NONE);
        let names = all_of(group, &name.bytes(), timeout)?;
        let (memory, _until_all_have_it) = match made {
            Some((memory, file)) => (Ok(memory), Some(file)),
            None => (Memory::open(&Name::read(&names[0]), layout), None),
        };
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let pinned = memory.and_then(|memory| {
            let memory = Arc::new(memory);
            let pin = |rank: usize| Pin::new(gpu, memory.at(layout.slots(rank)), layout.slot_bytes());
            let pins = [pin(rank)?, pin(layout.results())?];
            let place = |_| Ok(Place { here: gpu.event()?, gone: gpu.event()? });
            // Half of the cores stay for others: a lane that has none keeps all ranks waiting.
            let lanes = (cores / layout.world / 2).clamp(1, MOST_LANES);
            Ok(Pinned {
                rank,
                stream: Arc::clone(stream),
                back: gpu.stream()?,
                places: (0..DEPTH).map(place).collect::<Result<_, Trouble>>()?,
                scratch: Scratch::new(),
                chunk: 0,
                crowded: cores < layout.world,
                arena,
                processes,
                lanes,
                helpers: Helpers::start(&memory, rank, lanes)?,
                _pins: pins,
                memory,
            })
        });
        // As many lanes as all have; none at all is none of this.
        let own = pinned.as_ref().map_or(0, |pinned| if pin { pinned.lanes as u8 } else { 0 });
        let verdicts = all_of(group, &[own], timeout)?;
        let lanes = verdicts.iter().map(|verdict| usize::from(verdict[0])).min().unwrap_or(0);
        let mut pinned = pinned.ok().filter(|_| lanes > 0);
        pinned.iter_mut().for_each(|pinned| pinned.lanes = lanes);
        Ok(pinned)
    }

    /// Does an operation: whether the host has waited for its end.
    pub(super) fn perform(&mut self, reduce: Reduce, turn: &Turn<'_>, until: Until) -> Result<bool, Error> {
        let Reduce { input, dtype, reduction, .. } = reduce;
        let layout = self.memory.layout;
        let cut = Cut::new(input.bytes, layout);
        let lanes = lanes_for(cut, layout.world).min(self.lanes);
        let work = Work { first: self.chunk, cut, dtype, reduction, lanes };
        let mut progress = Progress::new(work);
        let end = work.end();
        // What is on its way while ranks meet need not be waited for afterwards.
        let mut hands = Hands { pinned: self, reduce, work };
        progress.begin(&mut hands)?;
        hands.pinned.helpers.wake(&work);
        agree(turn, &signal(turn, progress.count as usize)?)?;
        let mut patience = Patience::new(turn.timeout);
        while !progress.is_over() {
            if progress.advance(&mut hands)? {
                patience.renew();
            } else if patience.is_over(hands.pinned.crowded) && hands.pinned.is_wrong(&patience) {
                patience.doubt(|| hands.pinned.give_up(end, turn))?;
            }
        }
        self.chunk = end;
        let last = &self.place(end - 1).gone;
        match until {
            Until::HostKnows => last.synchronize()?,
            Until::StreamKnows => self.stream.wait(last)?,
        }
        Ok(until == Until::HostKnows)
    }

    fn place(&self, chunk: u64) -> &Place {
        &self.places[(chunk % DEPTH as u64) as usize]
    }

    /// Whether somebody is gone, has given up, or should have come long ago.
    fn is_wrong(&self, patience: &Patience) -> bool {
        let mut handles: Vec<PollFd<'_>> =
            self.processes.iter().map(|process| PollFd::new(process.as_fd(), PollFlags::POLLIN)).collect();
        self.arena.is_aborted()
            || patience.is_late()
            || (0..self.processes.len()).any(|rank| self.arena.control(LocalRank(rank)).has_left())
            || poll(&mut handles, PollTimeout::ZERO).unwrap_or(0) > 0
    }

    /// Why this rank cannot go on.
    fn give_up(&self, target: u64, turn: &Turn<'_>) -> Error {
        // SAFETY: no memory is involved.
        let met = unsafe { turn.group.run_within(Operation::Barrier, GRACE) };
        let Turn { call, sequence, timeout, .. } = *turn;
        let late = |rank: &usize| !self.memory.has(*rank, Counter::Done(0), target);
        let missing = || (0..self.memory.layout.world).filter(late).map(Rank).collect();
        // All are alive, and have waited as long: for a GPU.
        let timed_out = || Error::Timeout { call, sequence, timeout, missing: missing(), noticed_by: Rank(self.rank) };
        met.err().unwrap_or_else(timed_out)
    }
}

/// A chunk of an operation.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    number: u64,
    /// Where it begins in the tensor.
    start: usize,
    bytes: usize,
}

/// What one rank can do, and see.
trait Rankwise {
    type Error;
    /// Has the input copied to its slot.
    fn order(&mut self, chunk: Chunk) -> Result<(), Self::Error>;
    /// Whether that is done, and whatever was at its place before has gone.
    fn is_here(&mut self, chunk: Chunk) -> Result<bool, Self::Error>;
    /// Says that it is.
    fn publish_here(&mut self, value: u64);
    fn all_here(&mut self, value: u64) -> bool;
    /// Reduces, and says so.
    fn reduce(&mut self, chunk: Chunk);
    fn all_done(&mut self, value: u64) -> bool;
    /// Has the result copied to the output.
    fn take(&mut self, chunk: Chunk) -> Result<(), Self::Error>;
}

/// How far a rank is with an operation, in chunks.
#[derive(Debug)]
struct Progress {
    work: Work,
    count: u64,
    ordered: u64,
    here: u64,
    reduced: u64,
    /// On their way back.
    back: u64,
}

/// How an operation is cut into chunks, as long as each other but for the last.
#[derive(Clone, Copy, Debug)]
struct Cut {
    bytes: usize,
    step: usize,
}

impl Cut {
    /// Into so few chunks that copies go at nearly full speed, and so many that they overlap; the more ranks there are, the
    /// more of their copies overlap each other.
    fn new(bytes: usize, layout: Layout) -> Cut {
        let parts = if layout.world < MANY { 4 } else { 2 };
        let step = bytes.div_ceil(parts).clamp(SHORTEST.min(layout.longest), layout.longest);
        let count = bytes.div_ceil(step);
        Cut { bytes, step: bytes.div_ceil(count).next_multiple_of(PAGE) }
    }

    fn count(&self) -> usize {
        self.bytes.div_ceil(self.step)
    }

    /// Where a chunk begins, or the last one ends.
    fn start(&self, index: usize) -> usize {
        (index * self.step).min(self.bytes)
    }
}

impl Progress {
    fn new(work: Work) -> Progress {
        Progress { work, count: work.count(), ordered: 0, here: 0, reduced: 0, back: 0 }
    }

    fn is_over(&self) -> bool {
        self.back == self.count
    }

    /// Orders what can be ordered: this needs nobody.
    fn begin<R: Rankwise>(&mut self, rank: &mut R) -> Result<(), R::Error> {
        while self.ordered < self.count.min(self.here + AHEAD).min(self.back + DEPTH as u64) {
            rank.order(self.work.chunk(self.ordered))?;
            self.ordered += 1;
        }
        Ok(())
    }

    /// Does what can be done now: whether there was anything.
    fn advance<R: Rankwise>(&mut self, rank: &mut R) -> Result<bool, R::Error> {
        let before = (self.here, self.reduced, self.back);
        if self.here < self.ordered && rank.is_here(self.work.chunk(self.here))? {
            self.here += 1;
            rank.publish_here(self.work.first + self.here);
        }
        self.begin(rank)?;
        if self.reduced < self.here && rank.all_here(self.work.first + self.reduced + 1) {
            rank.reduce(self.work.chunk(self.reduced));
            self.reduced += 1;
        }
        if self.back < self.reduced && rank.all_done(self.work.first + self.back + 1) {
            rank.take(self.work.chunk(self.back))?;
            self.back += 1;
        }
        Ok(before != (self.here, self.reduced, self.back))
    }
}

/// A rank with its GPU.
struct Hands<'a> {
    pinned: &'a mut Pinned,
    reduce: Reduce,
    work: Work,
}

impl Rankwise for Hands<'_> {
    type Error = Trouble;

    fn order(&mut self, chunk: Chunk) -> Result<(), Trouble> {
        let Pinned { memory, stream, rank, .. } = &*self.pinned;
        let to = memory.at(memory.layout.place(*rank, chunk.number));
        // SAFETY: a place of this rank's slots, as long as the longest chunk, which nobody reads any more (rule 3); the rest
        // `submit` was promised.
        unsafe { stream.copy_out(to, self.reduce.input.address + chunk.start as Address, chunk.bytes)? };
        stream.record(&self.pinned.place(chunk.number).here)
    }

    fn is_here(&mut self, chunk: Chunk) -> Result<bool, Trouble> {
        let place = self.pinned.place(chunk.number);
        Ok(place.here.is_reached()? && place.gone.is_reached()?)
    }

    fn publish_here(&mut self, value: u64) {
        self.pinned.memory.publish(self.pinned.rank, Counter::Here, value);
    }

    fn all_here(&mut self, value: u64) -> bool {
        self.pinned.memory.all_here(value)
    }

    fn reduce(&mut self, chunk: Chunk) {
        let Pinned { memory, scratch, rank, .. } = &mut *self.pinned;
        memory.reduce(Lane { rank: *rank, lane: 0 }, chunk, &self.work, scratch);
        memory.publish(*rank, Counter::Done(0), chunk.number + 1);
    }

    fn all_done(&mut self, value: u64) -> bool {
        self.pinned.memory.all_done(self.work.lanes, value)
    }

    fn take(&mut self, chunk: Chunk) -> Result<(), Trouble> {
        let Pinned { memory, back, .. } = &*self.pinned;
        let from = memory.at(memory.layout.place(memory.layout.results(), chunk.number));
        // SAFETY: as above; nobody writes there before this is done (rule 1).
        unsafe { back.copy_in(self.reduce.output.address + chunk.start as Address, from, chunk.bytes)? };
        back.record(&self.pinned.place(chunk.number).gone)
    }
}

impl Drop for Pinned {
    /// The memory must not go while the GPU uses it.
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
        let _ = self.back.synchronize();
    }
}

/// How many lanes of a rank an operation is worth.
fn lanes_for(cut: Cut, world: usize) -> usize {
    match cut.bytes.saturating_mul(world) <= MOST_IN_LANES {
        true => (cut.step.min(cut.bytes) / world / WORTH_WAKING).clamp(1, MOST_LANES),
        false => 1,
    }
}

/// How long to watch, when to sleep, and when to look who is alive.
struct Patience {
    since: Instant,
    looked: Instant,
    deadline: Option<Instant>,
    /// Something was wrong: what others did before that is seen at the next look.
    in_doubt: bool,
}

impl Patience {
    fn new(timeout: Duration) -> Patience {
        let now = Instant::now();
        Patience { since: now, looked: now, deadline: now.checked_add(timeout), in_doubt: false }
    }

    /// Something has happened.
    fn renew(&mut self) {
        self.since = Instant::now();
        self.in_doubt = false;
    }

    /// Waits a moment: whether it is time to look who is alive.
    fn is_over(&mut self, crowded: bool) -> bool {
        let now = Instant::now();
        if now.duration_since(self.since) < WATCHED {
            if crowded {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
            return false;
        }
        if self.in_doubt {
            return true;
        }
        std::thread::sleep(ASLEEP);
        let over = now.duration_since(self.looked) >= LOOK_AROUND;
        if over {
            self.looked = now;
        }
        over
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Fails if something was wrong at the last look already, and nothing has happened since.
    fn doubt(&mut self, why: impl FnOnce() -> Error) -> Result<(), Error> {
        if self.in_doubt {
            Err(why())
        } else {
            self.in_doubt = true;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
