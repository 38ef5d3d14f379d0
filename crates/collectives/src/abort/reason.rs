//! Why a group is aborted, as data: eight-byte words in shared memory, bytes on the network, an error for callers.

use std::time::Duration;

use crate::call::{CALL_WORDS, Call};
use crate::{Error, LossCause, Rank};

/// Ranks that can be named as missing; a time-out names the first ones.
const MISSING: usize = if cfg!(loom) { 1 } else { 64 };
pub(crate) const ABORT_WORDS: usize = 8 + 2 * CALL_WORDS + MISSING;
pub(crate) const ABORT_BYTES: usize = 8 * ABORT_WORDS;

/// Why a group is aborted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AbortReason {
    Mismatch { rank: Rank, call: Call, other_rank: Rank, other: Call, sequence: u64 },
    Timeout { call: Call, sequence: u64, timeout: Duration, missing: Vec<Rank>, by: Rank },
    Lost { rank: Rank, call: Call, sequence: u64, noticed: LossCause, by: Rank },
    Aborted { by: Rank },
}

impl AbortReason {
    pub(crate) fn words(&self) -> [u64; ABORT_WORDS] {
        let mut words = [0; ABORT_WORDS];
        let put_call = |words: &mut [u64], at: usize, call: &Call| {
            words[8 + at * CALL_WORDS..][..CALL_WORDS].copy_from_slice(&call.words());
        };
        match self {
            AbortReason::Mismatch { rank, call, other_rank, other, sequence } => {
                words[..4].copy_from_slice(&[1, rank.0 as u64, other_rank.0 as u64, *sequence]);
                put_call(&mut words, 0, call);
                put_call(&mut words, 1, other);
            }
            AbortReason::Timeout { call, sequence, timeout, missing, by } => {
                let named = missing.len().min(MISSING);
                let nanoseconds = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
                words[..6].copy_from_slice(&[2, 0, by.0 as u64, *sequence, nanoseconds, named as u64]);
                put_call(&mut words, 0, call);
                for (word, rank) in words[8 + 2 * CALL_WORDS..].iter_mut().zip(missing) {
                    *word = rank.0 as u64;
                }
            }
            AbortReason::Lost { rank, call, sequence, noticed, by } => {
                words[..5].copy_from_slice(&[3, rank.0 as u64, by.0 as u64, *sequence, *noticed as u64]);
                put_call(&mut words, 0, call);
            }
            AbortReason::Aborted { by } => words[..3].copy_from_slice(&[4, 0, by.0 as u64]),
        }
        words
    }

    pub(crate) fn from_words(words: [u64; ABORT_WORDS]) -> Option<AbortReason> {
        let call = |at: usize| {
            let words = words[8 + at * CALL_WORDS..][..CALL_WORDS].try_into().ok()?;
            Call::from_words(words)
        };
        let (rank, by, sequence) = (Rank(words[1] as usize), Rank(words[2] as usize), words[3]);
        Some(match words[0] {
            1 => AbortReason::Mismatch { rank, call: call(0)?, other_rank: by, other: call(1)?, sequence },
            2 => {
                let named = (words[5] as usize).min(MISSING);
                let missing = words[8 + 2 * CALL_WORDS..][..named].iter().map(|rank| Rank(*rank as usize)).collect();
                AbortReason::Timeout { call: call(0)?, sequence, timeout: Duration::from_nanos(words[4]), missing, by }
            }
            3 => {
                let noticed = LossCause::from_code(words[4])?;
                AbortReason::Lost { rank, call: call(0)?, sequence, noticed, by }
            }
            4 => AbortReason::Aborted { by },
            _ => return None,
        })
    }

    /// Whether it ends this operation of the group. Ranks that are ahead may contradict each other, or wait in vain, in a
    /// later one: they are done with this one, and what they had for it is there or on its way.
    pub(crate) fn concerns(&self, operation: u64) -> bool {
        match self {
            // Messages are counted on their own.
            AbortReason::Mismatch { call, .. } | AbortReason::Timeout { call, .. } if call.kind.is_message() => true,
            AbortReason::Mismatch { sequence, .. } | AbortReason::Timeout { sequence, .. } => *sequence <= operation,
            AbortReason::Lost { .. } | AbortReason::Aborted { .. } => true,
        }
    }

    /// Little endian, [`ABORT_BYTES`] long.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.words().iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// `None` for anything that is no reason of this version.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<AbortReason> {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: &[[u8; 8]; ABORT_WORDS] = words.try_into().ok().filter(|_| rest.is_empty())?;
        AbortReason::from_words(words.map(u64::from_le_bytes))
    }

    /// The error that callers get; `hosts` says where ranks run.
    pub(crate) fn to_error(&self, hosts: &[String]) -> Error {
        match self.clone() {
            AbortReason::Mismatch { rank, call, other_rank, other, sequence } => {
                Error::Mismatch { rank, call, other_rank, other, sequence }
            }
            AbortReason::Timeout { call, sequence, timeout, missing, by } => {
                Error::Timeout { call, sequence, timeout, missing, noticed_by: by }
            }
            AbortReason::Lost { rank, call, sequence, noticed, by } => {
                let host = hosts.get(rank.0).cloned().unwrap_or_default();
                Error::PeerLost { rank, host, call, sequence, noticed, noticed_by: by }
            }
            AbortReason::Aborted { by } => Error::Aborted { by },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_reason_or_nothing(
            bytes in proptest::collection::vec(any::<u8>(), ABORT_BYTES),
            kind in 0u8..6,
        ) {
            let mut bytes = bytes;
            bytes[..8].copy_from_slice(&u64::from(kind).to_le_bytes());
            if let Some(reason) = AbortReason::from_bytes(&bytes) {
                // Errors are made of reasons whatever is in them.
                let _ = reason.to_error(&[]).to_string();
                prop_assert_eq!(AbortReason::from_bytes(&reason.to_bytes()), Some(reason));
            }
            prop_assert_eq!(AbortReason::from_bytes(&bytes[1..]), None);
        }
    }
}
