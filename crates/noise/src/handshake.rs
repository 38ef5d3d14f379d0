//! Two messages of fixed length, after which both sides know that the other has the key.

use std::fmt;

use snow::{Builder, HandshakeState};

use crate::key::Key;
use crate::session::{Session, TAG_BYTES};
use crate::{Error, session};

/// Two ephemeral keys, and a key that both had before, from the first message on. AES-GCM and SHA-256 have instructions of
/// their own on the processors that train models.
pub const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

const EPHEMERAL_BYTES: usize = 32;

/// Length of what the initiator sends first.
pub const HELLO_BYTES: usize = EPHEMERAL_BYTES + TAG_BYTES;
/// Length of the responder's answer.
pub const ANSWER_BYTES: usize = EPHEMERAL_BYTES + TAG_BYTES;

/// The side that connects, while it waits for the answer.
pub struct Initiator(HandshakeState);

impl Initiator {
    /// Begins a handshake; gives what is to be sent. `prologue` is what both sides must agree on besides the key: the name
    /// and version of the protocol inside, and where more than two have the key, who calls whom.
    pub fn start(key: &Key, prologue: &[u8]) -> Result<(Initiator, [u8; HELLO_BYTES]), Error> {
        let mut state = builder(key, prologue)?.build_initiator().map_err(|_| Error::Unavailable)?;
        let mut hello = [0; HELLO_BYTES];
        state.write_message(&[], &mut hello).map_err(|_| Error::Unavailable)?;
        Ok((Initiator(state), hello))
    }

    /// Takes the responder's answer. The responder has proved itself when this succeeds.
    pub fn finish(mut self, answer: &[u8; ANSWER_BYTES]) -> Result<Session, Error> {
        self.0.read_message(answer, &mut []).map_err(|_| Error::NotProved)?;
        session::established(self.0, true)
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Initiator")
    }
}

/// The side that was connected to takes a hello and gives the answer. A hello of somebody without the key is an error, for
/// which nothing but a hash had to be computed. See [`crate::Opener::is_proved`].
pub fn respond(key: &Key, prologue: &[u8], hello: &[u8; HELLO_BYTES]) -> Result<(Session, [u8; ANSWER_BYTES]), Error> {
    let mut state = builder(key, prologue)?.build_responder().map_err(|_| Error::Unavailable)?;
    state.read_message(hello, &mut []).map_err(|_| Error::NotProved)?;
    let mut answer = [0; ANSWER_BYTES];
    state.write_message(&[], &mut answer).map_err(|_| Error::NotProved)?;
    Ok((session::established(state, false)?, answer))
}

fn builder<'a>(key: &'a Key, prologue: &'a [u8]) -> Result<Builder<'a>, Error> {
    let parameters = PATTERN.parse().map_err(|_| Error::Unavailable)?;
    let builder = Builder::new(parameters).prologue(prologue).and_then(|builder| builder.psk(0, key.bytes()));
    builder.map_err(|_| Error::Unavailable)
}
