//! Any bytes on a connection, in any pieces: the master's idea of where requests begin does not depend on the pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| instep_master::untrusted::connection(input.1, input.0));
