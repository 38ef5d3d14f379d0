//! The connection to one rank, and how far the messages on it are.
#![expect(unsafe_code, reason = "holds memory that callers vouch for")]

use super::stream::Stream;
use super::wire::HEADER_BYTES;
use crate::schedule::Span;

/// The connection to one rank.
pub(super) struct TcpPeer {
    pub(super) stream: Stream,
    /// A message that is not all out: its header, where the rest is, and how much is done.
    pub(super) unsent: Option<Unsent>,
    /// Which line of the schedule that is.
    pub(super) sending: Option<usize>,
    /// What comes, as far as it is there.
    pub(super) incoming: Option<IncomingMessage>,
    /// Messages of the operation under way that were begun to be sent, and that were received.
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Its end is closed, and there is nothing left to learn from it.
    pub(super) closed: bool,
}

/// A message that is being sent.
pub(super) struct Unsent {
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) payload: *const u8,
    pub(super) length: usize,
    pub(super) done: usize,
}

// SAFETY: the pointer is used only during the call that gave it, by the thread that holds the transport.
unsafe impl Send for Unsent {}

/// A message that comes from one peer.
pub(super) struct IncomingMessage {
    /// Which line of the schedule.
    pub(super) step: usize,
    pub(super) span: Span,
    pub(super) header: [u8; HEADER_BYTES],
    /// The header is there and fits.
    pub(super) checked: bool,
    /// Of the header, then of the bytes after it.
    pub(super) done: usize,
}

impl TcpPeer {
    pub(super) fn new(stream: Stream) -> TcpPeer {
        TcpPeer { stream, unsent: None, sending: None, incoming: None, sent: 0, received: 0, closed: false }
    }
}
