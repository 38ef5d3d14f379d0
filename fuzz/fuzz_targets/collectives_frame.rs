//! Any bytes after the hello: a frame that would be written just so, or nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| instep_collectives::untrusted::frame(bytes));
