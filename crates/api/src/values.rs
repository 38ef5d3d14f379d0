//! The values of a report: what each metric was.
//!
//! Reports come by the thousand, so they are read into as few pieces of memory as can be: all names lie in one text, one
//! behind the other, and a number is a number and not a tree of JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Number, Value};

/// A value of a metric.
#[derive(Debug, Clone, PartialEq)]
pub enum Datum {
    /// A number, also one that is not finite.
    Float(f64),
    /// A whole number, which is shown without a fraction.
    Integer(i64),
    /// The JSON of anything else.
    Json(String),
}

impl Datum {
    /// The value of a JSON value. Numbers that are not finite come as strings.
    pub fn of(value: &Value) -> Datum {
        match value {
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => Datum::Integer(whole),
                (None, Some(float)) if !number.is_u64() => Datum::Float(float),
                _ => Datum::Json(value.to_string()),
            },
            Value::String(text) => Datum::of_text(text),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => Datum::Json(value.to_string()),
        }
    }

    fn of_text(text: &str) -> Datum {
        match text {
            "NaN" => Datum::Float(f64::NAN),
            "Infinity" => Datum::Float(f64::INFINITY),
            "-Infinity" => Datum::Float(f64::NEG_INFINITY),
            _ => Datum::Json(Value::from(text).to_string()),
        }
    }

    /// The JSON value of it.
    pub fn value(&self) -> Value {
        match self {
            Datum::Float(float) => float_value(*float),
            Datum::Integer(whole) => Value::from(*whole),
            // It was JSON when it was written; damage shows as null rather than as an error of everything around it.
            Datum::Json(text) => serde_json::from_str(text).unwrap_or(Value::Null),
        }
    }

    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Datum::Float(float) => Some(*float),
            Datum::Integer(whole) => Some(*whole as f64),
            Datum::Json(_) => None,
        }
    }
}

/// A float in JSON: a number, or a string if it is not finite.
pub fn float_value(float: f64) -> Value {
    Number::from_f64(float).map_or_else(
        || {
            let name = if float.is_nan() {
                "NaN"
            } else if float > 0.0 {
                "Infinity"
            } else {
                "-Infinity"
            };
            Value::from(name)
        },
        Value::Number,
    )
}

/// The number in a JSON value, if it is a finite one.
pub fn finite_number(value: &Value) -> Option<f64> {
    Datum::of(value).number().filter(|number| number.is_finite())
}

impl Serialize for Datum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Datum::Float(float) if float.is_finite() => serializer.serialize_f64(*float),
            Datum::Integer(whole) => serializer.serialize_i64(*whole),
            Datum::Float(_) | Datum::Json(_) => self.value().serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Datum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Datum, D::Error> {
        deserializer.deserialize_any(AnyDatum)
    }
}

struct AnyDatum;

impl<'de> Visitor<'de> for AnyDatum {
    type Value = Datum;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the value of a metric")
    }

    fn visit_f64<E>(self, float: f64) -> Result<Datum, E> {
        Ok(Datum::Float(float))
    }

    fn visit_i64<E>(self, whole: i64) -> Result<Datum, E> {
        Ok(Datum::Integer(whole))
    }

    fn visit_u64<E>(self, whole: u64) -> Result<Datum, E> {
        Ok(i64::try_from(whole).map_or_else(|_| Datum::Json(whole.to_string()), Datum::Integer))
    }

    fn visit_str<E>(self, text: &str) -> Result<Datum, E> {
        Ok(Datum::of_text(text))
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Datum, E> {
        Ok(Datum::Json(truth.to_string()))
    }

    fn visit_unit<E>(self) -> Result<Datum, E> {
        Ok(Datum::Json("null".to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Datum, A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(list)).map(|value| Datum::Json(value.to_string()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Datum, A::Error> {
        Value::deserialize(MapAccessDeserializer::new(map)).map(|value| Datum::Json(value.to_string()))
    }
}

/// Metrics and their values, by name, each once. Of a name that comes twice the last value counts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Values {
    /// All names, one behind the other.
    names: String,
    /// Where each name ends, and its value.
    entries: Vec<(usize, Datum)>,
}

impl Values {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Datum)> {
        self.entries.iter().enumerate().map(|(index, (_, datum))| (self.name(index), datum))
    }

    /// The value at a place in the order of names.
    pub fn at(&self, index: usize) -> Option<&Datum> {
        self.entries.get(index).map(|(_, datum)| datum)
    }

    /// The value of a metric.
    pub fn get(&self, name: &str) -> Option<&Datum> {
        let (mut low, mut high) = (0, self.entries.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.name(middle).cmp(name) {
                std::cmp::Ordering::Equal => return self.at(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Whether these are values of the same metrics as others.
    pub fn have_names_of(&self, other: &Values) -> bool {
        let ends = |values: &Values| values.entries.iter().map(|(end, _)| *end).collect::<Vec<_>>();
        self.names == other.names && self.len() == other.len() && ends(self) == ends(other)
    }

    /// The JSON object of them.
    pub fn object(&self) -> Map<String, Value> {
        self.iter().map(|(name, datum)| (name.to_owned(), datum.value())).collect()
    }

    fn name(&self, index: usize) -> &str {
        let begin = if index == 0 { 0 } else { self.entries[index - 1].0 };
        &self.names[begin..self.entries[index].0]
    }

    fn push(&mut self, name: &str, datum: Datum) {
        self.names.push_str(name);
        self.entries.push((self.names.len(), datum));
    }

    /// Puts what came in any order into the order of names.
    fn ordered(self) -> Values {
        if (1..self.len()).all(|index| self.name(index - 1) < self.name(index)) {
            return self;
        }
        let by_name: BTreeMap<&str, &Datum> = self.iter().collect();
        let mut ordered = Values::default();
        by_name.into_iter().for_each(|(name, datum)| ordered.push(name, datum.clone()));
        ordered
    }
}

impl<'a> FromIterator<(&'a str, Datum)> for Values {
    fn from_iter<T: IntoIterator<Item = (&'a str, Datum)>>(pairs: T) -> Values {
        let mut values = Values::default();
        pairs.into_iter().for_each(|(name, datum)| values.push(name, datum));
        values.ordered()
    }
}

impl From<&Map<String, Value>> for Values {
    fn from(object: &Map<String, Value>) -> Values {
        object.iter().map(|(name, value)| (name.as_str(), Datum::of(value))).collect()
    }
}

impl Serialize for Values {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len()))?;
        for (name, datum) in self.iter() {
            map.serialize_entry(name, datum)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Values, D::Error> {
        deserializer.deserialize_map(AllValues)
    }
}

struct AllValues;

impl<'de> Visitor<'de> for AllValues {
    type Value = Values;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of metrics")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Values, A::Error> {
        // Room for a dozen metrics with names of usual length, so that most reports need no more.
        let mut values = Values { names: String::with_capacity(192), entries: Vec::with_capacity(12) };
        while map.next_key_seed(NextName(&mut values.names))?.is_some() {
            values.entries.push((values.names.len(), map.next_value()?));
        }
        Ok(values.ordered())
    }
}

/// Appends a name to those before it.
struct NextName<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for NextName<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for NextName<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the name of a metric")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<(), E> {
        self.0.push_str(name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_what_their_json_says() {
        let text = r#"{"b": 1.5, "a": 7, "c": "NaN", "d": [1, {"x": null}], "e": 18446744073709551615, "a": -8,
                       "f": "text", "": true, "g": null, "h\n\"": {"deep": 1}}"#;
        let values: Values = serde_json::from_str(text).unwrap();
        let object: Map<String, Value> = serde_json::from_str(text).unwrap();
        assert_eq!(values.object(), object);
        assert_eq!(values.len(), object.len());
        assert_eq!(values.get("a"), Some(&Datum::Integer(-8)));
        assert_eq!(values.get("nothing"), None);
        assert_eq!(serde_json::to_value(&values).unwrap(), Value::Object(object));
        for wrong in ["[1]", "1", r#"{"a": 1e999}"#, r#"{"a"}"#] {
            assert!(serde_json::from_str::<Values>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_compared_one_by_one() {
        let values = |text: &str| serde_json::from_str::<Values>(text).unwrap();
        assert!(values(r#"{"a": 1, "bc": 2}"#).have_names_of(&values(r#"{"bc": 0, "a": "x"}"#)));
        assert!(!values(r#"{"a": 1, "bc": 2}"#).have_names_of(&values(r#"{"ab": 1, "c": 2}"#)));
        assert!(!values(r#"{"": 1, "a": 2}"#).have_names_of(&values(r#"{"a": 2}"#)));
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(float_value),
            any::<bool>().prop_map(Value::from),
            "\\PC{0,8}".prop_map(Value::from),
            Just(json!(null)),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(".{0,4}", inner, 0..4).prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_object_is_read_as_its_map_is(map in prop::collection::btree_map(".{0,6}", json_value(), 0..8)) {
            let text = serde_json::to_string(&map).unwrap();
            let values: Values = serde_json::from_str(&text).unwrap();
            let object: Map<String, Value> = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(&values, &Values::from(&object));
            prop_assert_eq!(serde_json::to_value(&values).unwrap(), Value::Object(object));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}") {
            let _ = serde_json::from_str::<Values>(&text);
        }
    }
}
