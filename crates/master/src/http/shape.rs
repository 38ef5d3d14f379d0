//! What a type of the API looks like in JSON, asked of the type itself.
//!
//! A type that can be read from JSON says, while it is read, what it expects: a structure with these fields, a list, a
//! number. [`schema_of`] reads it from nothing and writes down what was expected, field by field. Nothing is repeated by
//! hand, so nothing can be out of date.
//!
//! A path leads to one place in the type: names of fields, and [`ELEMENT`] for what a list holds. Each reading goes along
//! one path and gives up at its end, which is no error but the purpose.

use std::cell::RefCell;
use std::fmt;

use instep_api::wire::camel_case;
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value, json};

/// The step into a list.
const ELEMENT: &str = "[]";
/// Types may hold themselves; nothing of ours is deeper than this.
const DEEPEST: usize = 8;

/// What stands at the end of a path.
#[derive(Debug, Clone, PartialEq)]
enum Found {
    Structure(&'static [&'static str]),
    List,
    Plain(Value),
}

/// The JSON schema of a type.
pub(crate) fn schema_of<T: DeserializeOwned>() -> Value {
    explore::<T>(&mut Vec::new())
}

/// The JSON schema of a type that is an answer. Answers carry every field: all of them are required, and there are no
/// others.
pub(crate) fn schema_of_answer<T: DeserializeOwned>() -> Value {
    complete(schema_of::<T>())
}

fn complete(mut schema: Value) -> Value {
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        let names: Vec<String> = properties.keys().cloned().collect();
        properties.values_mut().for_each(|property| *property = complete(property.take()));
        schema["required"] = json!(names);
        schema["additionalProperties"] = json!(false);
    }
    if let Some(items) = schema.get_mut("items") {
        *items = complete(items.take());
    }
    schema
}

fn explore<T: DeserializeOwned>(path: &mut Vec<&'static str>) -> Value {
    let notes = RefCell::new(Notes { found: None, optional: false });
    // It always ends with an error: nothing was there to be read.
    let _ = T::deserialize(Probe { path, notes: &notes });
    let Notes { found, optional } = notes.into_inner();
    let mut schema = match found {
        Some(Found::Structure(fields)) if path.len() < DEEPEST => {
            let mut properties = Map::new();
            for field in fields.iter().filter(|field| !is_second_spelling(field, fields)) {
                path.push(field);
                properties.insert((*field).to_owned(), explore::<T>(path));
                path.pop();
            }
            json!({"type": "object", "properties": properties})
        }
        Some(Found::List) if path.len() < DEEPEST => {
            path.push(ELEMENT);
            let items = explore::<T>(path);
            path.pop();
            json!({"type": "array", "items": items})
        }
        Some(Found::Plain(schema)) => schema,
        Some(Found::Structure(_) | Found::List) | None => json!({}),
    };
    if optional && let Some(kind) = schema.get_mut("type") {
        *kind = json!([kind.take(), "null"]);
    }
    schema
}

/// Whether a field is also there in camelCase, which is how answers spell it.
fn is_second_spelling(field: &str, fields: &[&str]) -> bool {
    let other = camel_case(field);
    other != field && fields.contains(&other.as_str())
}

struct Notes {
    found: Option<Found>,
    /// Whether the place at the end of the path may be null.
    optional: bool,
}

/// Goes along a path.
#[derive(Clone, Copy)]
struct Probe<'a> {
    path: &'a [&'static str],
    notes: &'a RefCell<Notes>,
}

impl Probe<'_> {
    /// Writes down what is expected here, if this is the end.
    fn end(&self, found: Found) -> GivenUp {
        if self.path.is_empty() {
            self.notes.borrow_mut().found = Some(found);
        }
        GivenUp
    }

    fn plain(&self, kind: &str) -> GivenUp {
        self.end(Found::Plain(json!({"type": kind})))
    }
}

/// How every reading ends.
#[derive(Debug)]
struct GivenUp;

impl fmt::Display for GivenUp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the end of the path")
    }
}

impl std::error::Error for GivenUp {}

impl Error for GivenUp {
    fn custom<T: fmt::Display>(_: T) -> GivenUp {
        GivenUp
    }
}

macro_rules! plain {
    ($($method:ident => $kind:literal),* $(,)?) => {
        $(fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, GivenUp> {
            Err(self.plain($kind))
        })*
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = GivenUp;

    plain! {
        deserialize_bool => "boolean",
        deserialize_i8 => "integer", deserialize_i16 => "integer", deserialize_i32 => "integer",
        deserialize_i64 => "integer", deserialize_u8 => "integer", deserialize_u16 => "integer",
        deserialize_u32 => "integer", deserialize_u64 => "integer",
        deserialize_f32 => "number", deserialize_f64 => "number",
        deserialize_char => "string", deserialize_str => "string", deserialize_string => "string",
        deserialize_map => "object",
    }

    // Anything: free JSON, or a type that takes several forms.
    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, GivenUp> {
        Err(self.end(Found::Plain(json!({}))))
    }

    forward_to_deserialize_any! { bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, GivenUp> {
        if self.path.is_empty() {
            self.notes.borrow_mut().optional = true;
        }
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, GivenUp> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, GivenUp> {
        match self.path.split_first() {
            Some((&ELEMENT, rest)) => visitor.visit_seq(One { field: None, probe: Probe { path: rest, ..self } }),
            _ => Err(self.end(Found::List)),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, GivenUp> {
        match self.path.split_first() {
            Some((field, rest)) => visitor.visit_map(One { field: Some(field), probe: Probe { path: rest, ..self } }),
            None => Err(self.end(Found::Structure(fields))),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, GivenUp> {
        Err(self.end(Found::Plain(json!({"type": "string", "enum": variants}))))
    }
}

/// A structure with one field, or a list of one.
struct One<'a> {
    field: Option<&'static str>,
    probe: Probe<'a>,
}

impl<'de> MapAccess<'de> for One<'_> {
    type Error = GivenUp;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, GivenUp> {
        let Some(field) = self.field.take() else { return Ok(None) };
        seed.deserialize(StrDeserializer::new(field)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, GivenUp> {
        seed.deserialize(self.probe)
    }
}

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = GivenUp;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, GivenUp> {
        seed.deserialize(self.probe).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    #[expect(dead_code, reason = "only its shape is looked at")]
    struct Outer {
        #[serde(alias = "user_name")]
        user_name: Option<String>,
        parts: Vec<Inner>,
        free: Value,
        number: Number,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only its shape is looked at")]
    struct Inner {
        kind: Kind,
        next: Option<Box<Inner>>,
    }

    #[derive(Deserialize)]
    struct Number(#[expect(dead_code, reason = "only its shape is looked at")] i64);

    #[derive(Deserialize)]
    enum Kind {
        One,
        Other,
    }

    #[test]
    fn a_type_says_what_it_looks_like() {
        let schema = schema_of::<Outer>();
        let properties = &schema["properties"];
        assert_eq!(properties["userName"], json!({"type": ["string", "null"]}));
        assert_eq!(properties.get("user_name"), None);
        assert_eq!(properties["free"], json!({}));
        assert_eq!(properties["number"], json!({"type": "integer"}));
        let inner = &properties["parts"]["items"]["properties"];
        assert_eq!(inner["kind"], json!({"type": "string", "enum": ["One", "Other"]}));
        assert_eq!(inner["next"]["properties"]["kind"], inner["kind"]);
        assert_eq!(schema_of::<Vec<bool>>(), json!({"type": "array", "items": {"type": "boolean"}}));
    }
}
