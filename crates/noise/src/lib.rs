//! Encrypted, authenticated byte streams between two that share a secret: the Noise protocol without sockets.
//!
//! ```text
//! initiator ── hello, 48 bytes ──▶ responder      ephemeral key 32, tag 16
//! initiator ◀── answer, 48 bytes ─ responder      ephemeral key 32, tag 16
//! both      ◀───── frames ───────▶ both           length:u16 (little-endian) ciphertext (plaintext + tag 16)
//! ```
//!
//! The pattern is [`PATTERN`]. The shared key goes into the first byte that is encrypted, so that the responder tells a
//! stranger from the hello alone: it answers only hellos that somebody with the key has made, though perhaps earlier. Both
//! ephemeral keys are new for each connection: they are what a challenge with nonces is elsewhere, and whoever learns the shared key later cannot read
//! what was said before.
//!
//! | module | what it is for |
//! |---|---|
//! | [`Key`] | the shared secret as a key for one purpose |
//! | [`Initiator`], [`respond`] | the handshake |
//! | [`Session`] | what it gives: a [`Sealer`] for one direction and an [`Opener`] for the other |
//!
//! Invariants:
//! 1. Nothing is opened that the other side has not sealed on this connection, at this place in the stream: frames that
//!    were changed, left out, repeated or moved end it, as do those of other connections.
//! 2. Any bytes give a result or an [`Error`]; lengths are bounded before memory is used.
//! 3. Having the key says nothing of which of its holders one is. What both must be sure of (who calls whom, for what) is
//!    in the prologue: a hello that somebody passes on to another place fails there.
//! 4. A responder has not seen proof until [`Opener::is_proved`]: a hello can be repeated by whoever has recorded it, the
//!    first frame cannot.
//!
//! Not here: sockets, deadlines, and the end of a stream, which is not authenticated. Whoever can cut the connection can
//! end it after any frame, so the protocol inside must know when a message is complete.

mod handshake;
mod key;
mod session;

pub use handshake::{ANSWER_BYTES, HELLO_BYTES, Initiator, PATTERN, respond};
pub use key::Key;
pub use session::{FRAME_OVERHEAD, MAX_PLAINTEXT, Opener, Sealer, Session, frame_length};

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The handshake failed.
    #[error("the other side did not prove that it has the same key")]
    NotProved,
    /// A frame is not the one that the other side sealed here.
    #[error("what arrived is not what the other side sent")]
    NotAuthentic,
    /// The system gave no random numbers, or 2^64 frames were sent.
    #[error("the connection cannot be encrypted")]
    Unavailable,
}
