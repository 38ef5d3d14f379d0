//! How long ranks wait for each other while they connect, and how they learn that it is in vain.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::sync::until;

/// The newest generation that anybody knows of: ranks that wait for each other at an earlier one need not any more, because
/// a rank that they wait for is lost.
#[derive(Clone, Debug, Default)]
pub struct NewestGeneration(Arc<AtomicU64>);

impl NewestGeneration {
    /// A rank was lost, and this generation is what follows.
    pub fn announce(&self, generation: u64) {
        self.0.fetch_max(generation, Ordering::Release);
    }

    pub(crate) fn follows(&self, generation: u64) -> bool {
        self.0.load(Ordering::Acquire) > generation
    }
}

/// How often ranks that wait for each other while they connect look whether they wait in vain.
pub(crate) const LOOK: Duration = Duration::from_millis(10);

/// How long ranks wait for each other while they connect.
#[derive(Clone, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    pub(crate) generation: u64,
    pub(crate) newest: NewestGeneration,
}

impl Deadline {
    /// Which no later generation ends.
    #[cfg(test)]
    pub(crate) fn fixed(at: Instant) -> Deadline {
        Deadline { at, generation: 0, newest: NewestGeneration::default() }
    }

    /// Whether a later generation has begun, so that who is awaited may be lost.
    pub(crate) fn is_superseded(&self) -> bool {
        self.newest.follows(self.generation)
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.is_superseded() || Instant::now() >= self.at
    }

    /// How long to sleep before the next look.
    pub(crate) fn nap(&self) -> Duration {
        until(self.at).min(LOOK)
    }
}
