//! What ranks tell each other on the host while the GPU works: that they have come, and with which call.

use std::time::Duration;

use crate::call::{CALL_WORDS, Call, Kind};
use crate::dtype::DataType;
use crate::operation::{Operation, Source, Target};
use crate::{Error, Group, Rank};

/// One operation while it is done.
pub(super) struct Turn<'a> {
    pub(super) call: Call,
    pub(super) group: &'a Group,
    pub(super) sequence: u64,
    pub(super) timeout: Duration,
}

/// When an operation counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// The group's stream waits for its end.
    StreamKnows,
    /// The host has waited for its end, if it is so short that waiting on the GPU would take longer.
    HostKnows,
}

/// What a rank calls and how many chunks its part takes.
pub(super) type Signal = [u64; CALL_WORDS + 1];

pub(super) fn signal(turn: &Turn<'_>, chunks: usize) -> Result<Vec<Signal>, Error> {
    let mut words: Signal = [0; CALL_WORDS + 1];
    words[..CALL_WORDS].copy_from_slice(&turn.call.words());
    words[CALL_WORDS] = chunks as u64;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let all = all_of(turn.group, &bytes, turn.timeout)?;
    let read = |bytes: &Vec<u8>| {
        let mut words: Signal = [0; CALL_WORDS + 1];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
            *word = bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        }
        words
    };
    Ok(all.iter().map(read).collect())
}

/// Whether all ranks call the same, and how many chunks it takes.
pub(super) fn agree(turn: &Turn<'_>, signals: &[Signal]) -> Result<usize, Error> {
    let &Turn { call, group, sequence, .. } = turn;
    for (other_rank, signal) in signals.iter().enumerate() {
        let mut words = [0; CALL_WORDS];
        words.copy_from_slice(&signal[..CALL_WORDS]);
        let other = Call::from_words(words).ok_or_else(|| Error::invalid("another rank sent an invalid call"))?;
        let same = match call.kind {
            // Sizes may differ from pair to pair.
            Kind::AllToAll => (other.kind, other.dtype) == (call.kind, call.dtype),
            _ => other.words() == call.words(),
        };
        if !same {
            return Err(Error::Mismatch { rank: group.rank(), call, other_rank: Rank(other_rank), other, sequence });
        }
    }
    Ok(signals.iter().map(|signal| signal[CALL_WORDS] as usize).max().unwrap_or(1))
}

/// Everybody's bytes, as many from each.
pub(super) fn all_of(group: &Group, own: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>, Error> {
    let mut all = vec![vec![0u8; own.len()]; group.world_size()];
    let outputs = all.iter_mut().map(|bytes| Target::new(bytes.as_mut_ptr(), bytes.len())).collect();
    let operation =
        Operation::AllGather { input: Source::new(own.as_ptr(), own.len()), outputs, dtype: DataType::Bytes };
    // SAFETY: memory that lives here until this returns.
    unsafe { group.run_within(operation, timeout)? };
    Ok(all)
}
