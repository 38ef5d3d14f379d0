//! What hosts say to each other over the connection of [`super::heartbeat`], as bytes.
//!
//! ```text
//! 0                                              a beat
//! 1 reason                                       the group is aborted; the reason follows
//! 2                                              goodbye: from here on silence means nothing
//! 3 operation(8) count(2) { rank(4) }*           who of this host has not come to it; little endian
//! ```

use crate::Rank;
use crate::abort::{ABORT_BYTES, AbortReason};
use crate::shm::arena::late::MAX_LATE;

pub(super) const BEAT_BYTE: u8 = 0;
pub(super) const ABORT_BYTE: u8 = 1;
pub(super) const GOODBYE_BYTE: u8 = 2;
const LATE_BYTE: u8 = 3;
/// What comes before the ranks that have not come.
const LATE_BYTES: usize = 10;

/// What a host sent, besides beats.
#[derive(Debug, PartialEq)]
pub(crate) enum HeartbeatMessage {
    Abort(Box<AbortReason>),
    Goodbye,
    Late(LateReport),
    /// Nothing that this version understands.
    Garbled,
}

/// Who of a host has not come to an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LateReport {
    pub(super) operation: u64,
    pub(super) ranks: Vec<Rank>,
}

impl LateReport {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let named = &self.ranks[..self.ranks.len().min(MAX_LATE)];
        let mut bytes = vec![LATE_BYTE];
        bytes.extend(self.operation.to_le_bytes());
        bytes.extend((named.len() as u16).to_le_bytes());
        bytes.extend(named.iter().flat_map(|rank| (rank.0 as u32).to_le_bytes()));
        bytes
    }

    /// How long the whole is, as far as these bytes tell; `None` if no host sends such a report.
    fn length(bytes: &[u8]) -> Option<usize> {
        let Some(count) = bytes.get(8..LATE_BYTES) else { return Some(LATE_BYTES) };
        let count = usize::from(u16::from_le_bytes([count[0], count[1]]));
        (count <= MAX_LATE).then_some(LATE_BYTES + 4 * count)
    }

    fn from_bytes(bytes: &[u8]) -> LateReport {
        let operation = u64::from_le_bytes(std::array::from_fn(|index| bytes[index]));
        let rank = |word: &[u8]| Rank(u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as usize);
        LateReport { operation, ranks: bytes[LATE_BYTES..].chunks_exact(4).map(rank).collect() }
    }
}

/// Finds messages in bytes as they come.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// What was begun, by its first byte, as far as it is there.
    begun: Option<(u8, Vec<u8>)>,
}

impl Decoder {
    /// What these bytes complete, if it is more than beats. After anything but [`HeartbeatMessage::Late`] the rest means
    /// nothing.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<HeartbeatMessage> {
        let mut decoded = Vec::new();
        for byte in bytes {
            let message =
                match &mut self.begun {
                    None => match *byte {
                        BEAT_BYTE => None,
                        ABORT_BYTE | LATE_BYTE => {
                            self.begun = Some((*byte, Vec::new()));
                            None
                        }
                        GOODBYE_BYTE => Some(HeartbeatMessage::Goodbye),
                        _ => Some(HeartbeatMessage::Garbled),
                    },
                    Some((kind, body)) => {
                        body.push(*byte);
                        let length = if *kind == ABORT_BYTE { Some(ABORT_BYTES) } else { LateReport::length(body) };
                        match length {
                            None => Some(HeartbeatMessage::Garbled),
                            Some(length) if body.len() < length => None,
                            Some(_) if *kind == LATE_BYTE => Some(HeartbeatMessage::Late(LateReport::from_bytes(body))),
                            Some(_) => {
                                let reason = AbortReason::from_bytes(body);
                                Some(reason.map_or(HeartbeatMessage::Garbled, |reason| {
                                    HeartbeatMessage::Abort(Box::new(reason))
                                }))
                            }
                        }
                    }
                };
            let Some(message) = message else { continue };
            self.begun = None;
            let goes_on = matches!(message, HeartbeatMessage::Late(_));
            decoded.push(message);
            if !goes_on {
                break;
            }
        }
        decoded
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..1500), cut in 0usize..1500) {
            let mut decoder = Decoder::default();
            let cut = cut.min(bytes.len());
            let first = decoder.feed(&bytes[..cut]);
            let _ = first.is_empty().then(|| decoder.feed(&bytes[cut..]));
        }

        #[test]
        fn an_abort_is_decoded_however_it_is_cut(beats in 0usize..9, cut in 0usize..700) {
            let reason = AbortReason::Aborted { by: Rank(7) };
            let mut bytes = vec![BEAT_BYTE; beats];
            bytes.push(ABORT_BYTE);
            bytes.extend(reason.to_bytes());
            let mut decoder = Decoder::default();
            let cut = cut.min(bytes.len() - 1);
            prop_assert_eq!(decoder.feed(&bytes[..cut]), []);
            prop_assert_eq!(decoder.feed(&bytes[cut..]), [HeartbeatMessage::Abort(Box::new(reason))]);
            prop_assert_eq!(Decoder::default().feed(&[0, 0, GOODBYE_BYTE]), [HeartbeatMessage::Goodbye]);
            prop_assert_eq!(Decoder::default().feed(&[9]), [HeartbeatMessage::Garbled]);
        }

        #[test]
        fn a_late_report_is_decoded_however_it_is_cut(
            operation: u64,
            ranks in proptest::collection::vec((0usize..1 << 32).prop_map(Rank), 0..100),
            cut in 0usize..600,
        ) {
            let late = LateReport { operation, ranks };
            // Again and again, with beats in between, and a goodbye behind.
            let bytes = [&late.to_bytes()[..], &[BEAT_BYTE], &late.to_bytes(), &[GOODBYE_BYTE]].concat();
            let cut = cut.min(bytes.len());
            let mut decoder = Decoder::default();
            let mut decoded = decoder.feed(&bytes[..cut]);
            decoded.extend(decoder.feed(&bytes[cut..]));
            let ranks = late.ranks[..late.ranks.len().min(MAX_LATE)].to_vec();
            let named = || HeartbeatMessage::Late(LateReport { operation, ranks: ranks.clone() });
            prop_assert_eq!(decoded, [named(), named(), HeartbeatMessage::Goodbye]);
        }
    }
}
