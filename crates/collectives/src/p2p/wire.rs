//! What two ranks say to each other about messages, as bytes.
//!
//! ```text
//! frame    magic(3) kind(1) 0(4) id(8) tag(8) length(8) pointer(8)          little endian, fields that mean nothing are 0
//!
//! 1 message   id tag length, then the bytes        a small message, sent without asking
//! 2 offer     id tag length pointer                a large one; where it lies, if the receiver may read it there, else 0
//! 3 ready     id                                   the receiver of an offer wants the bytes
//! 4 part      id length, then the bytes            a piece of it
//! 5 taken     id                                   the receiver has read the offer where it lies
//! 6 credit    length                               so much room for small messages is free again
//! 7 goodbye                                        the rank leaves the group; nothing follows
//! 8 abort     length, then the reason              the group is aborted, and why
//! ```
//! An id is the sender's number of the message. Before anything else, ranks of different hosts have the handshake of
//! [`crate::tcp::wire`]; those of the same host, whose kernel says that they are the same user, a hello:
//!
//! ```text
//! caller → called   magic(8) token of the called(16) generation(8) world(4) rank(4)
//! ```

pub(crate) use crate::abort::ABORT_BYTES;

const FRAME_MAGIC: [u8; 3] = *b"iM1";
pub(crate) const FRAME_BYTES: usize = 40;
const HELLO_MAGIC: [u8; 8] = *b"instepM1";
pub(crate) const HELLO_BYTES: usize = 40;

/// Who of the same host opens a connection, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Of the rank that is called.
    pub(crate) token: [u8; 16],
    pub(crate) generation: u64,
    pub(crate) world: u32,
    /// Of the caller.
    pub(crate) rank: u32,
}

impl Hello {
    pub(crate) fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&HELLO_MAGIC);
        bytes[8..24].copy_from_slice(&self.token);
        bytes[24..32].copy_from_slice(&self.generation.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.world.to_le_bytes());
        bytes[36..].copy_from_slice(&self.rank.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; HELLO_BYTES]) -> Option<Hello> {
        (bytes[..8] == HELLO_MAGIC).then(|| Hello {
            token: std::array::from_fn(|index| bytes[8 + index]),
            generation: word(bytes, 24),
            world: word(bytes, 32) as u32,
            rank: (word(bytes, 32) >> 32) as u32,
        })
    }
}

/// One thing that a rank says; see the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Message { id: u64, tag: u64, length: usize },
    Offer { id: u64, tag: u64, length: usize, pointer: u64 },
    Ready { id: u64 },
    Part { id: u64, length: usize },
    Taken { id: u64 },
    Credit { bytes: usize },
    Goodbye,
    Abort,
}

impl Frame {
    pub(crate) fn to_bytes(self) -> [u8; FRAME_BYTES] {
        let (kind, words) = match self {
            Frame::Message { id, tag, length } => (1, [id, tag, length as u64, 0]),
            Frame::Offer { id, tag, length, pointer } => (2, [id, tag, length as u64, pointer]),
            Frame::Ready { id } => (3, [id, 0, 0, 0]),
            Frame::Part { id, length } => (4, [id, 0, length as u64, 0]),
            Frame::Taken { id } => (5, [id, 0, 0, 0]),
            Frame::Credit { bytes } => (6, [0, 0, bytes as u64, 0]),
            Frame::Goodbye => (7, [0; 4]),
            Frame::Abort => (8, [0, 0, ABORT_BYTES as u64, 0]),
        };
        let mut bytes = [0; FRAME_BYTES];
        bytes[..3].copy_from_slice(&FRAME_MAGIC);
        bytes[3] = kind;
        for (field, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            field.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None` for anything that [`Frame::to_bytes`] does not make.
    pub(crate) fn from_bytes(bytes: &[u8; FRAME_BYTES]) -> Option<Frame> {
        let [id, tag, length, pointer] = [8, 16, 24, 32].map(|at| word(bytes, at));
        let length = usize::try_from(length).ok()?;
        let frame = match bytes[3] {
            1 => Frame::Message { id, tag, length },
            2 => Frame::Offer { id, tag, length, pointer },
            3 => Frame::Ready { id },
            4 => Frame::Part { id, length },
            5 => Frame::Taken { id },
            6 => Frame::Credit { bytes: length },
            7 => Frame::Goodbye,
            8 => Frame::Abort,
            _ => return None,
        };
        (frame.to_bytes() == *bytes).then_some(frame)
    }

    /// How many bytes follow the frame.
    pub(crate) fn payload(&self) -> usize {
        match self {
            Frame::Message { length, .. } | Frame::Part { length, .. } => *length,
            Frame::Abort => ABORT_BYTES,
            Frame::Offer { .. } | Frame::Ready { .. } | Frame::Taken { .. } | Frame::Credit { .. } | Frame::Goodbye => {
                0
            }
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let length = 0..usize::MAX;
        prop_oneof![
            (any::<u64>(), any::<u64>(), length.clone()).prop_map(|(id, tag, length)| Frame::Message {
                id,
                tag,
                length
            }),
            (any::<u64>(), any::<u64>(), length.clone(), any::<u64>())
                .prop_map(|(id, tag, length, pointer)| Frame::Offer { id, tag, length, pointer }),
            any::<u64>().prop_map(|id| Frame::Ready { id }),
            (any::<u64>(), length.clone()).prop_map(|(id, length)| Frame::Part { id, length }),
            any::<u64>().prop_map(|id| Frame::Taken { id }),
            length.prop_map(|bytes| Frame::Credit { bytes }),
            Just(Frame::Goodbye),
            Just(Frame::Abort),
        ]
    }

    proptest! {
        #[test]
        fn frames_survive_the_connection(frame in frames()) {
            prop_assert_eq!(Frame::from_bytes(&frame.to_bytes()), Some(frame));
        }

        #[test]
        fn any_bytes_are_what_they_say_or_nothing(mut bytes in any::<[u8; FRAME_BYTES]>(), marked: bool) {
            if marked {
                bytes[..3].copy_from_slice(&FRAME_MAGIC);
                bytes[3] %= 10;
            }
            if let Some(frame) = Frame::from_bytes(&bytes) {
                prop_assert_eq!(frame.to_bytes(), bytes);
            }
            prop_assert_eq!(Hello::from_bytes(&bytes), None);
        }

        #[test]
        fn hellos_survive_the_connection(token: [u8; 16], generation: u64, world: u32, rank: u32) {
            let hello = Hello { token, generation, world, rank };
            prop_assert_eq!(Hello::from_bytes(&hello.to_bytes()), Some(hello));
            prop_assert_eq!(Frame::from_bytes(&hello.to_bytes()), None);
        }
    }
}
