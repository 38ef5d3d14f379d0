//! Lengths of training: a number of batches, records or epochs.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::reader::{Mistakes, as_whole, kind};

/// So much training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Length {
    pub unit: Unit,
    pub units: u64,
}

/// What training is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Unit {
    Batches,
    Records,
    Epochs,
}

const UNITS: [Unit; 3] = [Unit::Batches, Unit::Records, Unit::Epochs];

impl Unit {
    /// As configurations spell it.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Batches => "batches",
            Unit::Records => "records",
            Unit::Epochs => "epochs",
        }
    }

    fn named(name: &str) -> Option<Unit> {
        UNITS.into_iter().find(|unit| unit.name() == name)
    }
}

impl Length {
    /// That many batches.
    pub const fn batches(units: u64) -> Length {
        Length { unit: Unit::Batches, units }
    }

    /// Reads `{batches: 100}`; a number alone counts batches.
    pub(super) fn read(path: &str, value: Value, mistakes: &Mistakes) -> Option<Length> {
        let wanted = "must be one of `batches`, `records` or `epochs` with a number, such as {batches: 100}";
        let length = match &value {
            Value::Object(fields) => {
                let mut set = fields.iter().filter(|(_, value)| !value.is_null());
                match (set.next(), set.next()) {
                    (Some((name, units)), None) => Unit::named(name).zip(as_whole(units)),
                    _ => None,
                }
            }
            other => as_whole(other).map(|units| (Unit::Batches, units)),
        };
        let length = length.and_then(|(unit, units)| Some(Length { unit, units: u64::try_from(units).ok()? }));
        if length.is_none() {
            let found = if value.is_object() { String::new() } else { format!(", not {}", kind(&value)) };
            mistakes.add(path, format!("{wanted}{found}"));
        }
        length
    }
}

impl Serialize for Length {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        BTreeMap::from([(self.unit.name(), self.units)]).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Length, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Length::read("", value, &Mistakes::default()).ok_or_else(|| serde::de::Error::custom("not a length"))
    }
}
