//! Everything that reads bytes from outside, for the fuzzers: no promise to anybody else.
//!
//! Each function parses bytes as a connection would, and asserts what must hold whatever they are: what is understood is
//! exactly what would be written for it.

use crate::Address;
use crate::abort::{ABORT_BYTES, AbortReason};
use crate::p2p::wire as p2p;
use crate::tcp::wire as tcp;

/// An array of the first bytes, with zeros behind them if there are too few.
fn padded<const LENGTH: usize>(bytes: &[u8]) -> [u8; LENGTH] {
    std::array::from_fn(|index| bytes.get(index).copied().unwrap_or(0))
}

/// What a caller says first, to the port for messages in a host and to that for other hosts.
pub fn hello(bytes: &[u8]) {
    let found = padded(bytes);
    if let Some(hello) = tcp::Hello::from_bytes(&found) {
        assert_eq!(hello.to_bytes(), found);
    }
    let found = padded(bytes);
    if let Some(answer) = tcp::Answer::from_bytes(&found) {
        assert_eq!(answer.to_bytes(), found);
    }
    let found = padded(bytes);
    if let Some(proof) = tcp::confirmed_by(&found) {
        assert_eq!(tcp::confirmation(proof), found);
    }
    let found = padded(bytes);
    if let Some(hello) = p2p::Hello::from_bytes(&found) {
        assert_eq!(hello.to_bytes(), found);
    }
}

/// What stands before the bytes of messages and of parts of collectives.
pub fn frame(bytes: &[u8]) {
    let found = padded(bytes);
    if let Some(frame) = p2p::Frame::from_bytes(&found) {
        assert_eq!(frame.to_bytes(), found);
        let _ = frame.payload();
    }
    let found = padded(bytes);
    if let Some(header) = tcp::MessageHeader::from_bytes(&found) {
        assert_eq!(header.to_bytes(), found);
        if let Some(call) = crate::Call::from_words(header.call) {
            let _ = call.to_string();
        }
    }
}

/// Why a group is aborted; users read what becomes of it.
pub fn abort_reason(bytes: &[u8]) {
    let found: [u8; ABORT_BYTES] = padded(bytes);
    if let Some(reason) = AbortReason::from_bytes(&found) {
        let _ = reason.to_error(&[]).to_string();
        assert_eq!(AbortReason::from_bytes(&reason.to_bytes()), Some(reason));
    }
}

/// What a rank finds under another's key in the store.
pub fn address(bytes: &[u8]) {
    if let Ok(address) = Address::from_bytes(bytes) {
        assert_eq!(Address::from_bytes(&address.to_bytes()).ok(), Some(address));
    }
}
