//! Any bytes in place of a recorder's file, changed between readings: a snapshot, or an error.
#![no_main]

use instep_recorder::{Account, Snapshot};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, u8)| {
    let (bytes, later) = input;
    // The magic and the length are right: what is behind them is the fuzzer's.
    let mut first = b"instep\0\x01".to_vec();
    first.extend(bytes.iter().cycle().take(if bytes.is_empty() { 0 } else { 228 << 10 }));
    let mut last = first.clone();
    if let Some(byte) = last.get_mut(usize::from(later) * 97) {
        *byte = later;
    }
    let _ = Account::from_readings(&first, &last, &last);
    if let Ok(snapshot) = Snapshot::from_readings(&first, &last, &last) {
        for operation in snapshot.pending() {
            let _ = snapshot.group(operation).and_then(|group| group.job_rank(operation.peer.unwrap_or(0)));
        }
    }
});
