//! Whether a value is what a schema says, as far as our own schemas go: fields, lists, and the kinds of plain values.

use serde_json::Value;

/// Where a value contradicts a schema, and how; `None` if it conforms.
pub(crate) fn contradiction(schema: &Value, value: &Value) -> Option<String> {
    at(schema, value, "answer")
}

fn at(schema: &Value, value: &Value, place: &str) -> Option<String> {
    if !is_of_a_kind(&schema["type"], value) {
        return Some(format!("{place} should be {}, and is {value}", schema["type"]));
    }
    match (value, &schema["properties"], &schema["items"]) {
        (Value::Object(fields), Value::Object(properties), _) => {
            if let Some(name) = properties.keys().find(|name| !fields.contains_key(*name)) {
                return Some(format!("{place} lacks the field `{name}`"));
            }
            fields.iter().find_map(|(name, field)| match properties.get(name) {
                Some(schema) => at(schema, field, &format!("{place}.{name}")),
                None => Some(format!("{place} has the field `{name}`, which is not in the document")),
            })
        }
        (Value::Array(elements), _, items @ Value::Object(_)) => {
            elements.iter().enumerate().find_map(|(index, element)| at(items, element, &format!("{place}[{index}]")))
        }
        _ => None,
    }
}

/// Whether a value is of one of the kinds that a schema names; one that names none takes everything.
fn is_of_a_kind(kinds: &Value, value: &Value) -> bool {
    match kinds {
        Value::Array(kinds) => kinds.iter().any(|kind| is_of_a_kind(kind, value)),
        Value::String(kind) => match kind.as_str() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "null" => value.is_null(),
            _ => false,
        },
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_missing_too_much_or_of_another_kind_is_found() {
        let inner = json!({"type": ["object", "null"], "properties": {"a": {"type": "integer"}}});
        let schema = json!({"type": "object", "properties": {"list": {"type": "array", "items": inner}, "any": {}}});
        let cases = [
            (json!({"list": [{"a": 1}, null], "any": [1, "x"]}), None),
            (json!({"list": []}), Some("answer lacks the field `any`")),
            (json!({"list": [{"a": 1.5}], "any": 1}), Some("answer.list[0].a should be \"integer\", and is 1.5")),
            (
                json!({"list": [{"a": 1, "b": 2}], "any": 1}),
                Some("answer.list[0] has the field `b`, which is not in the document"),
            ),
            (json!([]), Some("answer should be \"object\", and is []")),
        ];
        for (value, expected) in cases {
            assert_eq!(contradiction(&schema, &value).as_deref(), expected, "{value}");
        }
    }
}
