//! Any bytes under a rank's key in the store: an address that would be written so that it reads the same, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| instep_collectives::untrusted::address(bytes));
