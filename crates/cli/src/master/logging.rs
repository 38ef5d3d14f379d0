//! Where a master's log goes: to stderr, as lines for people or as JSON for programs, and into the journal for those who
//! ask the master for it.

use std::fmt::{self, Write};
use std::io;

use instep_api::states::LogLevel;
use instep_master::Journal;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// Has everything from a level on written, from here to the end of the process.
pub(crate) fn start(json: bool, level: &str, journal: Journal) {
    let level = level.parse().unwrap_or(LevelFilter::INFO);
    let (filter, handle) = reload::Layer::new(level);
    journal.starts_at(level_of(level), move |level| {
        // It fails only when the log is gone, which is at the end of the process.
        let _ = handle.modify(|filter| *filter = filter_of(level));
    });
    let log = tracing_subscriber::registry().with(filter).with(Recorder(journal));
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    // It fails only if somebody has started a log before, which then goes on.
    if json {
        let lines = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
        let _ = log.with(lines).try_init();
    } else {
        let _ = log.with(lines.with_ansi(false).with_target(false)).try_init();
    }
}

/// A level as the API names it.
fn level_of(filter: LevelFilter) -> LogLevel {
    match filter.into_level() {
        Some(Level::TRACE) => LogLevel::Trace,
        Some(Level::DEBUG) => LogLevel::Debug,
        Some(Level::INFO) => LogLevel::Info,
        Some(Level::WARN) => LogLevel::Warning,
        Some(Level::ERROR) | None => LogLevel::Error,
    }
}

/// The same as the log names it.
fn filter_of(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Trace => LevelFilter::TRACE,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info | LogLevel::Unspecified => LevelFilter::INFO,
        LogLevel::Warning => LevelFilter::WARN,
        LogLevel::Error | LogLevel::Critical => LevelFilter::ERROR,
    }
}

/// Writes events into the journal.
struct Recorder(Journal);

impl<S: Subscriber> Layer<S> for Recorder {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = level_of(LevelFilter::from_level(*event.metadata().level()));
        let mut line = Line::default();
        event.record(&mut line);
        self.0.add(level, line.message + &line.fields);
    }
}

/// An event as people read it: the message, then the rest as `name=value`.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing into memory cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
