//! Hyperparameters: constants, ranges to choose from, and groups of them.

use std::collections::BTreeMap;

use serde::de::Error;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::reader::{Fields, Mistakes, as_whole, join, near};

/// All hyperparameters of an experiment, by name. The order of names is the order in which they are drawn.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(transparent)]
pub struct Hyperparameters(pub BTreeMap<String, Hyperparameter>);

/// One hyperparameter, or a group of them.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Hyperparameter {
    /// Always the same.
    Const(Value),
    /// A whole number, both ends included.
    Int {
        minval: i64,
        maxval: i64,
        /// How many points a grid takes of it.
        count: Option<u32>,
    },
    /// A number.
    Double {
        minval: f64,
        maxval: f64,
        /// How many points a grid takes of it.
        count: Option<u32>,
    },
    /// A power of `base`, with an exponent between the two.
    Log {
        /// The smallest exponent.
        minval: f64,
        /// The largest exponent.
        maxval: f64,
        /// What is raised to it.
        base: f64,
        /// How many points a grid takes of it.
        count: Option<u32>,
    },
    /// One of these.
    Categorical {
        /// The choices.
        vals: Vec<Value>,
    },
    /// Hyperparameters of their own.
    Group(Hyperparameters),
}

/// The words that `type` may be.
const TYPES: &[&str] = &["const", "int", "double", "log", "categorical"];

/// How deep groups may lie in groups.
const DEEPEST: usize = 32;

impl Hyperparameters {
    pub(super) fn read(path: &str, fields: Map<String, Value>, mistakes: &Mistakes) -> Hyperparameters {
        group(path, fields, mistakes, 0)
    }

    /// The paths of those that a grid needs a count of and that have none.
    pub(super) fn without_count(&self, path: &str) -> Vec<String> {
        let of_one = |(name, parameter): (&String, &Hyperparameter)| match parameter {
            Hyperparameter::Int { count: None, .. }
            | Hyperparameter::Double { count: None, .. }
            | Hyperparameter::Log { count: None, .. } => vec![join(path, name)],
            Hyperparameter::Group(group) => group.without_count(&join(path, name)),
            _ => Vec::new(),
        };
        self.0.iter().flat_map(of_one).collect()
    }
}

fn group(path: &str, fields: Map<String, Value>, mistakes: &Mistakes, depth: usize) -> Hyperparameters {
    if depth > DEEPEST {
        mistakes.add(path, format!("groups are nested more than {DEEPEST} deep"));
        return Hyperparameters::default();
    }
    let read = |(name, value): (String, Value)| {
        let parameter = one(&join(path, &name), value, mistakes, depth);
        (name, parameter)
    };
    Hyperparameters(fields.into_iter().map(read).collect())
}

fn one(path: &str, value: Value, mistakes: &Mistakes, depth: usize) -> Hyperparameter {
    let Value::Object(map) = value else { return Hyperparameter::Const(value) };
    match map.get("type") {
        None | Some(Value::Object(_)) => Hyperparameter::Group(group(path, map, mistakes, depth + 1)),
        Some(Value::String(kind)) if TYPES.contains(&kind.as_str()) => {
            let kind = kind.clone();
            typed(&kind, Fields::new(path, map, mistakes))
        }
        Some(other) => {
            let shown = other.to_string();
            let shown = other.as_str().unwrap_or(&shown);
            let hint = match near(shown, TYPES) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("it must be one of {}", TYPES.join(", ")),
            };
            mistakes.add(join(path, "type"), format!("`{shown}` is not a kind of hyperparameter; {hint}"));
            Hyperparameter::Const(Value::Null)
        }
    }
}

fn typed(kind: &str, mut fields: Fields<'_>) -> Hyperparameter {
    fields.take("type");
    let parameter = match kind {
        "int" => int(&mut fields),
        "double" => {
            let (minval, maxval) = range(&mut fields);
            Hyperparameter::Double { minval, maxval, count: fields.count("count", 1) }
        }
        "log" => log(&mut fields),
        "categorical" => categorical(&mut fields),
        _ => constant(&mut fields),
    };
    fields.finish();
    parameter
}

fn constant(fields: &mut Fields<'_>) -> Hyperparameter {
    Hyperparameter::Const(fields.take("val").unwrap_or(Value::Null))
}

fn categorical(fields: &mut Fields<'_>) -> Hyperparameter {
    let vals: Vec<Value> = fields.list("vals").into_iter().map(|(_, value)| value).collect();
    if vals.is_empty() {
        fields.wrong("vals", "must be a list of at least one value to choose from");
    }
    Hyperparameter::Categorical { vals }
}

fn int(fields: &mut Fields<'_>) -> Hyperparameter {
    let mut bound = |name| {
        let value = fields.take(name);
        let number = value.as_ref().and_then(as_whole);
        if number.is_none() {
            fields.wrong(name, "must be a whole number");
        }
        number
    };
    let (minval, maxval) = (bound("minval"), bound("maxval"));
    if let (Some(minval), Some(maxval)) = (minval, maxval) {
        if minval > maxval {
            fields.wrong("maxval", format!("must not be less than minval, which is {minval}"));
        } else if maxval.checked_sub(minval).is_none_or(|size| size == i64::MAX) {
            fields.wrong("maxval", "the range is too wide to draw from");
        }
    }
    let count = fields.count("count", 1);
    Hyperparameter::Int { minval: minval.unwrap_or(0), maxval: maxval.unwrap_or(0), count }
}

fn log(fields: &mut Fields<'_>) -> Hyperparameter {
    let (minval, maxval) = range(fields);
    let base = match fields.number("base") {
        Some(base) if base > 0.0 => base,
        Some(base) => {
            fields.wrong("base", format!("must be more than 0, not {base}"));
            10.0
        }
        None => {
            fields.wrong("base", "is needed: the base of the exponents minval to maxval, such as 10");
            10.0
        }
    };
    if !base.powf(minval).is_finite() || !base.powf(maxval).is_finite() {
        fields.wrong("maxval", format!("{base} to this power is too large; minval and maxval are exponents"));
    }
    Hyperparameter::Log { minval, maxval, base, count: fields.count("count", 1) }
}

fn range(fields: &mut Fields<'_>) -> (f64, f64) {
    let mut bound = |name| {
        let number = fields.number(name);
        if number.is_none() {
            fields.wrong(name, "is needed, as a number");
        }
        number
    };
    let (minval, maxval) = (bound("minval"), bound("maxval"));
    if let (Some(minval), Some(maxval)) = (minval, maxval)
        && minval > maxval
    {
        fields.wrong("maxval", format!("must not be less than minval, which is {minval}"));
    }
    (minval.unwrap_or(0.0), maxval.unwrap_or(0.0))
}

impl<'de> Deserialize<'de> for Hyperparameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Hyperparameters, D::Error> {
        let mistakes = Mistakes::default();
        let read = Hyperparameters::read("", Map::deserialize(deserializer)?, &mistakes);
        match mistakes.into_result() {
            Ok(()) => Ok(read),
            Err(mistakes) => Err(D::Error::custom(mistakes.iter().map(ToString::to_string).collect::<String>())),
        }
    }
}

impl Serialize for Hyperparameter {
    /// With all keys, also for a constant that was written without them.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self {
            Hyperparameter::Group(group) => {
                for (name, parameter) in &group.0 {
                    map.serialize_entry(name, parameter)?;
                }
            }
            Hyperparameter::Const(value) => {
                map.serialize_entry("type", "const")?;
                map.serialize_entry("val", value)?;
            }
            Hyperparameter::Categorical { vals } => {
                map.serialize_entry("type", "categorical")?;
                map.serialize_entry("vals", vals)?;
            }
            Hyperparameter::Int { minval, maxval, count } => {
                map.serialize_entry("type", "int")?;
                map.serialize_entry("minval", minval)?;
                map.serialize_entry("maxval", maxval)?;
                map.serialize_entry("count", count)?;
            }
            Hyperparameter::Double { minval, maxval, count } => {
                map.serialize_entry("type", "double")?;
                map.serialize_entry("minval", minval)?;
                map.serialize_entry("maxval", maxval)?;
                map.serialize_entry("count", count)?;
            }
            Hyperparameter::Log { minval, maxval, base, count } => {
                map.serialize_entry("type", "log")?;
                map.serialize_entry("minval", minval)?;
                map.serialize_entry("maxval", maxval)?;
                map.serialize_entry("base", base)?;
                map.serialize_entry("count", count)?;
            }
        }
        map.end()
    }
}
