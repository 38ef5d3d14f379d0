//! What ranks say to each other over the network, as bytes; all numbers are little endian.
//!
//! ```text
//! initiator → responder   magic(8) generation(8) world(4) rank(4) purpose(4) encrypted(4) nonce(16) noise(48) proof(16)
//! responder → initiator   magic(8) nonce(16) noise(48) proof(16) 0(4)                 welcome
//!                         magic(8) 0(16) 0(48) proof(16) length(4) text               why not
//! initiator → responder   magic(8) proof(16)                                          this connection is the one
//!
//! message                 magic(4) kind(4) generation(8) sequence(8) step(8) call(24) sends(8) expects(8) length(8), then the bytes
//! ```
//! A proof is a hash under a key that only members can make, see [`super::secret`]: of the hello; of the hello with the text
//! of a refusal; of the hello with the nonce of the responder and the token of the initiator, once from each side. So neither side
//! believes what was recorded earlier: a hello alone shows only that somebody knew the key once, and gets a nonce for it; the
//! last proof shows that the initiator is there now. The tokens are in the addresses, which only members have: an initiator notices when
//! somebody else answers at an address that the other rank believes to be its own.
//!
//! Where ranks encrypt what they send each other, the noise messages are the two messages of a handshake of [`instep_noise`], and
//! everything after the confirmation comes in its frames; elsewhere they are zeros.

use instep_noise::{ANSWER_BYTES as NOISE_ANSWER_BYTES, HELLO_BYTES as NOISE_HELLO_BYTES};

use super::secret::{NONCE_BYTES, Nonce, PROOF_BYTES, Proof};
use crate::call::CALL_WORDS;

const HELLO_MAGIC: [u8; 8] = *b"instepS3";
const ANSWER_MAGIC: [u8; 8] = *b"instepW3";
const CONFIRMATION_MAGIC: [u8; 8] = *b"instepC3";
const MESSAGE_MAGIC: u32 = u32::from_le_bytes(*b"iS01");
pub(crate) const CLAIM_BYTES: usize = 48;
/// What of a hello its proof is of.
pub(crate) const PROVED_BYTES: usize = CLAIM_BYTES + NOISE_HELLO_BYTES;
pub(crate) const HELLO_BYTES: usize = PROVED_BYTES + PROOF_BYTES;
pub(crate) const ANSWER_BYTES: usize = 8 + NONCE_BYTES + NOISE_ANSWER_BYTES + PROOF_BYTES + 4;
pub(crate) const CONFIRMATION_BYTES: usize = 8 + PROOF_BYTES;
pub(crate) const HEADER_BYTES: usize = 80;
/// The longest text of a refusal.
pub(crate) const LONGEST_TEXT: usize = 1024;

/// What a connection is for. Collectives have one in each channel, see [`super::channels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Collectives between any two ranks, in this channel.
    Collectives(u8),
    P2p,
    /// Collectives between ranks of the same number in their hosts, in this channel.
    Rail(u8),
    /// Between the first ranks of hosts, see [`super::heartbeat`].
    Heartbeat,
}

impl Purpose {
    /// The lowest byte says what for, the next one in which channel.
    fn to_word(self) -> u32 {
        match self {
            Purpose::Collectives(channel) => u32::from(channel) << 8,
            Purpose::P2p => 1,
            Purpose::Rail(channel) => 2 | u32::from(channel) << 8,
            Purpose::Heartbeat => 3,
        }
    }

    fn from_word(word: u32) -> Option<Purpose> {
        let channel = u8::try_from(word >> 8).ok()?;
        let purpose = match word & 0xff {
            0 => Purpose::Collectives(channel),
            1 => Purpose::P2p,
            2 => Purpose::Rail(channel),
            3 => Purpose::Heartbeat,
            _ => return None,
        };
        (purpose.to_word() == word).then_some(purpose)
    }
}

/// Who says that it opens a connection, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) generation: u64,
    pub(crate) world: u32,
    /// Of the initiator.
    pub(crate) rank: u32,
    pub(crate) purpose: Purpose,
    /// What follows the handshake is.
    pub(crate) encrypted: bool,
    /// Of the initiator.
    pub(crate) nonce: Nonce,
}

impl Claim {
    pub(crate) fn to_bytes(self) -> [u8; CLAIM_BYTES] {
        let mut bytes = [0; CLAIM_BYTES];
        bytes[..8].copy_from_slice(&HELLO_MAGIC);
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.world.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.rank.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.purpose.to_word().to_le_bytes());
        bytes[28..32].copy_from_slice(&u32::from(self.encrypted).to_le_bytes());
        bytes[32..].copy_from_slice(&self.nonce);
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; CLAIM_BYTES]) -> Option<Claim> {
        let (purpose, encrypted) = (word(bytes, 24) as u32, word(bytes, 24) >> 32);
        let claim = Claim {
            generation: word(bytes, 8),
            world: word(bytes, 16) as u32,
            rank: (word(bytes, 16) >> 32) as u32,
            purpose: Purpose::from_word(purpose)?,
            encrypted: encrypted == 1,
            nonce: part(bytes, 32),
        };
        (bytes[..8] == HELLO_MAGIC && encrypted <= 1).then_some(claim)
    }
}

/// What an initiator says first.
pub(crate) struct Hello {
    pub(crate) claim: Claim,
    /// Of the initiator in the key.
    pub(crate) noise_message: [u8; NOISE_HELLO_BYTES],
    pub(crate) proof: Proof,
}

impl Hello {
    pub(crate) fn to_bytes(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..CLAIM_BYTES].copy_from_slice(&self.claim.to_bytes());
        bytes[CLAIM_BYTES..PROVED_BYTES].copy_from_slice(&self.noise_message);
        bytes[PROVED_BYTES..].copy_from_slice(&self.proof);
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; HELLO_BYTES]) -> Option<Hello> {
        let (noise_message, proof) = (part(bytes, CLAIM_BYTES), part(bytes, PROVED_BYTES));
        Some(Hello { claim: Claim::from_bytes(&part(bytes, 0))?, noise_message, proof })
    }
}

/// What the responder says: welcome, if no text follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Of the responder, in a welcome.
    pub(crate) nonce: Nonce,
    pub(crate) noise_message: [u8; NOISE_ANSWER_BYTES],
    pub(crate) proof: Proof,
    /// Of the text that follows.
    pub(crate) length: usize,
}

impl Answer {
    pub(crate) fn to_bytes(self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..8].copy_from_slice(&ANSWER_MAGIC);
        bytes[8..24].copy_from_slice(&self.nonce);
        bytes[24..72].copy_from_slice(&self.noise_message);
        bytes[72..88].copy_from_slice(&self.proof);
        bytes[88..].copy_from_slice(&(self.length as u32).to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; ANSWER_BYTES]) -> Option<Answer> {
        let length = u32::from_le_bytes(part(bytes, 88)) as usize;
        let answer = Answer { nonce: part(bytes, 8), noise_message: part(bytes, 24), proof: part(bytes, 72), length };
        (bytes[..8] == ANSWER_MAGIC && length <= LONGEST_TEXT).then_some(answer)
    }
}

/// The initiator's last word of the handshake.
pub(crate) fn confirmation(proof: Proof) -> [u8; CONFIRMATION_BYTES] {
    let mut bytes = [0; CONFIRMATION_BYTES];
    bytes[..8].copy_from_slice(&CONFIRMATION_MAGIC);
    bytes[8..].copy_from_slice(&proof);
    bytes
}

/// The proof in a confirmation; `None` if it is none.
pub(crate) fn confirmed_by(bytes: &[u8; CONFIRMATION_BYTES]) -> Option<Proof> {
    (bytes[..8] == CONFIRMATION_MAGIC).then(|| part(bytes, 8))
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

fn part<const LENGTH: usize>(bytes: &[u8], at: usize) -> [u8; LENGTH] {
    std::array::from_fn(|index| bytes[at + index])
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(part(bytes, at))
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
        fn handshakes_survive_the_network(
            (nonce, proof) in any::<(Nonce, Proof)>(),
            (generation, world, rank) in any::<(u64, u32, u32)>(),
            (purpose, channel) in (0u32..4, any::<u8>()),
            encrypted: bool,
            noise_message in proptest::collection::vec(any::<u8>(), NOISE_HELLO_BYTES),
            length in 0usize..2 * LONGEST_TEXT,
        ) {
            let channel = if purpose % 2 == 0 { channel } else { 0 };
            let (purpose, noise_message) = (Purpose::from_word(purpose | u32::from(channel) << 8).unwrap(), part(&noise_message, 0));
            let claim = Claim { generation, world, rank, purpose, encrypted, nonce };
            let hello = Hello::from_bytes(&Hello { claim, noise_message, proof }.to_bytes()).unwrap();
            prop_assert_eq!((hello.claim, hello.noise_message, hello.proof), (claim, noise_message, proof));
            let answer = Answer { nonce, noise_message, proof, length };
            prop_assert_eq!(Answer::from_bytes(&answer.to_bytes()), (length <= LONGEST_TEXT).then_some(answer));
            prop_assert_eq!(confirmed_by(&confirmation(proof)), Some(proof));
        }

        #[test]
        fn any_word_is_a_purpose_that_is_written_the_same_or_none(word in prop_oneof![any::<u32>(), 0u32..0x1000]) {
            prop_assert!(Purpose::from_word(word).is_none_or(|purpose| purpose.to_word() == word));
        }

        #[test]
        fn any_bytes_are_what_they_say_or_nothing(mut bytes in proptest::array::uniform32(any::<u8>()), marked: bool) {
            if marked {
                bytes[..4].copy_from_slice(&MESSAGE_MAGIC.to_le_bytes());
                bytes[5..8].fill(0);
            }
            let mut header = [0; HEADER_BYTES];
            header[..32].copy_from_slice(&bytes);
            let mut answer = [0; ANSWER_BYTES];
            answer[..32].copy_from_slice(&bytes);
            if let Some(found) = MessageHeader::from_bytes(&header) {
                prop_assert_eq!(found.to_bytes(), header);
            }
            let mut hello = [0; HELLO_BYTES];
            hello[..32].copy_from_slice(&bytes);
            prop_assert!(Hello::from_bytes(&hello).is_none());
            prop_assert_eq!(Answer::from_bytes(&answer), None);
            prop_assert_eq!(confirmed_by(&part(&header, 0)), None);
        }
    }
}
