//! Any bytes from a caller: a hello of a rank, or nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| instep_collectives::untrusted::hello(bytes));
