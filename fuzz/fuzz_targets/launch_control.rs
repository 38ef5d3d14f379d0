//! Any bytes on the line between two launchers: messages that are written as they were read, or an error.
#![no_main]

use instep_launch::control::{FromCoordinator, ToCoordinator, decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some((message, length))) = decode::<ToCoordinator>(bytes) {
        assert!(length <= bytes.len());
        let line = encode(&message);
        assert_eq!(decode::<ToCoordinator>(&line).expect("ours").expect("complete"), (message, line.len()));
    }
    if let Ok(Some((message, length))) = decode::<FromCoordinator>(bytes) {
        assert!(length <= bytes.len());
        let line = encode(&message);
        assert_eq!(decode::<FromCoordinator>(&line).expect("ours").expect("complete"), (message, line.len()));
    }
});
