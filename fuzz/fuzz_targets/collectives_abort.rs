//! Any words of an abort reason: an error that users can read, or nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| instep_collectives::untrusted::abort_reason(bytes));
