//! Any bytes in place of a message between master and agents, or of what a trial reports: a message that would be
//! written just so, or nothing.
#![no_main]

use instep_api::link::{Order, Report};
use instep_api::logs::PostTaskLogsRequest;
use instep_api::metrics::ReportBatchRequest;
use instep_api::pages;
use instep_api::wire::Timestamp;
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;

fn reads_back<T: DeserializeOwned + Serialize>(bytes: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<T>(bytes) {
        let written = serde_json::to_vec(&message).expect("messages are JSON");
        let again: T = serde_json::from_slice(&written).expect("what is written can be read");
        assert_eq!(serde_json::to_vec(&again).expect("messages are JSON"), written);
    }
}

fuzz_target!(|bytes: &[u8]| {
    reads_back::<Report>(bytes);
    reads_back::<Order>(bytes);
    let _ = serde_json::from_slice::<ReportBatchRequest>(bytes);
    let _ = serde_json::from_slice::<Vec<PostTaskLogsRequest>>(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Timestamp::parse(text);
        let _ = pages::Order::parse(text);
    }
});
