//! What a rank does next, chunk by chunk: pure.

use super::chunks::{Chunk, Work};
use super::layout::DEPTH;

/// Chunks that are ordered from the GPU and not here yet.
pub(super) const AHEAD: u64 = 1;

/// What one rank can do, and see.
pub(super) trait ChunkIo {
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
pub(super) struct Progress {
    pub(super) work: Work,
    pub(super) count: u64,
    pub(super) ordered: u64,
    pub(super) here: u64,
    pub(super) reduced: u64,
    /// On their way back.
    pub(super) back: u64,
}

impl Progress {
    pub(super) fn new(work: Work) -> Progress {
        Progress { work, count: work.count(), ordered: 0, here: 0, reduced: 0, back: 0 }
    }

    pub(super) fn is_over(&self) -> bool {
        self.back == self.count
    }

    /// Orders what can be ordered: this needs nobody.
    pub(super) fn begin<R: ChunkIo>(&mut self, rank: &mut R) -> Result<(), R::Error> {
        while self.ordered < self.count.min(self.here + AHEAD).min(self.back + DEPTH as u64) {
            rank.order(self.work.chunk(self.ordered))?;
            self.ordered += 1;
        }
        Ok(())
    }

    /// Does what can be done now: whether there was anything.
    pub(super) fn advance<R: ChunkIo>(&mut self, rank: &mut R) -> Result<bool, R::Error> {
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
