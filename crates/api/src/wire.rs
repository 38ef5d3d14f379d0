//! The rules of JSON that hold for every message: numbers, times, and fields that are not there.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment in UTC, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Reads RFC 3339 with any offset.
    pub fn parse(text: &str) -> Option<Timestamp> {
        DateTime::parse_from_rfc3339(text).ok().map(|time| Timestamp(time.timestamp_micros()))
    }

    /// The seconds from `earlier` to this.
    pub fn seconds_since(self, earlier: Timestamp) -> f64 {
        (self.0 - earlier.0) as f64 / 1e6
    }

    fn time(self) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(self.0).unwrap_or(DateTime::UNIX_EPOCH)
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 with exactly six digits of fraction, which is also how log lines show their time.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.time().to_rfc3339_opts(SecondsFormat::Micros, true))
    }
}

impl Serialize for Timestamp {
    /// RFC 3339 as JSON of protocol buffers has it: with no, three or six digits of fraction.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.time().to_rfc3339_opts(SecondsFormat::AutoSi, true))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Timestamp::parse(&text)
            .ok_or_else(|| Error::invalid_value(Unexpected::Str(&text), &"a time such as 2026-01-02T03:04:05Z"))
    }
}

/// Bytes, as standard base64.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Base64(pub Vec<u8>);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64_STANDARD.decode(text).map(Base64).map_err(|error| Error::custom(format!("this is not base64: {error}")))
    }
}

/// A 64-bit integer: a string in answers, a string or a number in requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Long(pub i64);

impl Serialize for Long {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Long {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        whole_number(deserializer).map(Long)
    }
}

/// A whole number: a number in answers, a number or a string in requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Whole(pub i64);

impl Serialize for Whole {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0)
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        whole_number(deserializer).map(Whole)
    }
}

/// Reads a whole number from a JSON number (also `3.0`, which some writers make of 3) or a string.
pub(crate) fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    struct WholeNumber;

    impl Visitor<'_> for WholeNumber {
        type Value = i64;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a whole number")
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<i64, E> {
            Ok(value)
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<i64, E> {
            i64::try_from(value).map_err(|_| E::invalid_value(Unexpected::Unsigned(value), &self))
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<i64, E> {
            let whole = value as i64;
            if whole as f64 == value { Ok(whole) } else { Err(E::invalid_value(Unexpected::Float(value), &self)) }
        }

        fn visit_str<E: Error>(self, value: &str) -> Result<i64, E> {
            value.trim().parse().map_err(|_| E::invalid_value(Unexpected::Str(value), &self))
        }
    }

    deserializer.deserialize_any(WholeNumber)
}

/// Reads a span of time such as `1h30m`, `90s`, `2w` or `300`, which are seconds.
pub fn span(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if let Ok(seconds) = rest.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|sign: char| !sign.is_ascii_digit())?;
        let number: u64 = rest[..end].parse().ok()?;
        let unit = rest[end..].chars().next()?;
        let seconds = match unit {
            'w' => 7 * 24 * 3600,
            'd' => 24 * 3600,
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        total = total.checked_add(Duration::from_secs(number.checked_mul(seconds)?))?;
        rest = &rest[end + unit.len_utf8()..];
    }
    (!text.trim().is_empty()).then_some(total)
}

/// The lowerCamelCase spelling of a name that may be in snake_case.
pub fn camel_case(name: &str) -> String {
    let mut result = String::with_capacity(name.len());
    let mut raise = false;
    for letter in name.chars() {
        if letter == '_' && !result.is_empty() {
            raise = true;
        } else if raise {
            result.extend(letter.to_uppercase());
            raise = false;
        } else {
            result.push(letter);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_with_the_digits_they_need_and_read_with_offsets() {
        for (read, written) in [
            ("2026-01-02T04:04:05.678901+01:00", "2026-01-02T03:04:05.678901Z"),
            ("2026-01-02T03:04:05.670Z", "2026-01-02T03:04:05.670Z"),
            ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ] {
            assert_eq!(serde_json::to_value(Timestamp::parse(read).unwrap()).unwrap(), written);
        }
        assert_eq!(Timestamp::parse("2026-01-02T03:04:05Z").unwrap().to_string(), "2026-01-02T03:04:05.000000Z");
        assert_eq!(Timestamp::parse("yesterday"), None);
    }

    #[test]
    fn whole_numbers_come_as_numbers_or_strings() {
        for text in ["7", "7.0", "\"7\"", "\" 7 \""] {
            assert_eq!(serde_json::from_str::<Long>(text).unwrap(), Long(7), "{text}");
        }
        for text in ["7.5", "\"seven\"", "true", "[7]", "18446744073709551615"] {
            assert!(serde_json::from_str::<Long>(text).is_err(), "{text}");
        }
        assert_eq!(serde_json::to_string(&Long(i64::MAX)).unwrap(), r#""9223372036854775807""#);
    }

    #[test]
    fn bytes_are_base64() {
        assert_eq!(serde_json::to_string(&Base64(b"hello".to_vec())).unwrap(), r#""aGVsbG8=""#);
        assert_eq!(serde_json::from_str::<Base64>(r#""aGVsbG8=""#).unwrap().0, b"hello");
        assert!(serde_json::from_str::<Base64>(r#""aGVsbG8!""#).is_err());
    }

    #[test]
    fn names_in_snake_case_become_camel_case() {
        for (given, expected) in [("timeout_seconds", "timeoutSeconds"), ("trialIds", "trialIds"), ("_x", "_x")] {
            assert_eq!(camel_case(given), expected);
        }
    }
}
