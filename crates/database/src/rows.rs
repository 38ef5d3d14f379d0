//! Between columns and types.

use std::str::FromStr;

use instep_api::wire::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::sql::{self, FromSql, Row};

/// Reads a column by its name; several types follow from the place that it is read into.
pub(crate) fn column<T: FromSql>(row: &Row<'_>, name: &str) -> sql::Result<T> {
    row.get(name)
}

/// Reads a time.
pub(crate) fn time(row: &Row<'_>, name: &str) -> sql::Result<Timestamp> {
    row.get(name).map(Timestamp)
}

/// Reads a time that may be missing.
pub(crate) fn optional_time(row: &Row<'_>, name: &str) -> sql::Result<Option<Timestamp>> {
    row.get::<_, Option<i64>>(name).map(|time| time.map(Timestamp))
}

/// Reads a word that we wrote ourselves, such as a state.
pub(crate) fn word<T: FromStr<Err = String>>(row: &Row<'_>, name: &str) -> sql::Result<T> {
    let text: String = row.get(name)?;
    text.parse().map_err(|why: String| damaged(name, &why))
}

/// Reads JSON that we wrote ourselves.
pub(crate) fn json<T: DeserializeOwned>(row: &Row<'_>, name: &str) -> sql::Result<T> {
    let text: String = row.get(name)?;
    serde_json::from_str(&text).map_err(|error| damaged(name, &error.to_string()))
}

/// Reads JSON that may be missing.
pub(crate) fn optional_json<T: DeserializeOwned>(row: &Row<'_>, name: &str) -> sql::Result<Option<T>> {
    let text: Option<String> = row.get(name)?;
    text.map(|text| serde_json::from_str(&text).map_err(|error| damaged(name, &error.to_string()))).transpose()
}

fn damaged(name: &str, why: &str) -> sql::Error {
    sql::Error::Column { column: name.to_owned(), why: why.to_owned() }
}

/// The text of a value, for a column of JSON.
pub(crate) fn text_of(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::Damaged(error.to_string()))
}

/// The object in a value, or an empty one.
pub(crate) fn object(value: Option<Value>) -> Value {
    value.filter(Value::is_object).unwrap_or_else(|| Value::Object(serde_json::Map::new()))
}
