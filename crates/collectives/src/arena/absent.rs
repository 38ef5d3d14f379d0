//! Who of other hosts has not come to an operation, as the first rank of this host has heard: for a rank whose time is up.
//!
//! One thread writes it, any rank may read it. The version is odd while it is written; a reader that finds it so, or changed,
//! looks again, and does without it soon: the writer may be dead.

use std::sync::atomic::{Ordering, fence};

use super::event::{AtomicU64, yield_now};
use super::{Arena, load, store};

/// Ranks that are named.
pub(crate) const MOST_ABSENT: usize = if cfg!(loom) { 1 } else { 64 };
const LOOKS: usize = 100;

#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub(super) struct Absent {
    version: AtomicU64,
    /// Of the group, and one more: none was written at first.
    operation: AtomicU64,
    count: AtomicU64,
    ranks: [AtomicU64; MOST_ABSENT],
}

impl Arena {
    /// These ranks of other hosts have not come to this operation. For the first rank alone.
    pub(crate) fn set_absent_elsewhere(&self, operation: u64, ranks: &[usize]) {
        let absent = &self.header().absent;
        let version = absent.version.load(Ordering::Relaxed);
        absent.version.store(version | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        store(&absent.operation, operation + 1);
        store(&absent.count, ranks.len().min(MOST_ABSENT) as u64);
        for (word, rank) in absent.ranks.iter().zip(ranks) {
            store(word, *rank as u64);
        }
        absent.version.store((version | 1).wrapping_add(1), Ordering::Release);
    }

    /// Who of other hosts has not come to this operation, if it is known that somebody has not.
    pub(crate) fn absent_elsewhere(&self, operation: u64) -> Option<Vec<usize>> {
        let absent = &self.header().absent;
        for _ in 0..LOOKS {
            let version = absent.version.load(Ordering::Acquire);
            let count = (load(&absent.count) as usize).min(MOST_ABSENT);
            let ranks: Vec<usize> = absent.ranks[..count].iter().map(|word| load(word) as usize).collect();
            let found = load(&absent.operation);
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && absent.version.load(Ordering::Relaxed) == version {
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
    fn who_is_absent_is_known_for_one_operation_at_a_time() {
        let (arena, _file) = Arena::create(2, 4096, 1).unwrap();
        assert_eq!(arena.absent_elsewhere(0), None);
        arena.set_absent_elsewhere(0, &[3, 9]);
        assert_eq!((arena.absent_elsewhere(0), arena.absent_elsewhere(1)), (Some(vec![3, 9]), None));
        let many: Vec<usize> = (0..200).collect();
        arena.set_absent_elsewhere(7, &many);
        assert_eq!(arena.absent_elsewhere(7), Some(many[..MOST_ABSENT].to_vec()));
        arena.set_absent_elsewhere(8, &[]);
        assert_eq!(arena.absent_elsewhere(8), None);
    }

    #[test]
    fn a_reader_never_sees_half_of_it() {
        let (arena, _file) = Arena::create(2, 4096, 1).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..20_000usize {
                    arena.set_absent_elsewhere(0, &vec![round; 1 + round % MOST_ABSENT]);
                }
            });
            for _ in 0..20_000 {
                if let Some(ranks) = arena.absent_elsewhere(0) {
                    assert!(ranks.len() == 1 + ranks[0] % MOST_ABSENT && ranks.iter().all(|rank| *rank == ranks[0]));
                }
            }
        });
    }
}
