//! Which trials an experiment runs: the `searcher` section.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::length::{Length, Unit};
use super::reader::{Fields, near};

/// How a search decides, and by what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct SearcherConfig {
    pub metric: String,
    pub smaller_is_better: bool,
    pub source_trial_id: Option<i64>,
    pub source_checkpoint_uuid: Option<String>,
    /// Nobody searches by it; scripts of an older form read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_length: Option<SearchLength>,
    #[serde(flatten)]
    pub method: Method,
}

/// How long a trial trains, as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SearchLength {
    /// A number alone, which counts batches.
    Plain(u64),
    /// A number of something.
    Of(Length),
}

impl SearchLength {
    /// What it means.
    pub fn length(self) -> Length {
        match self {
            SearchLength::Plain(units) => Length::batches(units),
            SearchLength::Of(length) => length,
        }
    }
}

/// The search itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Method {
    /// One trial.
    Single,
    /// Trials with hyperparameters drawn at random.
    Random {
        max_trials: u32,
        /// How many at a time; 0: all of them.
        max_concurrent_trials: u32,
    },
    /// One trial for each point of the grid.
    Grid {
        /// How many at a time; 0: all of them.
        max_concurrent_trials: u32,
    },
    /// Asynchronous successive halving.
    AsyncHalving(AsyncHalving),
    /// Several of those side by side, which stop early or late.
    AdaptiveAsha(AdaptiveAsha),
}

/// Asynchronous successive halving, one bracket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AsyncHalving {
    pub num_rungs: u32,
    pub max_trials: u32,
    #[serde(flatten)]
    pub time: Time,
    pub divisor: f64,
    pub max_concurrent_trials: u32,
    pub stop_once: bool,
}

/// Asynchronous successive halving, several brackets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AdaptiveAsha {
    pub max_trials: u32,
    #[serde(flatten)]
    pub time: Time,
    pub mode: Mode,
    pub divisor: f64,
    pub max_rungs: u32,
    pub max_concurrent_trials: u32,
    pub bracket_rungs: Vec<u32>,
    pub stop_once: bool,
}

/// How long a trial runs at most, and what tells how long it has run.
///
/// As a configuration has it, neither or both are set; a configuration of the older form has only `max_length`, and
/// [`SearcherConfig::span`] says what that means.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Time {
    pub max_time: Option<u64>,
    pub time_metric: Option<String>,
}

/// The time of a search: its length, and the metric that tells it; without one, the steps of a report do.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The longest that a trial runs.
    pub max_time: u64,
    /// The metric; `None`: the report's `steps_completed`.
    pub metric: Option<String>,
}

/// How boldly a search stops trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// From no early stop to all rungs.
    Conservative,
    /// The bolder half of those.
    Standard,
    /// All rungs.
    Aggressive,
}

/// Names of searches that exist.
const METHODS: &[&str] = &["single", "random", "grid", "async_halving", "adaptive_asha"];
/// Names of searches that Determined once had.
const REMOVED: &[&str] = &["custom", "adaptive", "adaptive_simple", "sync_halving"];
/// Trials of a search, at most.
const MOST_TRIALS: i64 = 1_000_000;
/// Rungs of a bracket, at most.
const MOST_RUNGS: i64 = 64;
/// Time of a search, at most: exact as a float.
const MOST_TIME: i64 = 1 << 53;

impl SearcherConfig {
    /// The name of the search, as configurations spell it.
    pub fn name(&self) -> &'static str {
        match self.method {
            Method::Single => "single",
            Method::Random { .. } => "random",
            Method::Grid { .. } => "grid",
            Method::AsyncHalving(_) => "async_halving",
            Method::AdaptiveAsha(_) => "adaptive_asha",
        }
    }

    /// What time is for this search; `None` for one that knows none.
    pub fn span(&self) -> Option<Span> {
        let time = match &self.method {
            Method::AsyncHalving(search) => &search.time,
            Method::AdaptiveAsha(search) => &search.time,
            _ => return None,
        };
        match (time.max_time, &time.time_metric, self.max_length.map(SearchLength::length)) {
            (Some(max_time), Some(metric), _) => Some(Span { max_time, metric: Some(metric.clone()) }),
            (_, _, Some(length)) => Some(Span { max_time: length.units, metric: None }),
            _ => None,
        }
    }

    /// Reads the section; mistakes are noted, and what people should know is added to `warnings`.
    pub(super) fn read(mut fields: Fields<'_>, warnings: &mut Vec<String>) -> SearcherConfig {
        let name = fields.text("name");
        let metric = fields.text("metric");
        if metric.is_none() {
            fields.wrong("metric", "is needed: the name of the validation metric to judge trials by");
        }
        let max_length = fields.take("max_length").and_then(|value| {
            let is_plain = value.is_number();
            let length = Length::read(&fields.path("max_length"), value, fields.mistakes())?;
            Some(if is_plain { SearchLength::Plain(length.units) } else { SearchLength::Of(length) })
        });
        let smaller_is_better = fields.flag("smaller_is_better").unwrap_or(true);
        let source_trial_id = fields.whole("source_trial_id", 1..=i64::MAX);
        let source_checkpoint_uuid = fields.text("source_checkpoint_uuid");
        let method = method(name.as_deref(), &mut fields, max_length.map(SearchLength::length), warnings);
        if name.is_some_and(|name| METHODS.contains(&name.as_str())) {
            fields.finish();
        }
        let metric = metric.unwrap_or_default();
        SearcherConfig { metric, smaller_is_better, source_trial_id, source_checkpoint_uuid, max_length, method }
    }
}

fn method(
    name: Option<&str>,
    fields: &mut Fields<'_>,
    max_length: Option<Length>,
    warnings: &mut Vec<String>,
) -> Method {
    match name {
        Some("single") => Method::Single,
        Some("random") => Method::Random { max_trials: max_trials(fields), max_concurrent_trials: concurrent(fields) },
        Some("grid") => Method::Grid { max_concurrent_trials: concurrent(fields) },
        Some("async_halving") => Method::AsyncHalving(async_halving(fields, max_length, warnings)),
        Some("adaptive_asha") => Method::AdaptiveAsha(adaptive_asha(fields, max_length, warnings)),
        other => {
            fields.wrong("name", unknown_method(other));
            Method::Single
        }
    }
}

fn unknown_method(name: Option<&str>) -> String {
    let all = METHODS.join(", ");
    match name {
        None => format!("is needed: one of {all}"),
        Some(name) if REMOVED.contains(&name) => {
            format!("the '{name}' searcher has been removed and is not valid for new experiments; use one of {all}")
        }
        Some(name) => match near(name, METHODS) {
            Some(near) => format!("`{name}` is not a searcher; did you mean `{near}`?"),
            None => format!("`{name}` is not a searcher; it must be one of {all}"),
        },
    }
}

fn max_trials(fields: &mut Fields<'_>) -> u32 {
    needed(fields, "max_trials", MOST_TRIALS, "how many trials to run")
}

/// A whole number from 1 that must be there.
fn needed(fields: &mut Fields<'_>, name: &'static str, most: i64, what: &str) -> u32 {
    if !fields.has(name) {
        fields.wrong(name, format!("is needed: {what}"));
    }
    fields.whole(name, 1..=most).and_then(|number| u32::try_from(number).ok()).unwrap_or(1)
}

fn concurrent(fields: &mut Fields<'_>) -> u32 {
    let given = fields.whole("max_concurrent_trials", 0..=MOST_TRIALS);
    given.and_then(|number| u32::try_from(number).ok()).unwrap_or(16)
}

fn divisor(fields: &mut Fields<'_>) -> f64 {
    match fields.number("divisor") {
        Some(divisor) if divisor > 1.0 => divisor,
        Some(divisor) => {
            fields.wrong("divisor", format!("must be more than 1, not {divisor}"));
            4.0
        }
        None => 4.0,
    }
}

fn async_halving(fields: &mut Fields<'_>, max_length: Option<Length>, warnings: &mut Vec<String>) -> AsyncHalving {
    AsyncHalving {
        num_rungs: needed(fields, "num_rungs", MOST_RUNGS, "at how many moments trials are compared"),
        max_trials: max_trials(fields),
        time: time("async_halving", fields, max_length, warnings),
        divisor: divisor(fields),
        max_concurrent_trials: concurrent(fields),
        stop_once: fields.flag("stop_once").unwrap_or(false),
    }
}

fn adaptive_asha(fields: &mut Fields<'_>, max_length: Option<Length>, warnings: &mut Vec<String>) -> AdaptiveAsha {
    let mode = match fields.choice("mode", &["conservative", "standard", "aggressive"]).as_deref() {
        Some("conservative") => Mode::Conservative,
        Some("aggressive") => Mode::Aggressive,
        _ => Mode::Standard,
    };
    let rungs = fields.whole("max_rungs", 1..=MOST_RUNGS).and_then(|number| u32::try_from(number).ok());
    AdaptiveAsha {
        max_trials: max_trials(fields),
        time: time("adaptive_asha", fields, max_length, warnings),
        mode,
        divisor: divisor(fields),
        max_rungs: rungs.unwrap_or(5),
        max_concurrent_trials: concurrent(fields),
        bracket_rungs: bracket_rungs(fields),
        stop_once: fields.flag("stop_once").unwrap_or(false),
    }
}

fn bracket_rungs(fields: &mut Fields<'_>) -> Vec<u32> {
    let rungs = fields.list("bracket_rungs");
    let mistakes = fields.mistakes();
    let read = |(path, value): (String, Value)| {
        let number = value.as_u64().filter(|number| (1..=MOST_RUNGS as u64).contains(number));
        if number.is_none() {
            mistakes.add(path, format!("must be a whole number from 1 to {MOST_RUNGS}"));
        }
        number.and_then(|number| u32::try_from(number).ok())
    };
    rungs.into_iter().filter_map(read).collect()
}

/// `max_time` and `time_metric`, or the older `max_length` in batches in their place.
fn time(name: &str, fields: &mut Fields<'_>, max_length: Option<Length>, warnings: &mut Vec<String>) -> Time {
    let max_time = fields.whole("max_time", 1..=MOST_TIME).map(i64::unsigned_abs);
    let time_metric = fields.text("time_metric");
    let time = Time { max_time, time_metric };
    match (time.max_time.is_some(), time.time_metric.is_some(), max_length) {
        (true, true, _) => {}
        (false, false, Some(Length { unit: Unit::Batches, units: 1.. })) => warnings.push(format!(
            "searcher.max_length is deprecated for `{name}`: it is read as that many batches of `steps_completed`; set \
             max_time and time_metric instead"
        )),
        (false, false, Some(length)) => fields.wrong(
            "max_length",
            format!(
                "`{name}` cannot count {} {}; set max_time, and time_metric to the metric that tells the time",
                length.units,
                length.unit.name()
            ),
        ),
        (_, true, _) => fields.wrong("max_time", missing(name)),
        _ => fields.wrong("time_metric", missing(name)),
    }
    time
}

fn missing(name: &str) -> String {
    format!("the `{name}` searcher requires `max_time` and `time_metric` to be set")
}
