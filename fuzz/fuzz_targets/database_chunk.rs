//! Any bytes in place of a chunk of a metric: points that survive being stored again, or an error.
#![no_main]

use instep_database::chunk::{decode, decode_steps, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = decode_steps(bytes);
    if let Ok(points) = decode(bytes) {
        let again = decode(&encode(&points)).expect("ours");
        assert_eq!(again.len(), points.len());
        for (one, other) in points.iter().zip(&again) {
            assert_eq!((one.step, one.run, one.time), (other.step, other.run, other.time));
        }
    }
});
