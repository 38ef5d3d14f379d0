//! Any bytes, cut anywhere: the decoder gives the same requests as for the whole, and encoding them gives the bytes back.
#![no_main]

use instep_store::Limits;
use instep_store::protocol::{Decoder, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (piece, bytes) = input;
    let limits = Limits { key: 64, payload: 256, keys: 32, request: 2048 };
    let mut decoder = Decoder::default();
    let (mut start, mut end) = (0, 0);
    while end < bytes.len() {
        end = bytes.len().min(end + usize::from(piece) + 1);
        loop {
            let found = decoder.decode(&bytes[start..end], &limits);
            assert_eq!(found, decode(&bytes[start..end], &limits));
            match found {
                Err(_) => return,
                Ok(None) => break,
                Ok(Some((request, length))) => {
                    let mut encoded = Vec::new();
                    request.encode(&mut encoded);
                    assert_eq!(encoded, bytes[start..start + length]);
                    start += length;
                }
            }
        }
    }
});
