//! Roll-ups: type, last, minimum, maximum, sum and count of a metric.

use std::collections::BTreeMap;

use instep_api::identifiers::TrialId;
use instep_api::metrics::{PROFILING, TRAINING, VALIDATION};
use instep_api::values::float_value;
use instep_api::wire::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::chunk::Point;
use super::tail;
use crate::error::{Error, Result};
use crate::sql::Connection;

/// The roll-up of a series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RollUp {
    /// The word that the API has for the kind of all values; `string` if they differ.
    kind: String,
    count: i64,
    #[serde(with = "lossless")]
    sum: f64,
    #[serde(with = "lossless")]
    minimum: f64,
    #[serde(with = "lossless")]
    maximum: f64,
    last_step: i64,
    last_time: i64,
    last: Value,
}

/// Floats that may not be finite, which JSON has no numbers for.
mod lossless {
    use instep_api::values::{Datum, float_value};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    pub(super) fn serialize<S: Serializer>(float: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        float_value(*float).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Datum::of(&value).number().ok_or_else(|| serde::de::Error::custom("not a number"))
    }
}

impl RollUp {
    /// Of nothing yet.
    pub(crate) fn empty() -> RollUp {
        RollUp {
            kind: String::new(),
            count: 0,
            sum: 0.0,
            minimum: f64::NAN,
            maximum: f64::NAN,
            last_step: i64::MIN,
            last_time: i64::MIN,
            last: Value::Null,
        }
    }

    /// Reads what was stored.
    pub(crate) fn parse(text: &str) -> Result<RollUp> {
        serde_json::from_str(text).map_err(|error| Error::Damaged(format!("a roll-up: {error}")))
    }

    /// Takes one more point in, in any order.
    pub(crate) fn add(&mut self, point: &Point) {
        let Point { step, time, value, .. } = point;
        let number = value.number();
        let kind = if number.is_some() { "number" } else { kind_of(&value.value()) };
        if self.count == 0 {
            kind.clone_into(&mut self.kind);
        } else if self.kind != kind {
            "string".clone_into(&mut self.kind);
        }
        self.count += 1;
        if let Some(number) = number {
            self.sum += number;
            // `min` and `max` of floats prefer numbers to NaN.
            self.minimum = self.minimum.min(number);
            self.maximum = self.maximum.max(number);
        }
        if (*step, *time) >= (self.last_step, self.last_time) {
            (self.last_step, self.last_time) = (*step, *time);
            self.last = value.value();
        }
    }

    /// As the API shows it.
    fn shown(&self) -> Value {
        let mut shown = json!({"type": self.kind, "last": self.last});
        if self.kind == "number" {
            shown["min"] = float_value(self.minimum);
            shown["max"] = float_value(self.maximum);
            shown["sum"] = float_value(self.sum);
            shown["mean"] = float_value(self.sum / self.count as f64);
            shown["count"] = Value::from(self.count);
        }
        shown
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Number(_) => "number",
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::String(text) if Timestamp::parse(text).is_some() => "date",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The name under which the API shows a group.
fn shown_name(group: &str) -> &str {
    match group {
        TRAINING => "avg_metrics",
        VALIDATION => "validation_metrics",
        other => other,
    }
}

/// The summary of everything that a trial reported, the machine's groups left out.
pub(crate) fn of_trial(connection: &Connection, trial: TrialId) -> Result<Value> {
    let mut groups: BTreeMap<String, BTreeMap<String, RollUp>> = BTreeMap::new();
    let sql = "SELECT group_name, name, roll_up FROM metric_series WHERE trial_id = ?";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([trial.0])?;
    while let Some(row) = rows.next()? {
        let roll_up: String = row.get(2)?;
        groups.entry(row.get(0)?).or_default().insert(row.get(1)?, RollUp::parse(&roll_up)?);
    }
    let shown = |group: &str| !PROFILING.contains(&group);
    tail::each_point(
        connection,
        trial,
        None,
        (i64::MIN, i64::MAX),
        |_| true,
        |group, name, points| {
            if !shown(group) {
                return;
            }
            // Looked up by reference first: all but the first values of a metric find it there.
            if !groups.contains_key(group) {
                groups.insert(group.to_owned(), BTreeMap::new());
            }
            let Some(metrics) = groups.get_mut(group) else { return };
            if !metrics.contains_key(name) {
                metrics.insert(name.to_owned(), RollUp::empty());
            }
            let Some(roll_up) = metrics.get_mut(name) else { return };
            points.for_each(|point| roll_up.add(&point));
        },
    )?;
    let mut summary = Map::new();
    for (group, metrics) in groups.into_iter().filter(|(group, _)| shown(group)) {
        let metrics = metrics.into_iter().filter(|(_, roll_up)| roll_up.count > 0);
        let metrics: Map<String, Value> = metrics.map(|(name, roll_up)| (name, roll_up.shown())).collect();
        if !metrics.is_empty() {
            summary.insert(shown_name(&group).to_owned(), Value::Object(metrics));
        }
    }
    Ok(Value::Object(summary))
}

#[cfg(test)]
mod tests {
    use instep_api::values::Datum;

    use super::*;

    fn roll_up(values: &[Value]) -> RollUp {
        let mut roll_up = RollUp::empty();
        for (step, value) in values.iter().enumerate() {
            roll_up.add(&Point { step: step as i64, run: 1, time: 0, value: Datum::of(value) });
        }
        roll_up
    }

    #[test]
    fn summaries_have_determined_s_shape() {
        let cases = [
            (
                vec![json!(1), json!(3.0)],
                json!({"type":"number","last":3.0,"min":1.0,"max":3.0,"sum":4.0,"mean":2.0,"count":2}),
            ),
            (
                vec![json!(1), json!("NaN")],
                json!({"type":"number","last":"NaN","min":1.0,"max":1.0,"sum":"NaN","mean":"NaN","count":2}),
            ),
            (vec![json!(1), json!("x")], json!({"type":"string","last":"x"})),
            (vec![json!(true)], json!({"type":"boolean","last":true})),
            (vec![json!(null)], json!({"type":"null","last":null})),
            (vec![json!("2026-01-02T03:04:05Z")], json!({"type":"date","last":"2026-01-02T03:04:05Z"})),
            (vec![json!([1]), json!({"a":1})], json!({"type":"string","last":{"a":1}})),
        ];
        for (values, expected) in cases {
            assert_eq!(roll_up(&values).shown(), expected, "{values:?}");
        }
    }

    #[test]
    fn a_roll_up_is_read_back_as_it_was() {
        for values in [vec![json!(0.1), json!("Infinity")], vec![json!("x")], vec![json!(7)]] {
            let original = roll_up(&values);
            let text = serde_json::to_string(&original).unwrap();
            // Compared as text, because NaN differs from itself.
            assert_eq!(serde_json::to_string(&RollUp::parse(&text).unwrap()).unwrap(), text);
        }
    }
}
