//! How an operation is cut into chunks, and how many channels it is worth: pure.

use super::layout::{Layout, MAX_CHANNELS, PAGE};
use crate::dtype::{DataType, Reduction};

/// The shortest chunk of several: what the GPU takes to begin a copy weighs more than waiting for all of it.
pub(super) const MIN_CHUNK: usize = 512 << 10;

/// From so many ranks on, copies of different ranks take longer than anything else.
pub(super) const MANY: usize = 8;

/// What each of them must have of a chunk to be worth waking, in bytes.
pub(super) const WORTH_WAKING: usize = 32 << 10;

/// Up to so many bytes of all ranks' inputs they are woken: of more, copies take longer than reducing.
pub(super) const MAX_BYTES_IN_CHANNELS: usize = 8 << 20;

/// A chunk of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) number: u64,
    /// Where it begins in the tensor.
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// How an operation is cut into chunks, as long as each other but for the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunking {
    pub(super) bytes: usize,
    pub(super) step: usize,
}

impl Chunking {
    /// Into so few chunks that copies go at nearly full speed, and so many that they overlap; the more ranks there are, the
    /// more of their copies overlap each other.
    pub(super) fn new(bytes: usize, layout: Layout) -> Chunking {
        let parts = if layout.world < MANY { 4 } else { 2 };
        let step = bytes.div_ceil(parts).clamp(MIN_CHUNK.min(layout.longest), layout.longest);
        let count = bytes.div_ceil(step);
        Chunking { bytes, step: bytes.div_ceil(count).next_multiple_of(PAGE) }
    }

    pub(super) fn count(&self) -> usize {
        self.bytes.div_ceil(self.step)
    }

    /// Where a chunk begins, or the last one ends.
    pub(super) fn start(&self, index: usize) -> usize {
        (index * self.step).min(self.bytes)
    }
}

/// What channels have to know of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Chunks before this operation.
    pub(super) first: u64,
    pub(super) chunking: Chunking,
    pub(super) dtype: DataType,
    pub(super) reduction: Reduction,
    /// How many channels of each rank work.
    pub(super) channels: usize,
}

impl Work {
    pub(super) fn chunk(&self, index: u64) -> Chunk {
        let (start, end) = (self.chunking.start(index as usize), self.chunking.start(index as usize + 1));
        Chunk { number: self.first + index, start, bytes: end - start }
    }

    pub(super) fn count(&self) -> u64 {
        self.chunking.count() as u64
    }

    pub(super) fn end(&self) -> u64 {
        self.first + self.count()
    }
}

/// How many channels of a rank an operation is worth.
pub(super) fn channels_for(chunking: Chunking, world: usize) -> usize {
    match chunking.bytes.saturating_mul(world) <= MAX_BYTES_IN_CHANNELS {
        true => (chunking.step.min(chunking.bytes) / world / WORTH_WAKING).clamp(1, MAX_CHANNELS),
        false => 1,
    }
}
