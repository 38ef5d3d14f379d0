//! Why a group is aborted: written once into the arena by whoever finds out first, read by everybody.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::event::yield_now;
use super::{Arena, load, store};
use crate::call::{CALL_WORDS, Call};
use crate::{Error, Noticed, Rank};

/// Ranks that can be named as missing; a time-out names the first ones.
const MISSING: usize = if cfg!(loom) { 1 } else { 64 };
pub(crate) const VERDICT_WORDS: usize = 8 + 2 * CALL_WORDS + MISSING;

const NONE: u32 = 0;
const BEING_WRITTEN: u32 = 1;
const WRITTEN: u32 = 2;

/// How long a reader waits for a writer, who may be killed between two words.
const WRITING: Duration = if cfg!(loom) { Duration::MAX } else { Duration::from_millis(50) };

/// Why a group is aborted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    Mismatch { rank: usize, call: Call, other_rank: usize, other: Call, sequence: u64 },
    Timeout { call: Call, sequence: u64, timeout: Duration, missing: Vec<usize>, by: usize },
    Lost { rank: usize, call: Call, sequence: u64, noticed: Noticed, by: usize },
    Aborted { by: usize },
}

impl Verdict {
    pub(crate) fn words(&self) -> [u64; VERDICT_WORDS] {
        let mut words = [0; VERDICT_WORDS];
        let put_call = |words: &mut [u64], at: usize, call: &Call| {
            words[8 + at * CALL_WORDS..][..CALL_WORDS].copy_from_slice(&call.words());
        };
        match self {
            Verdict::Mismatch { rank, call, other_rank, other, sequence } => {
                words[..4].copy_from_slice(&[1, *rank as u64, *other_rank as u64, *sequence]);
                put_call(&mut words, 0, call);
                put_call(&mut words, 1, other);
            }
            Verdict::Timeout { call, sequence, timeout, missing, by } => {
                let named = missing.len().min(MISSING);
                let nanoseconds = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
                words[..6].copy_from_slice(&[2, 0, *by as u64, *sequence, nanoseconds, named as u64]);
                put_call(&mut words, 0, call);
                for (word, rank) in words[8 + 2 * CALL_WORDS..].iter_mut().zip(missing) {
                    *word = *rank as u64;
                }
            }
            Verdict::Lost { rank, call, sequence, noticed, by } => {
                words[..5].copy_from_slice(&[3, *rank as u64, *by as u64, *sequence, *noticed as u64]);
                put_call(&mut words, 0, call);
            }
            Verdict::Aborted { by } => words[..3].copy_from_slice(&[4, 0, *by as u64]),
        }
        words
    }

    pub(crate) fn from_words(words: [u64; VERDICT_WORDS]) -> Option<Verdict> {
        let call = |at: usize| {
            let words = words[8 + at * CALL_WORDS..][..CALL_WORDS].try_into().ok()?;
            Call::from_words(words)
        };
        let (rank, by, sequence) = (words[1] as usize, words[2] as usize, words[3]);
        Some(match words[0] {
            1 => Verdict::Mismatch { rank, call: call(0)?, other_rank: by, other: call(1)?, sequence },
            2 => {
                let named = (words[5] as usize).min(MISSING);
                let missing = words[8 + 2 * CALL_WORDS..][..named].iter().map(|rank| *rank as usize).collect();
                Verdict::Timeout { call: call(0)?, sequence, timeout: Duration::from_nanos(words[4]), missing, by }
            }
            3 => {
                let noticed = Noticed::from_code(words[4])?;
                Verdict::Lost { rank, call: call(0)?, sequence, noticed, by }
            }
            4 => Verdict::Aborted { by },
            _ => return None,
        })
    }

    /// Whether it ends this operation of the group. Ranks that are ahead may contradict each other, or wait in vain, in a
    /// later one: they are done with this one, and what they had for it is there or on its way.
    pub(crate) fn concerns(&self, operation: u64) -> bool {
        match self {
            // Messages are counted on their own.
            Verdict::Mismatch { call, .. } | Verdict::Timeout { call, .. } if call.kind.is_message() => true,
            Verdict::Mismatch { sequence, .. } | Verdict::Timeout { sequence, .. } => *sequence <= operation,
            Verdict::Lost { .. } | Verdict::Aborted { .. } => true,
        }
    }

    /// The same as an error; `host` knows where ranks run.
    pub(crate) fn to_error(&self, host: impl Fn(usize) -> String) -> Error {
        match self.clone() {
            Verdict::Mismatch { rank, call, other_rank, other, sequence } => {
                Error::Mismatch { rank: Rank(rank), call, other_rank: Rank(other_rank), other, sequence }
            }
            Verdict::Timeout { call, sequence, timeout, missing, by } => {
                let missing = missing.into_iter().map(Rank).collect();
                Error::Timeout { call, sequence, timeout, missing, noticed_by: Rank(by) }
            }
            Verdict::Lost { rank, call, sequence, noticed, by } => {
                let host = host(rank);
                Error::PeerLost { rank: Rank(rank), host, call, sequence, noticed, noticed_by: Rank(by) }
            }
            Verdict::Aborted { by } => Error::Aborted { by: Rank(by) },
        }
    }
}

impl Arena {
    #[inline]
    pub(crate) fn is_aborted(&self) -> bool {
        self.header().verdict_state.load(Ordering::Acquire) != NONE
    }

    /// Aborts the group for this reason, unless it is aborted already, and wakes everybody.
    pub(crate) fn abort(&self, verdict: &Verdict) {
        let header = self.header();
        let state = &header.verdict_state;
        if state.compare_exchange(NONE, BEING_WRITTEN, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        for (word, value) in header.verdict.iter().zip(verdict.words()) {
            store(word, value);
        }
        state.store(WRITTEN, Ordering::SeqCst);
        self.wake_all();
    }

    /// Whether the group is aborted for a reason that ends this operation of it.
    pub(crate) fn is_aborted_for(&self, operation: u64) -> bool {
        self.is_aborted() && self.verdict().is_none_or(|verdict| verdict.concerns(operation))
    }

    /// Why the group is aborted, once it is.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let header = self.header();
        let started = Instant::now();
        while header.verdict_state.load(Ordering::Acquire) == BEING_WRITTEN && started.elapsed() < WRITING {
            yield_now();
        }
        if header.verdict_state.load(Ordering::Acquire) != WRITTEN {
            return None;
        }
        Verdict::from_words(std::array::from_fn(|index| load(&header.verdict[index])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataType, Kind};

    #[test]
    fn the_first_verdict_stays_and_is_read_as_written() {
        let call = Call::new(Kind::AllReduce, DataType::F32, 5);
        let other = Call::new(Kind::Broadcast, DataType::I8, 6).rooted(Rank(1));
        let verdicts = [
            Verdict::Mismatch { rank: 1, call, other_rank: 2, other, sequence: 9 },
            Verdict::Timeout { call, sequence: 3, timeout: Duration::from_secs(2), missing: vec![0, 7], by: 1 },
            Verdict::Lost { rank: 4, call, sequence: 8, noticed: Noticed::ProcessEnded, by: 0 },
            Verdict::Aborted { by: 3 },
        ];
        for verdict in verdicts {
            let (arena, _file) = Arena::create(2, 4096, 1).unwrap();
            assert!(!arena.is_aborted() && arena.verdict().is_none());
            arena.abort(&verdict);
            arena.abort(&Verdict::Aborted { by: 77 });
            assert!(arena.is_aborted());
            let later = matches!(verdict, Verdict::Mismatch { sequence: 9, .. } | Verdict::Timeout { sequence: 3, .. });
            assert!(arena.is_aborted_for(9));
            assert_eq!(arena.is_aborted_for(2), !later, "ranks that are ahead end nothing but what they are at");
            assert_eq!(arena.verdict(), Some(verdict));
        }
    }
}
