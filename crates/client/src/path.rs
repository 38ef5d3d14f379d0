//! Text as part of a path: percent-encoding and queries.

use std::fmt::{self, Display, Write};

/// A text as one segment of a path: everything but letters, digits and `-._~` is percent-encoded, slashes too.
pub fn segment(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    encode(text, &mut result);
    result
}

fn encode(text: &str, result: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            result.push(byte as char);
        } else {
            // Writing to a string does not fail.
            let _ = write!(result, "%{byte:02X}");
        }
    }
}

/// The query of a path: empty, or `?name=value&name=value`.
#[derive(Debug, Clone, Default)]
pub struct Query(String);

impl Query {
    /// An empty one.
    pub fn new() -> Query {
        Query::default()
    }

    /// Adds a value.
    pub fn with(mut self, name: &str, value: impl Display) -> Query {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        encode(name, &mut self.0);
        self.0.push('=');
        encode(&value.to_string(), &mut self.0);
        self
    }

    /// Adds a value if there is one.
    pub fn with_some(self, name: &str, value: Option<impl Display>) -> Query {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Adds every value under the same name.
    pub fn with_all<Value: Display>(self, name: &str, values: impl IntoIterator<Item = Value>) -> Query {
        values.into_iter().fold(self, |query, value| query.with(name, value))
    }
}

impl Display for Query {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_encoded() {
        assert_eq!(segment("tests/my experiment ü"), "tests%2Fmy%20experiment%20%C3%BC");
        assert_eq!(segment("a-b._~9"), "a-b._~9");
        let query = Query::new().with("limit", 5).with_some("name", Some("a&b")).with_some("no", None::<&str>);
        assert_eq!(query.with_all("states", ["A", "B"]).to_string(), "?limit=5&name=a%26b&states=A&states=B");
        assert_eq!(Query::new().to_string(), "");
    }
}
