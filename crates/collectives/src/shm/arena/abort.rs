//! The abort reason in the arena: written once by whichever rank finds out first, read by all.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Arena;
use super::event::{load, store, yield_now};
use crate::abort::AbortReason;

const NONE: u32 = 0;
const BEING_WRITTEN: u32 = 1;
const WRITTEN: u32 = 2;

/// How long a reader waits for a writer, who may be killed between two words.
const WRITING: Duration = if cfg!(loom) { Duration::MAX } else { Duration::from_millis(50) };

impl Arena {
    #[inline]
    pub(crate) fn is_aborted(&self) -> bool {
        self.header().abort_state.load(Ordering::Acquire) != NONE
    }

    /// Aborts the group for this reason, unless it is aborted already, and wakes everybody.
    pub(crate) fn abort(&self, reason: &AbortReason) {
        let header = self.header();
        let state = &header.abort_state;
        if state.compare_exchange(NONE, BEING_WRITTEN, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        for (word, value) in header.reason.iter().zip(reason.words()) {
            store(word, value);
        }
        state.store(WRITTEN, Ordering::SeqCst);
        self.wake_all();
    }

    /// Whether the group is aborted for a reason that ends this operation of it.
    pub(crate) fn is_aborted_for(&self, operation: u64) -> bool {
        self.is_aborted() && self.abort_reason().is_none_or(|reason| reason.concerns(operation))
    }

    /// Why the group is aborted, once it is.
    pub(crate) fn abort_reason(&self) -> Option<AbortReason> {
        let header = self.header();
        let started = Instant::now();
        while header.abort_state.load(Ordering::Acquire) == BEING_WRITTEN && started.elapsed() < WRITING {
            yield_now();
        }
        if header.abort_state.load(Ordering::Acquire) != WRITTEN {
            return None;
        }
        AbortReason::from_words(std::array::from_fn(|index| load(&header.reason[index])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Call;
    use crate::{DataType, Kind, LossCause, Rank};

    #[test]
    fn the_first_reason_stays_and_is_read_as_written() {
        let call = Call::new(Kind::AllReduce, DataType::F32, 5);
        let other = Call::new(Kind::Broadcast, DataType::I8, 6).rooted(Rank(1));
        let reasons = [
            AbortReason::Mismatch { rank: Rank(1), call, other_rank: Rank(2), other, sequence: 9 },
            AbortReason::Timeout {
                call,
                sequence: 3,
                timeout: Duration::from_secs(2),
                missing: vec![Rank(0), Rank(7)],
                by: Rank(1),
            },
            AbortReason::Lost { rank: Rank(4), call, sequence: 8, noticed: LossCause::ProcessEnded, by: Rank(0) },
            AbortReason::Aborted { by: Rank(3) },
        ];
        for reason in reasons {
            let (arena, _file) = Arena::create(2, 4096, 1).unwrap();
            assert!(!arena.is_aborted() && arena.abort_reason().is_none());
            arena.abort(&reason);
            arena.abort(&AbortReason::Aborted { by: Rank(77) });
            assert!(arena.is_aborted());
            let later =
                matches!(reason, AbortReason::Mismatch { sequence: 9, .. } | AbortReason::Timeout { sequence: 3, .. });
            assert!(arena.is_aborted_for(9));
            assert_eq!(arena.is_aborted_for(2), !later, "ranks that are ahead end nothing but what they are at");
            assert_eq!(arena.abort_reason(), Some(reason));
        }
    }
}
