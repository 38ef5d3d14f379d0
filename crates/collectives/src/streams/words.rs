//! What hosts say to each other over the connection of [`super::pulse`], as bytes.
//!
//! ```text
//! 0                                              a beat
//! 1 verdict                                      the group is aborted; the words follow
//! 2                                              goodbye: from here on silence means nothing
//! 3 operation(8) count(2) { rank(4) }*           who of this host has not come to it; little endian
//! ```

use super::wire::{self, VERDICT_BYTES};
use crate::arena::absent::MOST_ABSENT;
use crate::arena::verdict::Verdict;

pub(super) const BEAT_BYTE: u8 = 0;
pub(super) const VERDICT_BYTE: u8 = 1;
pub(super) const GOODBYE_BYTE: u8 = 2;
const ABSENT_BYTE: u8 = 3;
/// What comes before the ranks that have not come.
const ABSENT_BYTES: usize = 10;

/// What a host said.
#[derive(Debug, PartialEq)]
pub(crate) enum Word {
    Verdict(Box<Verdict>),
    Goodbye,
    Absent(Absent),
    /// Nothing that this version understands.
    Garbled,
}

/// Who of a host has not come to an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Absent {
    pub(super) operation: u64,
    pub(super) ranks: Vec<usize>,
}

impl Absent {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let named = &self.ranks[..self.ranks.len().min(MOST_ABSENT)];
        let mut bytes = vec![ABSENT_BYTE];
        bytes.extend(self.operation.to_le_bytes());
        bytes.extend((named.len() as u16).to_le_bytes());
        bytes.extend(named.iter().flat_map(|rank| (*rank as u32).to_le_bytes()));
        bytes
    }

    /// How long the whole is, as far as these bytes tell; `None` if nobody says such a thing.
    fn length(bytes: &[u8]) -> Option<usize> {
        let Some(count) = bytes.get(8..ABSENT_BYTES) else { return Some(ABSENT_BYTES) };
        let count = usize::from(u16::from_le_bytes([count[0], count[1]]));
        (count <= MOST_ABSENT).then_some(ABSENT_BYTES + 4 * count)
    }

    fn from_bytes(bytes: &[u8]) -> Absent {
        let operation = u64::from_le_bytes(std::array::from_fn(|index| bytes[index]));
        let rank = |word: &[u8]| u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as usize;
        Absent { operation, ranks: bytes[ABSENT_BYTES..].chunks_exact(4).map(rank).collect() }
    }
}

/// Takes bytes apart as they come.
#[derive(Debug, Default)]
pub(crate) struct Ear {
    /// What was begun, by its first byte, as far as it is there.
    begun: Option<(u8, Vec<u8>)>,
}

impl Ear {
    /// What these bytes complete, if it is more than beats. After anything but [`Word::Absent`] the rest means nothing.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> Vec<Word> {
        let mut heard = Vec::new();
        for byte in bytes {
            let word = match &mut self.begun {
                None => match *byte {
                    BEAT_BYTE => None,
                    VERDICT_BYTE | ABSENT_BYTE => {
                        self.begun = Some((*byte, Vec::new()));
                        None
                    }
                    GOODBYE_BYTE => Some(Word::Goodbye),
                    _ => Some(Word::Garbled),
                },
                Some((kind, words)) => {
                    words.push(*byte);
                    let length = if *kind == VERDICT_BYTE { Some(VERDICT_BYTES) } else { Absent::length(words) };
                    match length {
                        None => Some(Word::Garbled),
                        Some(length) if words.len() < length => None,
                        Some(_) if *kind == ABSENT_BYTE => Some(Word::Absent(Absent::from_bytes(words))),
                        Some(_) => {
                            let verdict = wire::verdict_from_bytes(words);
                            Some(verdict.map_or(Word::Garbled, |verdict| Word::Verdict(Box::new(verdict))))
                        }
                    }
                }
            };
            let Some(word) = word else { continue };
            self.begun = None;
            let goes_on = matches!(word, Word::Absent(_));
            heard.push(word);
            if !goes_on {
                break;
            }
        }
        heard
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_heard_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..1500), cut in 0usize..1500) {
            let mut ear = Ear::default();
            let cut = cut.min(bytes.len());
            let first = ear.hear(&bytes[..cut]);
            let _ = first.is_empty().then(|| ear.hear(&bytes[cut..]));
        }

        #[test]
        fn a_verdict_is_heard_however_it_is_cut(beats in 0usize..9, cut in 0usize..700) {
            let verdict = Verdict::Aborted { by: 7 };
            let mut bytes = vec![BEAT_BYTE; beats];
            bytes.push(VERDICT_BYTE);
            bytes.extend(wire::verdict_to_bytes(&verdict));
            let mut ear = Ear::default();
            let cut = cut.min(bytes.len() - 1);
            prop_assert_eq!(ear.hear(&bytes[..cut]), []);
            prop_assert_eq!(ear.hear(&bytes[cut..]), [Word::Verdict(Box::new(verdict))]);
            prop_assert_eq!(Ear::default().hear(&[0, 0, GOODBYE_BYTE]), [Word::Goodbye]);
            prop_assert_eq!(Ear::default().hear(&[9]), [Word::Garbled]);
        }

        #[test]
        fn who_is_absent_is_heard_however_it_is_cut(
            operation: u64,
            ranks in proptest::collection::vec(0usize..1 << 32, 0..100),
            cut in 0usize..600,
        ) {
            let absent = Absent { operation, ranks };
            // Again and again, with beats in between, and a goodbye behind.
            let bytes = [&absent.to_bytes()[..], &[BEAT_BYTE], &absent.to_bytes(), &[GOODBYE_BYTE]].concat();
            let cut = cut.min(bytes.len());
            let mut ear = Ear::default();
            let mut heard = ear.hear(&bytes[..cut]);
            heard.extend(ear.hear(&bytes[cut..]));
            let ranks = absent.ranks[..absent.ranks.len().min(MOST_ABSENT)].to_vec();
            let named = || Word::Absent(Absent { operation, ranks: ranks.clone() });
            prop_assert_eq!(heard, [named(), named(), Word::Goodbye]);
        }
    }
}
