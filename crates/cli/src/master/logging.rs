//! Where a master's log goes: to stderr, as lines for people or as JSON for programs.

use std::io;

use tracing_subscriber::filter::LevelFilter;

/// Has everything from a level on written, from here to the end of the process.
pub(crate) fn start(json: bool, level: &str) {
    let level = level.parse().unwrap_or(LevelFilter::INFO);
    let lines = tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr);
    // It fails only if somebody has started a log before, which then goes on.
    if json {
        let _ = lines.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init();
    } else {
        let _ = lines.with_ansi(false).with_target(false).try_init();
    }
}
