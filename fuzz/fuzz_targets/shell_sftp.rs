//! Any bytes as what a client of `sftp` sends: requests are read or refused, and none of them is done.
#![no_main]

use instep_shell::sftp::count_requests;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    assert!(count_requests(bytes) <= bytes.len() / 4);
});
