//! Where counters, slots and results lie in the shared memory: pure.

/// Chunks of a rank, and of the result, that are in memory: one comes, one is reduced, two go.
pub(super) const DEPTH: usize = 4;

/// The longest chunk, in bytes, unless there are so many ranks that the memory would be more than this in all.
pub(super) const MAX_CHUNK: usize = 1 << 20;

pub(super) const MAX_MEMORY: usize = 64 << 20;

pub(super) const PAGE: usize = 4096;

/// Threads of a rank that reduce.
pub(super) const MAX_CHANNELS: usize = 4;

/// Bytes of a counter, which has cache lines of its own, and of those of a rank.
pub(super) const COUNTER: usize = 128;

pub(super) const LINE: usize = (1 + MAX_CHANNELS) * COUNTER;

/// Where everything lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) world: usize,
    /// The most that a chunk can have, in bytes: whole pages.
    pub(super) longest: usize,
}

impl Layout {
    pub(super) fn of(world: usize) -> Layout {
        Layout { world, longest: (MAX_MEMORY / DEPTH / (world + 1)).clamp(PAGE, MAX_CHUNK) / PAGE * PAGE }
    }

    /// Of a rank, or of the results, which lie behind those of all ranks.
    pub(super) fn slots(self, rank: usize) -> usize {
        (self.world * LINE).next_multiple_of(PAGE) + rank * self.slot_bytes()
    }

    pub(super) fn slot_bytes(self) -> usize {
        DEPTH * self.longest
    }

    pub(super) fn place(self, rank: usize, chunk: u64) -> usize {
        self.slots(rank) + (chunk % DEPTH as u64) as usize * self.longest
    }

    pub(super) fn results(self) -> usize {
        self.world
    }

    pub(super) fn total(self) -> usize {
        self.slots(self.world + 1)
    }
}
