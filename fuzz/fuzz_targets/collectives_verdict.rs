//! Any words of a verdict: an error that users can read, or nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| instep_collectives::untrusted::verdict(bytes));
