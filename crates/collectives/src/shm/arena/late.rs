//! Which ranks of other hosts have not come to an operation, as the first rank of this host knows: for a rank whose deadline passes.
//!
//! One thread writes it, any rank may read it. The version is odd while it is written; a reader that finds it so, or changed,
//! looks again, and does without it soon: the writer may be dead.

use std::sync::atomic::{Ordering, fence};

use super::Arena;
use super::event::{AtomicU64, load, store, yield_now};
use crate::Rank;

/// Ranks that are named.
pub(crate) const MAX_LATE: usize = if cfg!(loom) { 1 } else { 64 };
const MAX_READS: usize = 100;

#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub(super) struct LateRanks {
    version: AtomicU64,
    /// Of the group, and one more: none was written at first.
    operation: AtomicU64,
    count: AtomicU64,
    ranks: [AtomicU64; MAX_LATE],
}

impl Arena {
    /// These ranks of other hosts have not come to this operation. For the first rank alone.
    pub(crate) fn set_late_elsewhere(&self, operation: u64, ranks: &[Rank]) {
        let late = &self.header().late;
        let version = late.version.load(Ordering::Relaxed);
        late.version.store(version | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        store(&late.operation, operation + 1);
        store(&late.count, ranks.len().min(MAX_LATE) as u64);
        for (word, rank) in late.ranks.iter().zip(ranks) {
            store(word, rank.0 as u64);
        }
        late.version.store((version | 1).wrapping_add(1), Ordering::Release);
    }

    /// Who of other hosts has not come to this operation, if it is known that somebody has not.
    pub(crate) fn late_elsewhere(&self, operation: u64) -> Option<Vec<Rank>> {
        let late = &self.header().late;
        for _ in 0..MAX_READS {
            let version = late.version.load(Ordering::Acquire);
            let count = (load(&late.count) as usize).min(MAX_LATE);
            let ranks: Vec<Rank> = late.ranks[..count].iter().map(|word| Rank(load(word) as usize)).collect();
            let found = load(&late.operation);
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && late.version.load(Ordering::Relaxed) == version {
                return Some(ranks).filter(|ranks| found == operation + 1 && !ranks.is_empty());
            }
            yield_now();
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn late_ranks_are_known_for_one_operation_at_a_time() {
        let (arena, _file) = Arena::create(2, 4096, 1).unwrap();
        assert_eq!(arena.late_elsewhere(0), None);
        arena.set_late_elsewhere(0, &[Rank(3), Rank(9)]);
        assert_eq!((arena.late_elsewhere(0), arena.late_elsewhere(1)), (Some(vec![Rank(3), Rank(9)]), None));
        let many: Vec<Rank> = Rank::all(200).collect();
        arena.set_late_elsewhere(7, &many);
        assert_eq!(arena.late_elsewhere(7), Some(many[..MAX_LATE].to_vec()));
        arena.set_late_elsewhere(8, &[]);
        assert_eq!(arena.late_elsewhere(8), None);
    }

    #[test]
    fn a_reader_never_sees_half_of_it() {
        let (arena, _file) = Arena::create(2, 4096, 1).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..20_000usize {
                    arena.set_late_elsewhere(0, &vec![Rank(round); 1 + round % MAX_LATE]);
                }
            });
            for _ in 0..20_000 {
                if let Some(ranks) = arena.late_elsewhere(0) {
                    assert!(ranks.len() == 1 + ranks[0].0 % MAX_LATE && ranks.iter().all(|rank| *rank == ranks[0]));
                }
            }
        });
    }
}
