//! What streams of different processes wait for: a counter for each rank and phase, in memory of the host that all ranks
//! share and their GPU reads and writes.
//!
//! A stream moves its rank's counters forward when it has done something, and waits for those of others. Unlike an event,
//! a counter can also be moved by the host: when a rank is gone or the group is aborted, [`Flags::release`] lets every
//! stream pass that waits for it, so that no process hangs in its own GPU. What the stream then computes is undefined.
//!
//! Counters wrap around; a wait compares distances.
#![expect(unsafe_code, reason = "words in memory that other processes and the GPU write to")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::driver::{Address, CudaError, Gpu, Stream};
use crate::shm::arena::{Arena, FLAG_LINE};

/// How far ahead of every wait a released counter is.
const FAR_AHEAD: u32 = 1 << 30;

/// What a rank's stream has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Laid out its part for so many turns.
    Written,
    /// Taken the others' parts of so many turns.
    Read,
}

impl Phase {
    const ALL: [Phase; 2] = [Phase::Written, Phase::Read];

    /// In a rank's line: each has a cache line of its own.
    const fn offset(self) -> usize {
        match self {
            Phase::Written => 0,
            Phase::Read => FLAG_LINE / 2,
        }
    }
}

/// The counters of all ranks.
pub(super) struct Flags {
    gpu: Arc<Gpu>,
    /// Keeps the memory mapped.
    arena: Arc<Arena>,
    address: Address,
    /// Turns that this rank has begun: what waits are about, give or take one or two.
    turns: AtomicU32,
}

impl Flags {
    /// Has the GPU reach the counters, and tries it on this rank's own.
    pub(super) fn new(gpu: &Arc<Gpu>, arena: Arc<Arena>, rank: usize, stream: &Stream) -> Result<Flags, CudaError> {
        let (start, bytes) = arena.flags();
        gpu.pin(start.cast(), bytes)?;
        let mut flags = Flags { gpu: Arc::clone(gpu), arena, address: 0, turns: AtomicU32::new(0) };
        flags.address = gpu.device_address(start.cast())?;
        flags.write(stream, rank, Phase::Written, 0)?;
        flags.wait(stream, rank, Phase::Written, 0)?;
        stream.synchronize()?;
        Ok(flags)
    }

    /// Has a stream set this rank's counter when it has done everything before.
    pub(super) fn write(&self, stream: &Stream, rank: usize, phase: Phase, value: u32) -> Result<(), CudaError> {
        stream.write_value(self.word(rank, phase), value)
    }

    /// Has a stream wait until a rank's counter is at least this.
    pub(super) fn wait(&self, stream: &Stream, rank: usize, phase: Phase, value: u32) -> Result<(), CudaError> {
        stream.wait_value(self.word(rank, phase), value)
    }

    /// A turn begins.
    pub(super) fn begin(&self, turn: u32) {
        self.turns.store(turn, Ordering::Relaxed);
    }

    /// Lets every stream pass that waits for this rank. A rank that lives may undo it with what its stream still writes.
    pub(super) fn release(&self, rank: usize) {
        let value = self.turns.load(Ordering::Relaxed).wrapping_add(FAR_AHEAD);
        for phase in Phase::ALL {
            let (start, _) = self.arena.flags();
            let word = start.wrapping_add(rank * FLAG_LINE + phase.offset()).cast::<AtomicU32>();
            // SAFETY: an aligned word of the rank's line, which stays mapped; everybody treats it as an atomic one.
            unsafe { &*word }.store(value, Ordering::Release);
        }
    }

    fn word(&self, rank: usize, phase: Phase) -> Address {
        self.address + (rank * FLAG_LINE + phase.offset()) as Address
    }
}

impl Drop for Flags {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            self.gpu.unpin(self.arena.flags().0.cast());
        }
    }
}
