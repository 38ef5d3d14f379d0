//! all_reduce by ranks of one host, through memory of the host that all of them share and their GPUs copy to and from.
//!
//! No kernel runs, so nobody waits for a time slice of a GPU that several processes share, and nothing is copied by the
//! host: it only adds up. The memory is an anonymous file that rank 0 makes and the others open through `/proc`:
//!
//! ```text
//! counters  for each rank: here, and done of each of its channels
//! slots     for each rank: DEPTH chunks of its input, written by its GPU
//! results   DEPTH chunks of the result, of which every rank writes its segment and every GPU reads all
//! ```
//! Each rank pins its own slots and the results. Chunks are counted through the life of the group, the same on every rank;
//! chunk `c` lies at place `c % DEPTH`, of the slots and of the results:
//!
//! 1. `here > c`: the rank's input is in its slot, and its GPU has read the result of chunk `c - DEPTH`.
//! 2. When every rank's `here > c`, each channel of each reduces its segment of all slots into the results, in the order of
//!    ranks.
//! 3. `done > c`: it has. When `done > c` of all, each rank has its GPU copy the result of the chunk, and may have it write
//!    its own slot for chunk `c + DEPTH`.
//!
//! *Channels* are threads that help to reduce, where there are cores to spare: one core gets only a few gigabytes a second of
//! what a GPU has written. They are woken when an operation begins, while its first chunk is on its way.
//!
//! So while chunk `c` is reduced, `c + 1` comes and `c - 1` goes, both at the full speed of the bus. A GPU does all copies of
//! one process before it turns to the next process: few chunks are therefore ordered ahead, lest one rank's last chunk come
//! before another's first.
//!
//! | module | what it is for |
//! |---|---|
//! | `layout` | where everything lies: pure |
//! | `chunks` | how an operation is cut into chunks: pure |
//! | `progress` | what a rank does next: pure, driven by tests without a GPU |
//! | `memory` | the memory, its counters, and the reduction |
//! | `channels` | the threads that reduce |
//! | `backoff` | spin, then sleep, then look who is alive |
//! | `pin` | memory that the GPU reaches |
//!
//! Everybody watches the counters and its GPU without sleeping, for a while; then it sleeps in between and looks who is
//! alive. What is wrong then, the group finds out and says, by a barrier that cannot succeed.
#![expect(unsafe_code, reason = "memory that other processes and the GPU write to")]

mod backoff;
mod channels;
mod chunks;
mod layout;
mod memory;
mod pin;
mod progress;

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use backoff::Backoff;
use channels::{Channel, ChannelThreads};
use chunks::{Chunk, Chunking, Work, channels_for};
use layout::{DEPTH, Layout, MAX_CHANNELS};
use memory::{Counter, Memory, Name, Scratch};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pin::Pin;
use progress::{ChunkIo, Progress};

use super::driver::{Address, CudaError, Event, Gpu, Stream};
use super::layout::Range;
use super::signal::{Turn, Until, agree, all_of, signal};
use crate::dtype::{DataType, Reduction};
use crate::operation::Operation;
use crate::rank::LocalRank;
use crate::shm::arena::Arena;
use crate::{Error, Group, Rank};

/// How far apart the deadlines of ranks that have met can be.
const GRACE: Duration = Duration::from_millis(200);

/// What happens at a place.
struct SlotEvents {
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
    slot_events: Vec<SlotEvents>,
    scratch: Scratch,
    /// Chunks so far.
    chunk: u64,
    /// Whether there are more ranks than cores, so that who watches keeps another from its work.
    crowded: bool,
    /// Where the group's fate is to be seen.
    arena: Arc<Arena>,
    processes: Arc<[OwnedFd]>,
    /// How many channels every rank has.
    channels: usize,
    threads: ChannelThreads,
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
            let place = |_| Ok(SlotEvents { here: gpu.event()?, gone: gpu.event()? });
            // Half of the cores stay for others: a channel that has none keeps all ranks waiting.
            let channels = (cores / layout.world / 2).clamp(1, MAX_CHANNELS);
            Ok(Pinned {
                rank,
                stream: Arc::clone(stream),
                back: gpu.stream()?,
                slot_events: (0..DEPTH).map(place).collect::<Result<_, CudaError>>()?,
                scratch: Scratch::new(),
                chunk: 0,
                crowded: cores < layout.world,
                arena,
                processes,
                channels,
                threads: ChannelThreads::start(&memory, rank, channels)?,
                _pins: pins,
                memory,
            })
        });
        // As many channels as all have; none at all is none of this.
        let own = pinned.as_ref().map_or(0, |pinned| if pin { pinned.channels as u8 } else { 0 });
        let answers = all_of(group, &[own], timeout)?;
        let channels = answers.iter().map(|answer| usize::from(answer[0])).min().unwrap_or(0);
        let mut pinned = pinned.ok().filter(|_| channels > 0);
        pinned.iter_mut().for_each(|pinned| pinned.channels = channels);
        Ok(pinned)
    }

    /// Does an operation: whether the host has waited for its end.
    pub(super) fn perform(&mut self, reduce: Reduce, turn: &Turn<'_>, until: Until) -> Result<bool, Error> {
        let Reduce { input, dtype, reduction, .. } = reduce;
        let layout = self.memory.layout;
        let chunking = Chunking::new(input.bytes, layout);
        let channels = channels_for(chunking, layout.world).min(self.channels);
        let work = Work { first: self.chunk, chunking, dtype, reduction, channels };
        let mut progress = Progress::new(work);
        let end = work.end();
        // What is on its way while ranks meet need not be waited for afterwards.
        let mut gpu_rank = GpuRank { pinned: self, reduce, work };
        progress.begin(&mut gpu_rank)?;
        gpu_rank.pinned.threads.wake(&work);
        agree(turn, &signal(turn, progress.count as usize)?)?;
        let mut backoff = Backoff::new(turn.timeout);
        while !progress.is_over() {
            if progress.advance(&mut gpu_rank)? {
                backoff.renew();
            } else if backoff.is_over(gpu_rank.pinned.crowded) && gpu_rank.pinned.is_wrong(&backoff) {
                backoff.doubt(|| gpu_rank.pinned.give_up(end, turn))?;
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

    fn place(&self, chunk: u64) -> &SlotEvents {
        &self.slot_events[(chunk % DEPTH as u64) as usize]
    }

    /// Whether somebody is gone, has given up, or should have come long ago.
    fn is_wrong(&self, backoff: &Backoff) -> bool {
        let mut handles: Vec<PollFd<'_>> =
            self.processes.iter().map(|process| PollFd::new(process.as_fd(), PollFlags::POLLIN)).collect();
        self.arena.is_aborted()
            || backoff.is_late()
            || (0..self.processes.len()).any(|rank| self.arena.control(LocalRank(rank)).has_left())
            || poll(&mut handles, PollTimeout::ZERO).unwrap_or(0) > 0
    }

    /// Why this rank cannot go on.
    fn give_up(&self, target: u64, turn: &Turn<'_>) -> Error {
        // SAFETY: no memory is involved.
        let barrier = unsafe { turn.group.run_within(Operation::Barrier, GRACE) };
        let Turn { call, sequence, timeout, .. } = *turn;
        let late = |rank: &usize| !self.memory.has(*rank, Counter::Done(0), target);
        let missing = || (0..self.memory.layout.world).filter(late).map(Rank).collect();
        // All are alive, and have waited as long: for a GPU.
        let timed_out = || Error::Timeout { call, sequence, timeout, missing: missing(), noticed_by: Rank(self.rank) };
        barrier.err().unwrap_or_else(timed_out)
    }
}

/// A rank with its GPU.
struct GpuRank<'a> {
    pinned: &'a mut Pinned,
    reduce: Reduce,
    work: Work,
}

impl ChunkIo for GpuRank<'_> {
    type Error = CudaError;

    fn order(&mut self, chunk: Chunk) -> Result<(), CudaError> {
        let Pinned { memory, stream, rank, .. } = &*self.pinned;
        let to = memory.at(memory.layout.place(*rank, chunk.number));
        // SAFETY: a place of this rank's slots, as long as the longest chunk, which nobody reads any more (rule 3); the rest
        // `submit` was promised.
        unsafe { stream.copy_out(to, self.reduce.input.address + chunk.start as Address, chunk.bytes)? };
        stream.record(&self.pinned.place(chunk.number).here)
    }

    fn is_here(&mut self, chunk: Chunk) -> Result<bool, CudaError> {
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
        memory.reduce(Channel { rank: *rank, channel: 0 }, chunk, &self.work, scratch);
        memory.publish(*rank, Counter::Done(0), chunk.number + 1);
    }

    fn all_done(&mut self, value: u64) -> bool {
        self.pinned.memory.all_done(self.work.channels, value)
    }

    fn take(&mut self, chunk: Chunk) -> Result<(), CudaError> {
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

#[cfg(test)]
mod tests;
