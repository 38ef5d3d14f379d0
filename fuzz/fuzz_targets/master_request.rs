//! Any text in the parts of a request that the master reads itself: address, parameters, cookies, body.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    instep_master::untrusted::address(text);
    instep_master::untrusted::cookies(text);
    instep_master::untrusted::body(text);
});
