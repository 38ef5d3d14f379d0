//! Everything that reads bytes from outside, for the fuzzers: no promise to anybody else.
//!
//! Each function parses bytes as a connection would, and asserts what must hold whatever they are: what is understood is
//! exactly what would be written for it.

use crate::mail::wire as mail;
use crate::streams::wire as streams;

/// An array of the first bytes, with zeros behind them if there are too few.
fn padded<const LENGTH: usize>(bytes: &[u8]) -> [u8; LENGTH] {
    std::array::from_fn(|index| bytes.get(index).copied().unwrap_or(0))
}

/// What a caller says first, to the port for messages in a host and to that for other hosts.
pub fn hello(bytes: &[u8]) {
    let found = padded(bytes);
    if let Some(hello) = streams::Hello::from_bytes(&found) {
        assert_eq!(hello.to_bytes()[..44], found[..44]);
    }
    let _ = streams::answer_length(&padded(bytes), padded(bytes));
}

/// What stands before the bytes of messages and of parts of collectives.
pub fn frame(bytes: &[u8]) {
    let found = padded(bytes);
    if let Some(frame) = mail::Frame::from_bytes(&found) {
        assert_eq!(frame.to_bytes(), found);
        let _ = frame.payload();
    }
    let found = padded(bytes);
    if let Some(header) = streams::Header::from_bytes(&found) {
        assert_eq!(header.to_bytes(), found);
        if let Some(call) = crate::Call::from_words(header.call) {
            let _ = call.to_string();
        }
    }
}

/// Why a group is aborted; users read what becomes of it.
pub fn verdict(bytes: &[u8]) {
    let found: [u8; streams::VERDICT_BYTES] = padded(bytes);
    if let Some(verdict) = streams::verdict_from_bytes(&found) {
        let _ = verdict.to_error(|rank| rank.to_string()).to_string();
        let again = streams::verdict_to_bytes(&verdict);
        assert_eq!(streams::verdict_from_bytes(&again), Some(verdict));
    }
}
