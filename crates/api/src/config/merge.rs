//! Laying one configuration over another: the upper one wins, field by field.
//!
//! Maps are merged key by key. What is one of several kinds (a storage, a searcher, a hyperparameter) is merged only
//! with its own kind; of a hyperparameter that is no group nothing is merged. Mounts and devices are joined, the upper ones first, and a lower one gives way where both mean the
//! same path in the task; variables are joined, the lower ones first, so that later and therefore upper ones win; log
//! policies are joined by name. Every other list is replaced. Null is the same as absent, but for hyperparameters, where it
//! is a value.

use serde_json::{Map, Value, json};

use super::policies;
use super::resources::spelled_out;
use super::storage::KEPT;

/// Keys that every searcher has, whatever its name.
const SEARCHER: &[&str] = &["metric", "smaller_is_better", "source_trial_id", "source_checkpoint_uuid"];

/// How deep maps are merged; what lies deeper comes from above.
const DEEPEST: usize = 64;

/// `upper` laid over `lower`.
pub(super) fn merge(upper: Value, lower: Value) -> Value {
    keys(upper, lower, |name, upper, lower| match name {
        "bind_mounts" => mounts(upper, lower),
        "log_policies" => named_policies(upper, lower),
        "checkpoint_storage" | "tensorboard_storage" => kinds(upper, lower, "type", KEPT),
        "searcher" => kinds(upper, lower, "name", SEARCHER),
        "resources" => keys(upper, lower, |name, upper, lower| match name {
            "devices" => mounts(each(upper, spelled_out), each(lower, spelled_out)),
            _ => upper,
        }),
        "environment" => keys(upper, lower, |name, upper, lower| match name {
            "environment_variables" => variables(upper, lower),
            "image" => deep(by_device(upper), by_device(lower), 0),
            _ => deep(upper, lower, 0),
        }),
        "hyperparameters" => hyperparameters(upper, lower, 0),
        // A length is one thing, though it is written as a map.
        "min_validation_period" | "min_checkpoint_period" | "labels" => upper,
        _ => deep(upper, lower, 0),
    })
}

/// Two maps, key by key: `both` decides where both have one. Of anything else the upper one is taken.
fn keys(upper: Value, lower: Value, both: impl Fn(&str, Value, Value) -> Value) -> Value {
    match (upper, lower) {
        (Value::Object(upper), Value::Object(mut lower)) => {
            for (name, value) in upper {
                let merged = match lower.remove(&name) {
                    None | Some(Value::Null) => value,
                    Some(under) if value.is_null() => under,
                    Some(under) => both(&name, value, under),
                };
                lower.insert(name, merged);
            }
            Value::Object(lower)
        }
        (Value::Null, lower) => lower,
        (upper, _) => upper,
    }
}

fn deep(upper: Value, lower: Value, depth: usize) -> Value {
    if depth > DEEPEST {
        return upper;
    }
    keys(upper, lower, |_, upper, lower| deep(upper, lower, depth + 1))
}

fn hyperparameters(upper: Value, lower: Value, depth: usize) -> Value {
    if depth > DEEPEST {
        return upper;
    }
    match (upper, lower) {
        (Value::Object(upper), Value::Object(lower)) if is_group(&upper) && is_group(&lower) => {
            let mut merged = lower;
            for (name, value) in upper {
                let value = match merged.remove(&name) {
                    Some(under) => hyperparameters(value, under, depth + 1),
                    None => value,
                };
                merged.insert(name, value);
            }
            Value::Object(merged)
        }
        (upper, _) => upper,
    }
}

/// Whether a map is hyperparameters by their names, and not one hyperparameter.
fn is_group(fields: &Map<String, Value>) -> bool {
    fields.get("type").is_none_or(Value::is_object)
}

/// Things of several kinds: merged with their own kind, except for the keys that all kinds have.
fn kinds(upper: Value, lower: Value, key: &str, common: &[&str]) -> Value {
    let kind = |value: &Value| value.get(key).filter(|kind| !kind.is_null()).cloned();
    let same = match (kind(&upper), kind(&lower)) {
        (Some(upper), Some(lower)) => upper == lower,
        _ => true,
    };
    let lower = match lower {
        Value::Object(mut fields) if !same => {
            fields.retain(|name, _| common.contains(&name.as_str()));
            Value::Object(fields)
        }
        lower => lower,
    };
    keys(upper, lower, |_, upper, _| upper)
}

fn each(value: Value, change: impl Fn(Value) -> Value) -> Value {
    match value {
        Value::Array(elements) => Value::Array(elements.into_iter().map(change).collect()),
        other => other,
    }
}

fn mounts(upper: Value, lower: Value) -> Value {
    joined(upper, lower, |one, other| one["container_path"] == other["container_path"])
}

fn named_policies(upper: Value, lower: Value) -> Value {
    joined(each(upper, policies::plain), each(lower, policies::plain), |one, other| {
        match (&one["name"], &other["name"]) {
            (Value::Null, Value::Null) => one == other,
            (one, other) => one == other,
        }
    })
}

/// The upper list, and after it what the lower one has beside it.
fn joined(upper: Value, lower: Value, same: impl Fn(&Value, &Value) -> bool) -> Value {
    match (upper, lower) {
        (Value::Array(mut upper), Value::Array(lower)) => {
            let own = upper.len();
            for element in lower {
                if !upper[..own].iter().any(|known| same(known, &element)) {
                    upper.push(element);
                }
            }
            Value::Array(upper)
        }
        (upper, _) => upper,
    }
}

/// A value for each kind of device, also where one was given for all.
fn by_device(value: Value) -> Value {
    match value {
        value @ (Value::Array(_) | Value::String(_)) => json!({"cpu": value, "cuda": value, "rocm": value}),
        // `gpu` is what Determined once called `cuda`.
        Value::Object(mut fields) => {
            if let Some(value) = fields.remove("gpu") {
                fields.entry("cuda").or_insert(value);
            }
            Value::Object(fields)
        }
        other => other,
    }
}

fn variables(upper: Value, lower: Value) -> Value {
    keys(by_device(upper), by_device(lower), |_, upper, lower| match (upper, lower) {
        (Value::Array(upper), Value::Array(mut lower)) => {
            lower.extend(upper);
            Value::Array(lower)
        }
        (upper, _) => upper,
    })
}

/// A configuration of one field.
pub(super) fn only(name: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(name.to_owned(), value)]))
}
