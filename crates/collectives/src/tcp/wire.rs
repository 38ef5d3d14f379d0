//! What ranks say to each other over the network, as bytes; all numbers are little endian.
//!
//! ```text
//! caller → called   magic(8) token of the called(16) generation(8) world(4) rank(4) purpose(4) 0(4)
//! called → caller   magic(8) token of the caller(16) 0(4)                 welcome
//!                   magic(8) token of the called(16) length(4) text       why not
//! caller → called   magic(8)                                              this connection is the one
//!
//! message           magic(4) kind(4) generation(8) sequence(8) step(8) call(24) sends(8) expects(8) length(8), then the bytes
//! ```
//! The tokens are in the addresses, which only members have: a stranger is not let in, and a caller notices when somebody
//! else answers at an address that the other rank believes to be its own. Nothing is encrypted.

use crate::call::CALL_WORDS;

const HELLO_MAGIC: [u8; 8] = *b"instepS1";
const ANSWER_MAGIC: [u8; 8] = *b"instepW1";
pub(crate) const CONFIRMATION: [u8; 8] = *b"instepC1";
const MESSAGE_MAGIC: u32 = u32::from_le_bytes(*b"iS01");
pub(crate) const HELLO_BYTES: usize = 48;
pub(crate) const ANSWER_BYTES: usize = 28;
pub(crate) const HEADER_BYTES: usize = 80;
/// The longest text of a refusal.
pub(crate) const LONGEST_TEXT: usize = 1024;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Purpose {
    /// Collectives between any two ranks.
    Collectives = 0,
    P2p,
    /// Collectives between ranks of the same number in their hosts.
    Rail,
    /// Between the first ranks of hosts, see [`super::heartbeat`].
    Heartbeat,
}

impl Purpose {
    pub(crate) const ALL: [Purpose; 4] = [Purpose::Collectives, Purpose::P2p, Purpose::Rail, Purpose::Heartbeat];
}

/// Who opens a connection, to whom, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Of the rank that is called.
    pub(crate) token: [u8; 16],
    pub(crate) generation: u64,
    pub(crate) world: u32,
    /// Of the caller.
    pub(crate) rank: u32,
    pub(crate) purpose: Purpose,
}

impl Hello {
    pub(crate) fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&HELLO_MAGIC);
        bytes[8..24].copy_from_slice(&self.token);
        bytes[24..32].copy_from_slice(&self.generation.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.world.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.rank.to_le_bytes());
        bytes[40..44].copy_from_slice(&(self.purpose as u32).to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; HELLO_BYTES]) -> Option<Hello> {
        let purpose = word(bytes, 40);
        let hello = Hello {
            token: std::array::from_fn(|index| bytes[8 + index]),
            generation: word(bytes, 24),
            world: word(bytes, 32) as u32,
            rank: (word(bytes, 32) >> 32) as u32,
            purpose: Purpose::ALL.into_iter().find(|known| *known as u64 == purpose)?,
        };
        (bytes[..8] == HELLO_MAGIC).then_some(hello)
    }
}

/// An answer: welcome with the caller's token, or a refusal with that of the called.
pub(crate) fn answer(token: [u8; 16], text: &str) -> Vec<u8> {
    let text = &text.as_bytes()[..text.len().min(LONGEST_TEXT)];
    [&ANSWER_MAGIC[..], &token, &(text.len() as u32).to_le_bytes(), text].concat()
}

/// How long the text of an answer with this token is; `None` if it is none.
pub(crate) fn answer_length(bytes: &[u8; ANSWER_BYTES], token: [u8; 16]) -> Option<usize> {
    let length = u32::from_le_bytes(std::array::from_fn(|index| bytes[24 + index])) as usize;
    (bytes[..8] == ANSWER_MAGIC && bytes[8..24] == token && length <= LONGEST_TEXT).then_some(length)
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum MessageKind {
    /// A piece of an operation.
    Data = 1,
    /// The group is aborted; the reason follows.
    Abort,
    /// The rank leaves the group.
    Goodbye,
}

/// What stands before the bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageHeader {
    pub(crate) kind: MessageKind,
    pub(crate) generation: u64,
    /// Which operation.
    pub(crate) sequence: u64,
    /// Which exchange of it.
    pub(crate) step: u64,
    pub(crate) call: [u64; CALL_WORDS],
    /// All bytes of this operation from the sender to the receiver, where the call does not say it.
    pub(crate) sends: u64,
    /// And all that the sender expects from the receiver.
    pub(crate) expects: u64,
    /// Bytes that follow.
    pub(crate) length: u64,
}

impl MessageHeader {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let kinds = u64::from(MESSAGE_MAGIC) | (self.kind as u64) << 32;
        let [one, two, three] = self.call;
        let words =
            [kinds, self.generation, self.sequence, self.step, one, two, three, self.sends, self.expects, self.length];
        let mut bytes = [0; HEADER_BYTES];
        for (field, word) in bytes.chunks_exact_mut(8).zip(words) {
            field.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<MessageHeader> {
        let kinds = word(bytes, 0);
        let kind = match kinds >> 32 {
            1 => MessageKind::Data,
            2 => MessageKind::Abort,
            3 => MessageKind::Goodbye,
            _ => return None,
        };
        (kinds as u32 == MESSAGE_MAGIC).then(|| MessageHeader {
            kind,
            generation: word(bytes, 8),
            sequence: word(bytes, 16),
            step: word(bytes, 24),
            call: std::array::from_fn(|index| word(bytes, 32 + 8 * index)),
            sends: word(bytes, 56),
            expects: word(bytes, 64),
            length: word(bytes, 72),
        })
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn headers_survive_the_network(
            kind in prop_oneof![Just(MessageKind::Data), Just(MessageKind::Abort), Just(MessageKind::Goodbye)],
            numbers: [u64; 6],
            call: [u64; 3],
        ) {
            let [generation, sequence, step, sends, expects, length] = numbers;
            let header = MessageHeader { kind, generation, sequence, step, call, sends, expects, length };
            prop_assert_eq!(MessageHeader::from_bytes(&header.to_bytes()), Some(header));
        }

        #[test]
        fn hellos_and_answers_survive_the_network(token: [u8; 16], generation: u64, world: u32, rank: u32, purpose in 0usize..4) {
            let hello = Hello { token, generation, world, rank, purpose: Purpose::ALL[purpose] };
            prop_assert_eq!(Hello::from_bytes(&hello.to_bytes()), Some(hello));
            let bytes = answer(token, "no");
            let start = bytes[..ANSWER_BYTES].try_into().unwrap();
            prop_assert_eq!(answer_length(start, token), Some(2));
            prop_assert_eq!(answer_length(start, [token[0].wrapping_add(1); 16]), None);
        }

        #[test]
        fn any_bytes_are_what_they_say_or_nothing(mut bytes in proptest::array::uniform32(any::<u8>()), marked: bool) {
            if marked {
                bytes[..4].copy_from_slice(&MESSAGE_MAGIC.to_le_bytes());
                bytes[5..8].fill(0);
            }
            let mut header = [0; HEADER_BYTES];
            header[..32].copy_from_slice(&bytes);
            if let Some(found) = MessageHeader::from_bytes(&header) {
                prop_assert_eq!(found.to_bytes(), header);
            }
            let mut hello = [0; HELLO_BYTES];
            hello[..32].copy_from_slice(&bytes);
            prop_assert_eq!(Hello::from_bytes(&hello), None);
            prop_assert_eq!(answer_length(&header[..ANSWER_BYTES].try_into().unwrap(), [1; 16]), None);
        }
    }
}
