//! Values as people read them.

use chrono::{DateTime, Local};
use instep_api::states::{CheckpointState, State};
use instep_api::wire::Timestamp;
use serde_json::Value;

/// `2026-01-02 03:04:05`, here.
pub(super) fn time(time: Timestamp) -> String {
    let time = DateTime::from_timestamp_micros(time.0).unwrap_or(DateTime::UNIX_EPOCH);
    time.with_timezone(&Local).format("%Y-%m-%d %H:%M:%S").to_string()
}

/// A time that may be missing.
pub(super) fn optional_time(moment: Option<Timestamp>) -> String {
    moment.map(time).unwrap_or_default()
}

/// `5s`, `3m 4s`, `2h 3m`, `4d 5h`.
pub(super) fn duration(seconds: i64) -> String {
    match seconds.max(0) {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        seconds @ 3600..86_400 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{}d {}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// `5.2s`, or as [`duration`] from a minute on.
pub(super) fn seconds(seconds: f64) -> String {
    if seconds < 59.95 { format!("{seconds:.1}s") } else { duration(seconds.round() as i64) }
}

/// Whether an agent or a slot takes work, and if not, why.
pub(super) fn availability(connected: bool, enabled: bool, draining: bool) -> &'static str {
    match (connected, enabled, draining) {
        (false, ..) => "offline",
        (true, true, _) => "enabled",
        (true, false, true) => "draining",
        (true, false, false) => "disabled",
    }
}

/// `12 B`, `3.4 kB`, `1.2 GB`.
pub(super) fn size(bytes: i64) -> String {
    let units = ["kB", "MB", "GB", "TB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

/// `running`
pub(super) fn state(state: State) -> String {
    word(state.as_str())
}

/// `partially deleted`
pub(super) fn checkpoint_state(state: CheckpointState) -> String {
    word(state.as_str())
}

/// `partially deleted` for `STATE_PARTIALLY_DELETED`
pub(super) fn word(name: &str) -> String {
    name.trim_start_matches("STATE_").to_lowercase().replace('_', " ")
}

/// `45%`, if it is known.
pub(super) fn progress(progress: Option<f64>) -> String {
    progress.map(|part| format!("{:.0}%", part * 100.0)).unwrap_or_default()
}

/// A number as short as it can be without losing what matters, or the text of anything else.
pub(super) fn value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(real) if !number.is_i64() && !number.is_u64() => self::number(real),
            _ => number.to_string(),
        },
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// Six digits that matter.
pub(super) fn number(number: f64) -> String {
    if number == 0.0 || !number.is_finite() {
        return number.to_string();
    }
    let magnitude = number.abs().log10().floor();
    if (-4.0..9.0).contains(&magnitude) {
        let digits = (5.0 - magnitude).max(0.0) as usize;
        let text = format!("{number:.digits$}");
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        return text.to_owned();
    }
    format!("{number:.5e}")
}

/// `1 trial`, `2 trials`
pub(super) fn plural(count: i64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// `a, b, c`
pub(super) fn list(words: &[String]) -> String {
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_short_and_exact_enough() {
        for (seconds, expected) in [(-1, "0s"), (59, "59s"), (60, "1m 0s"), (7_384, "2h 3m"), (100_000, "1d 3h")] {
            assert_eq!(duration(seconds), expected);
        }
        for (bytes, expected) in
            [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (999_960, "1.0 MB"), (2 << 40, "2.2 TB")]
        {
            assert_eq!(size(bytes), expected);
        }
        for (given, expected) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (1.0 / 3.0, "0.333333"),
            (-12.25, "-12.25"),
            (123_456.789, "123457"),
            (1e-7, "1.00000e-7"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(number(given), expected);
        }
        assert_eq!(state(State::StoppingCanceled), "stopping canceled");
    }
}
