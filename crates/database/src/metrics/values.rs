//! Looks into the values of a report, which are the text of a JSON object, without building the object.
//!
//! A tail of some thousand rows with a hundred metrics each is read for every chart and every summary; making a map of
//! each row would cost several times as much as reading it.

use std::borrow::Cow;
use std::fmt;

use instep_api::values::Datum;
use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
/// Calls `take` with every metric that `wanted` lets through, and its value.
pub(crate) fn each<'text>(
    text: &'text str,
    wanted: impl Fn(&str) -> bool,
    take: impl FnMut(Cow<'text, str>, Datum),
) -> serde_json::Result<()> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    deserializer.deserialize_map(Pairs { wanted, take })?;
    deserializer.end()
}

struct Pairs<Wanted, Take> {
    wanted: Wanted,
    take: Take,
}

impl<'de, Wanted, Take> Visitor<'de> for Pairs<Wanted, Take>
where
    Wanted: Fn(&str) -> bool,
    Take: FnMut(Cow<'de, str>, Datum),
{
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key_seed(Name)? {
            if (self.wanted)(&name) {
                let value = map.next_value()?;
                (self.take)(name, value);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// A key, borrowed from the text unless it has escapes in it.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn picked(text: &str, wanted: impl Fn(&str) -> bool) -> serde_json::Result<Vec<(String, Value)>> {
        let mut found = Vec::new();
        each(text, wanted, |name, datum| found.push((name.into_owned(), datum.value())))?;
        Ok(found)
    }

    #[test]
    fn names_with_escapes_and_values_of_any_kind_are_found() {
        let text = r#"{"a": 1, "b\n\"": {"deep": [1, "x"]}, "c": "NaN"}"#;
        let expected = vec![("b\n\"".to_owned(), json!({"deep": [1, "x"]})), ("c".to_owned(), json!("NaN"))];
        assert_eq!(picked(text, |name| name != "a").unwrap(), expected);
        assert!(picked("[1]", |_| true).is_err());
        assert!(picked(r#"{"a": 1} x"#, |_| true).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}") {
            let _ = picked(&text, |_| true);
        }

        #[test]
        fn it_finds_what_a_map_finds(map in prop::collection::btree_map(".{0,6}", any::<i64>(), 0..8)) {
            let text = serde_json::to_string(&map).unwrap();
            let found: Vec<_> = picked(&text, |_| true).unwrap();
            let expected: Vec<_> = map.into_iter().map(|(name, value)| (name, Value::from(value))).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
