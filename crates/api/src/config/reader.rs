//! Reading a map field by field: every mistake is noted with its path, and reading goes on, so that all of them are
//! told at once.
//!
//! A [`Fields`] remembers which names were asked for. What is left when it is finished is unknown, and the names asked
//! for are what a misspelled one can have meant.

use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

/// One mistake in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The key, with those above it: `searcher.max_trials`; empty for the whole.
    pub path: String,
    /// What is wrong with it, and what to write instead.
    pub what: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            formatter.write_str(&self.what)
        } else {
            write!(formatter, "{}: {}", self.path, self.what)
        }
    }
}

impl std::error::Error for ConfigError {}

/// How alike a key and a known one must be for the second to be suggested.
const ALIKE: f64 = 0.75;

/// The mistakes found so far.
#[derive(Debug, Default)]
pub(super) struct Mistakes(RefCell<Vec<ConfigError>>);

impl Mistakes {
    pub(super) fn add(&self, path: impl Into<String>, what: impl Into<String>) {
        self.0.borrow_mut().push(ConfigError { path: path.into(), what: what.into() });
    }

    pub(super) fn into_result(self) -> Result<(), Vec<ConfigError>> {
        let found = self.0.into_inner();
        if found.is_empty() { Ok(()) } else { Err(found) }
    }
}

/// A path with one more key.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// A map that is being read.
pub(super) struct Fields<'m> {
    path: String,
    fields: Map<String, Value>,
    known: Vec<&'static str>,
    mistakes: &'m Mistakes,
}

impl<'m> Fields<'m> {
    pub(super) fn new(path: impl Into<String>, fields: Map<String, Value>, mistakes: &'m Mistakes) -> Fields<'m> {
        Fields { path: path.into(), fields, known: Vec::new(), mistakes }
    }

    /// Reads `value` as a map; anything else is a mistake, and reads as an empty one.
    pub(super) fn of(path: impl Into<String>, value: Value, mistakes: &'m Mistakes) -> Fields<'m> {
        let path = path.into();
        let fields = match value {
            Value::Object(fields) => fields,
            other => {
                mistakes.add(&path, format!("must be a map of keys, not {}", kind(&other)));
                Map::new()
            }
        };
        Fields::new(path, fields, mistakes)
    }

    pub(super) fn path(&self, name: &str) -> String {
        join(&self.path, name)
    }

    /// Notes a mistake in the field `name`.
    pub(super) fn wrong(&self, name: &str, what: impl Into<String>) {
        self.mistakes.add(self.path(name), what);
    }

    pub(super) fn mistakes(&self) -> &'m Mistakes {
        self.mistakes
    }

    /// The field as it is; null is the same as absent.
    pub(super) fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    /// Whether the field is set.
    pub(super) fn has(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|value| !value.is_null())
    }

    /// A text; a number counts as one, because `name: 12` is a name all the same.
    pub(super) fn text(&mut self, name: &'static str) -> Option<String> {
        let value = self.take(name)?;
        let text = as_text(&value);
        if text.is_none() {
            self.wrong(name, format!("must be text, not {}", kind(&value)));
        }
        text
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Option<bool> {
        let value = self.take(name)?;
        let flag = value.as_bool();
        if flag.is_none() {
            self.wrong(name, format!("must be true or false, not {}", kind(&value)));
        }
        flag
    }

    /// A whole number in a range.
    pub(super) fn whole(&mut self, name: &'static str, range: RangeInclusive<i64>) -> Option<i64> {
        let value = self.take(name)?;
        let number = as_whole(&value);
        match number {
            Some(number) if range.contains(&number) => Some(number),
            Some(number) => {
                let limit = if number < *range.start() {
                    format!("must be at least {}", range.start())
                } else {
                    format!("must be at most {}", range.end())
                };
                self.wrong(name, format!("{limit}, not {number}"));
                None
            }
            None => {
                self.wrong(name, format!("must be a whole number, not {}", kind(&value)));
                None
            }
        }
    }

    /// A count: a whole number that fits what counts are kept in.
    pub(super) fn count(&mut self, name: &'static str, least: u32) -> Option<u32> {
        self.whole(name, i64::from(least)..=i64::from(u32::MAX)).and_then(|number| u32::try_from(number).ok())
    }

    pub(super) fn number(&mut self, name: &'static str) -> Option<f64> {
        let value = self.take(name)?;
        let number = value.as_f64().filter(|number| number.is_finite());
        if number.is_none() {
            self.wrong(name, format!("must be a number, not {}", kind(&value)));
        }
        number
    }

    /// One of a few words.
    pub(super) fn choice(&mut self, name: &'static str, words: &[&str]) -> Option<String> {
        let word = self.text(name)?;
        if words.contains(&word.as_str()) {
            return Some(word);
        }
        self.wrong(name, format!("`{word}` is not one of {}", words.join(", ")));
        None
    }

    /// A map of fields; an empty one where there is none.
    pub(super) fn section(&mut self, name: &'static str) -> Fields<'m> {
        let value = self.take(name).unwrap_or_else(|| Value::Object(Map::new()));
        Fields::of(self.path(name), value, self.mistakes)
    }

    /// A map that is kept as it is.
    pub(super) fn map(&mut self, name: &'static str) -> Option<Map<String, Value>> {
        match self.take(name)? {
            Value::Object(map) => Some(map),
            other => {
                self.wrong(name, format!("must be a map, not {}", kind(&other)));
                None
            }
        }
    }

    /// Undoes the [`take`](Self::take) of a list, to be read as one.
    pub(super) fn restore_list(&mut self, name: &str, elements: Vec<Value>) {
        self.fields.insert(name.to_owned(), Value::Array(elements));
    }

    /// The elements of a list with their paths; none where there is no list.
    pub(super) fn list(&mut self, name: &'static str) -> Vec<(String, Value)> {
        match self.take(name) {
            None => Vec::new(),
            Some(Value::Array(elements)) => {
                let path = self.path(name);
                elements.into_iter().enumerate().map(|(index, value)| (format!("{path}[{index}]"), value)).collect()
            }
            Some(other) => {
                self.wrong(name, format!("must be a list, not {}", kind(&other)));
                Vec::new()
            }
        }
    }

    /// A list of texts.
    pub(super) fn texts(&mut self, name: &'static str) -> Vec<String> {
        let elements = self.list(name);
        elements.into_iter().filter_map(|(path, value)| text_at(&path, &value, self.mistakes)).collect()
    }

    /// Complains about what nobody asked for.
    pub(super) fn finish(self) {
        for name in self.fields.keys() {
            self.mistakes.add(join(&self.path, name), unknown(name, &self.known));
        }
    }
}

fn unknown(name: &str, known: &[&'static str]) -> String {
    match near(name, known) {
        Some(near) => format!("unknown key; did you mean `{near}`?"),
        None => {
            let mut known = known.to_vec();
            known.sort_unstable();
            format!("unknown key; the keys here are {}", known.join(", "))
        }
    }
}

/// The word that `name` most resembles, if it resembles one.
pub(super) fn near<'w>(name: &str, words: &[&'w str]) -> Option<&'w str> {
    words
        .iter()
        .map(|word| (strsim::jaro_winkler(name, word), *word))
        .filter(|(likeness, _)| *likeness > ALIKE)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, word)| word)
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The text at `path`, or a mistake.
pub(super) fn text_at(path: &str, value: &Value, mistakes: &Mistakes) -> Option<String> {
    let text = as_text(value);
    if text.is_none() {
        mistakes.add(path, format!("must be text, not {}", kind(value)));
    }
    text
}

/// A whole number, also one that is written `3.0`.
pub(super) fn as_whole(value: &Value) -> Option<i64> {
    /// Beyond this a fraction of a float is no longer told apart.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    value.as_i64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64)
    })
}

/// What a value is, in a word.
pub(super) fn kind(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.len() > 40 => "a text".to_owned(),
        Value::String(text) => format!("the text `{text}`"),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
    }
}
