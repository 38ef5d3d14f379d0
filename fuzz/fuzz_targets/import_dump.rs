//! Any bytes as a dump of a database: its tables and rows are read or refused.
#![no_main]

use instep_import::dump::scan;
use instep_import::mapping::{metrics, people, work};
use instep_import::text::Layout;
use libfuzzer_sys::fuzz_target;

const COLUMNS: &[&str] = &["id", "end_time", "metrics", "total_batches", "trial_run_id", "metric_group"];
const USER: &[&str] = &["uid", "gid", "user_", "group_"];
const LINE: &[&str] =
    &["allocation_id", "agent_id", "container_id", "rank_id", "source", "stdtype", "level", "timestamp", "log"];

fuzz_target!(|bytes: &[u8]| {
    let Ok(contents) = scan(bytes) else { return };
    for block in contents.blocks.values() {
        assert!(block.start as usize <= bytes.len());
    }
    for line in bytes.split(|byte| *byte == b'\n') {
        for (names, read) in [(COLUMNS, 0), (USER, 1), (LINE, 2)] {
            let layout = Layout::exact("things", names);
            let Ok(row) = layout.row(line, 1) else { continue };
            match read {
                0 => drop(metrics::report(&row, 1, "training")),
                1 => drop(people::agent_user_group(&row)),
                _ => drop(work::line(&row, String::new(), false)),
            }
        }
    }
});
