//! An established connection: bytes into frames, and frames into bytes.

use std::fmt;
use std::sync::Arc;

use snow::{HandshakeState, StatelessTransportState};

use crate::Error;

pub(crate) const TAG_BYTES: usize = 16;
const LENGTH_BYTES: usize = 2;

/// How much longer a frame is than what it holds.
pub const FRAME_OVERHEAD: usize = LENGTH_BYTES + TAG_BYTES;
/// What one frame holds at most.
pub const MAX_PLAINTEXT: usize = u16::MAX as usize - TAG_BYTES;

/// Both directions of a connection. They may be used by two threads.
#[derive(Debug)]
pub struct Session {
    /// What is sent.
    pub sealer: Sealer,
    /// What is received.
    pub opener: Opener,
}

pub(crate) fn established(state: HandshakeState, proved: bool) -> Result<Session, Error> {
    let state = Arc::new(state.into_stateless_transport_mode().map_err(|_| Error::Unavailable)?);
    let sealer = Sealer { state: state.clone(), next: 0 };
    Ok(Session { sealer, opener: Opener { state, next: 0, proved, failed: false } })
}

/// Encrypts one direction.
pub struct Sealer {
    state: Arc<StatelessTransportState>,
    /// Number of the next frame, which is its nonce.
    next: u64,
}

impl Sealer {
    /// Appends the bytes to `sealed` as frames: as few as possible, one for no bytes.
    pub fn seal(&mut self, mut bytes: &[u8], sealed: &mut Vec<u8>) -> Result<(), Error> {
        loop {
            let (part, rest) = bytes.split_at(bytes.len().min(MAX_PLAINTEXT));
            let length = part.len() + TAG_BYTES;
            let start = sealed.len();
            sealed.resize(start + LENGTH_BYTES + length, 0);
            self.seal_frame(part, &mut sealed[start..])?;
            if rest.is_empty() {
                return Ok(());
            }
            bytes = rest;
        }
    }

    /// Writes one frame: at most [`MAX_PLAINTEXT`] bytes, to a buffer that is longer by exactly [`FRAME_OVERHEAD`].
    pub fn seal_frame(&mut self, bytes: &[u8], frame: &mut [u8]) -> Result<(), Error> {
        assert_eq!(frame.len(), bytes.len() + FRAME_OVERHEAD, "a frame's buffer has its length");
        let length = u16::try_from(bytes.len() + TAG_BYTES).expect("at most MAX_PLAINTEXT bytes");
        let number = self.next;
        // No number is used twice, whatever becomes of this frame.
        self.next += 1;
        let (header, body) = frame.split_at_mut(LENGTH_BYTES);
        header.copy_from_slice(&length.to_le_bytes());
        self.state.write_message(number, bytes, body).map_err(|_| Error::Unavailable)?;
        Ok(())
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sealer").field("next", &self.next).finish_non_exhaustive()
    }
}

/// Decrypts the other direction. After an error nothing more can be opened.
pub struct Opener {
    state: Arc<StatelessTransportState>,
    next: u64,
    proved: bool,
    /// A frame was not authentic: nobody may try another in its place.
    failed: bool,
}

impl Opener {
    /// Whether the other side has shown that it has the key, on this connection and not in a recording: an initiator knows
    /// it from the answer, a responder from the first frame.
    pub fn is_proved(&self) -> bool {
        self.proved
    }

    /// Opens the complete frames at the start of `bytes` and appends what they hold to `opened`; gives how many bytes they
    /// took. The rest is to be offered again, with more.
    pub fn open(&mut self, bytes: &[u8], opened: &mut Vec<u8>) -> Result<usize, Error> {
        let mut consumed = 0;
        while let Some(length) = frame_length(&bytes[consumed..]).inspect_err(|_| self.failed = true)? {
            let Some(frame) = bytes.get(consumed..consumed + length) else { break };
            let start = opened.len();
            // The cipher works in place, where the tag needs room.
            opened.resize(start + length - LENGTH_BYTES, 0);
            let written = self.open_frame(frame, &mut opened[start..]);
            opened.truncate(start + written.as_ref().copied().unwrap_or(0));
            written?;
            consumed += length;
        }
        Ok(consumed)
    }

    /// Opens one whole frame, and gives how many bytes it held. `opened` is as long as the frame, at least: what lies
    /// behind those bytes is overwritten.
    pub fn open_frame(&mut self, frame: &[u8], opened: &mut [u8]) -> Result<usize, Error> {
        let is_whole = matches!(frame_length(frame), Ok(Some(length)) if length == frame.len());
        let written = match is_whole && !self.failed {
            true => self.state.read_message(self.next, &frame[LENGTH_BYTES..], opened).ok(),
            false => None,
        };
        self.failed = written.is_none();
        self.next += 1;
        self.proved |= written.is_some();
        written.ok_or(Error::NotAuthentic)
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Opener");
        shown.field("next", &self.next).field("proved", &self.proved).finish_non_exhaustive()
    }
}

/// The length of the frame at the start of `bytes`, header included, once its header is there.
pub fn frame_length(bytes: &[u8]) -> Result<Option<usize>, Error> {
    let Some(header) = bytes.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = usize::from(u16::from_le_bytes(*header));
    if length < TAG_BYTES { Err(Error::NotAuthentic) } else { Ok(Some(LENGTH_BYTES + length)) }
}
