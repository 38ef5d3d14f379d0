//! Whether a field of a filter holds.

use std::cmp::Ordering;

use instep_api::wire::Timestamp;
use serde_json::Value;

use super::{Column, Operator};

/// Whether what a row has in a column compares with a value as the operator says.
pub(super) fn holds(column: &Column, found: Option<Value>, operator: Operator, wanted: &Value) -> bool {
    let found = found.filter(|found| !found.is_null());
    match (column, &found) {
        (Column::Plain("state"), Some(found)) => plain(Some(&state(found)), operator, &state(wanted)),
        (Column::Hyperparameter(_), Some(Value::Object(range))) if range.contains_key("type") => {
            in_range(range, operator, wanted)
        }
        _ => plain(found.as_ref(), operator, wanted),
    }
}

/// A state as filters spell it: without its prefix, and one word for all that active ones do.
fn state(value: &Value) -> Value {
    let text = value.as_str().unwrap_or_default();
    match text.strip_prefix("STATE_").unwrap_or(text) {
        "QUEUED" | "PULLING" | "STARTING" | "RUNNING" => Value::from("ACTIVE"),
        other => Value::from(other),
    }
}

fn plain(found: Option<&Value>, operator: Operator, wanted: &Value) -> bool {
    let is_empty = found.is_none_or(|found| match found {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    });
    match operator {
        Operator::Empty => return is_empty,
        Operator::NotEmpty => return !is_empty,
        _ => {}
    }
    let Some(found) = found else { return false };
    let ordering = || order(found, wanted);
    match operator {
        Operator::Equal => ordering() == Some(Ordering::Equal),
        Operator::NotEqual => ordering() != Some(Ordering::Equal),
        Operator::Less => ordering() == Some(Ordering::Less),
        Operator::LessOrEqual => matches!(ordering(), Some(Ordering::Less | Ordering::Equal)),
        Operator::Greater => ordering() == Some(Ordering::Greater),
        Operator::GreaterOrEqual => matches!(ordering(), Some(Ordering::Greater | Ordering::Equal)),
        Operator::Contains => contains(found, wanted),
        Operator::NotContains => !contains(found, wanted),
        Operator::Empty | Operator::NotEmpty => false,
    }
}

/// A hyperparameter as a search is told it: one value, several, or all between two.
fn in_range(range: &serde_json::Map<String, Value>, operator: Operator, wanted: &Value) -> bool {
    let part = |name: &str| range.get(name).filter(|value| !value.is_null());
    match range.get("type").and_then(Value::as_str).unwrap_or_default() {
        "const" => plain(part("val"), operator, wanted),
        "categorical" => {
            let values = part("vals").and_then(Value::as_array).map_or(&[] as &[Value], Vec::as_slice);
            let is_among = values.iter().any(|value| order(value, wanted) == Some(Ordering::Equal));
            match operator {
                Operator::Contains => is_among,
                Operator::NotContains => !is_among,
                Operator::Empty => values.is_empty(),
                Operator::NotEmpty => !values.is_empty(),
                _ => values.iter().any(|value| plain(Some(value), operator, wanted)),
            }
        }
        _ => {
            let (least, most) = (part("minval"), part("maxval"));
            let at_most = |bound: Option<&Value>| plain(bound, Operator::LessOrEqual, wanted);
            let at_least = |bound: Option<&Value>| plain(bound, Operator::GreaterOrEqual, wanted);
            match operator {
                Operator::Contains => at_most(least) && at_least(most),
                Operator::NotContains => !(at_most(least) && at_least(most)),
                Operator::Empty => false,
                Operator::NotEmpty => true,
                _ => plain(least, operator, wanted) || plain(most, operator, wanted),
            }
        }
    }
}

/// Which of two values comes first: as numbers, times or texts, whichever both are.
pub(super) fn order(found: &Value, wanted: &Value) -> Option<Ordering> {
    if let (Some(one), Some(other)) = (number(found), number(wanted)) {
        return one.partial_cmp(&other);
    }
    match (found, wanted) {
        (Value::Bool(one), Value::Bool(other)) => Some(one.cmp(other)),
        (Value::Bool(one), Value::String(other)) => Some(one.cmp(&other.parse().ok()?)),
        (Value::String(one), Value::String(other)) => Some(match (time(one), time(other)) {
            (Some(one), Some(other)) => one.cmp(&other),
            _ => one.cmp(other),
        }),
        _ => None,
    }
}

/// Which of two values is shown first: numbers, then truth values, then texts, then the rest. A total order, unlike
/// [`order`], which takes `"10"` for a number beside `"9"` and for a text beside `"1x"`.
pub(super) fn rank(one: &Value, other: &Value) -> Ordering {
    let class = |value: &Value| match value {
        Value::Number(_) => 0,
        Value::Bool(_) => 1,
        Value::String(_) => 2,
        _ => 3,
    };
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one.as_f64().unwrap_or_default().total_cmp(&other.as_f64().unwrap_or_default())
        }
        (Value::Bool(one), Value::Bool(other)) => one.cmp(other),
        (Value::String(one), Value::String(other)) => one.cmp(other),
        _ => class(one).cmp(&class(other)).then_with(|| one.to_string().cmp(&other.to_string())),
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// A moment, or the beginning of a day.
fn time(text: &str) -> Option<Timestamp> {
    Timestamp::parse(text).or_else(|| Timestamp::parse(&format!("{text}T00:00:00Z")))
}

/// Whether a text holds another in any case, or a list an element that does.
fn contains(found: &Value, wanted: &Value) -> bool {
    let text = |value: &Value| match value {
        Value::String(text) => text.to_lowercase(),
        other => other.to_string().to_lowercase(),
    };
    match found {
        Value::Array(list) => list.iter().any(|element| contains(element, wanted)),
        found => text(found).contains(&text(wanted)),
    }
}
