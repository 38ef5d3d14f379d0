//! Rows on their way from one engine to the other: read in the order of their primary key, a bounded part at a time, and
//! hashed in a form that is the same on both.

use std::fmt::Write;

use super::catalog::{Kind, Table};
use super::{CopyError, Result};
use crate::sql::{self, Connection, Row, Value, ValueRef, params_from_iter};

/// Rows that are read at a time.
const ROWS: usize = 4000;
/// Letters and bytes that are read at a time, unless one row alone has more.
const BYTES: i64 = 8 << 20;
/// Rows of one INSERT, at most. Powers of two below it are used too, so that few statements are prepared.
const TOGETHER: usize = 256;

/// One row, in the order of the table's columns.
pub(super) type Values = Vec<Value>;

/// Reads a table to its end.
pub(super) struct Reader<'a> {
    connection: &'a Connection,
    table: &'a Table,
    /// The key of the last row that was read.
    after: Option<Values>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(connection: &'a Connection, table: &'a Table) -> Reader<'a> {
        Reader { connection, table, after: None }
    }

    /// The next rows; none after the last.
    pub(super) fn next(&mut self) -> Result<Vec<Values>> {
        let rows = self.fitting()?;
        if rows == 0 {
            return Ok(Vec::new());
        }
        let columns: Vec<String> = self.table.columns.iter().map(|column| quoted(&column.name)).collect();
        let mut statement = self.connection.prepare_cached(&self.select(&columns.join(", ")))?;
        let table = self.table;
        let mut found = statement.query(params_from_iter(self.places(rows)))?;
        let mut batch = Vec::with_capacity(rows);
        while let Some(row) = found.next()? {
            batch.push(values(table, &row)?);
        }
        self.after = batch.last().map(|row| table.key.iter().map(|place| row[*place].clone()).collect());
        Ok(batch)
    }

    /// How many of the next rows can be held at once.
    fn fitting(&self) -> Result<usize> {
        let long: Vec<String> = self
            .table
            .columns
            .iter()
            .filter(|column| matches!(column.kind, Kind::Text | Kind::Bytes))
            .map(|column| format!("COALESCE(CAST(LENGTH({}) AS BIGINT), 0)", quoted(&column.name)))
            .collect();
        if long.is_empty() {
            return Ok(ROWS);
        }
        let mut statement = self.connection.prepare_cached(&self.select(&long.join(" + ")))?;
        let (mut rows, mut bytes) = (0, 0);
        for size in statement.query_map(params_from_iter(self.places(ROWS)), |row| row.get::<_, i64>(0))? {
            bytes += size?;
            if rows > 0 && bytes > BYTES {
                break;
            }
            rows += 1;
        }
        Ok(rows)
    }

    /// A query for what comes next.
    fn select(&self, what: &str) -> String {
        let key: Vec<String> = self.table.key.iter().map(|place| quoted(&self.table.columns[*place].name)).collect();
        let (name, key) = (quoted(&self.table.name), key.join(", "));
        let after = match &self.after {
            Some(values) => format!("WHERE ({key}) > ({}) ", vec!["?"; values.len()].join(", ")),
            None => String::new(),
        };
        format!("SELECT {what} FROM {name} {after}ORDER BY {key} LIMIT ?")
    }

    fn places(&self, rows: usize) -> Values {
        let rows = Value::Integer(i64::try_from(rows).unwrap_or(i64::MAX));
        self.after.iter().flatten().cloned().chain([rows]).collect()
    }
}

/// A row as both engines mean it.
fn values(table: &Table, row: &Row<'_>) -> Result<Values> {
    let mut values = Vec::with_capacity(table.columns.len());
    for (place, column) in table.columns.iter().enumerate() {
        let value = match (column.kind, row.get_ref(place)?) {
            (_, ValueRef::Null) => Value::Null,
            (Kind::Whole, ValueRef::Integer(whole)) => Value::Integer(whole),
            (Kind::Truth, ValueRef::Integer(whole)) => Value::Integer(i64::from(whole != 0)),
            // SQLite keeps no sign of a zero.
            (Kind::Real, ValueRef::Real(float)) => Value::Real(if float == 0.0 { 0.0 } else { float }),
            (Kind::Real, ValueRef::Integer(whole)) => Value::Real(whole as f64),
            (Kind::Text, ValueRef::Text(text)) => match std::str::from_utf8(text) {
                Ok(text) => Value::Text(text.to_owned()),
                Err(_) => return Err(unfit(table, &values, &column.name, "a text that is not UTF-8")),
            },
            (Kind::Bytes, ValueRef::Blob(bytes)) => Value::Blob(bytes.to_owned()),
            _ => return Err(unfit(table, &values, &column.name, "a value of another type")),
        };
        values.push(value);
    }
    Ok(values)
}

fn unfit(table: &Table, row: &[Value], column: &str, why: &str) -> CopyError {
    CopyError::Unfit {
        table: table.name.clone(),
        row: key_of(table, row),
        column: column.to_owned(),
        why: why.to_owned(),
    }
}

/// What people find a row by.
fn key_of(table: &Table, row: &[Value]) -> String {
    let mut text = String::new();
    for place in table.key.iter().filter(|place| **place < row.len()) {
        let name = &table.columns[*place].name;
        let separator = if text.is_empty() { "" } else { ", " };
        // Infallible: writing to a string.
        let _ = match &row[*place] {
            Value::Integer(whole) => write!(text, "{separator}{name} {whole}"),
            Value::Text(value) => write!(text, "{separator}{name} {value:?}"),
            _ => write!(text, "{separator}{name}"),
        };
    }
    text
}

/// Refuses texts that the engine on the other side does not keep.
pub(super) fn check(table: &Table, rows: &[Values], target: &Connection) -> Result<()> {
    if target.keeps_nul() {
        return Ok(());
    }
    for row in rows {
        for (column, value) in table.columns.iter().zip(row) {
            if matches!(value, Value::Text(text) if text.contains('\0')) {
                return Err(unfit(table, row, &column.name, "the character NUL, which PostgreSQL does not keep"));
            }
        }
    }
    Ok(())
}

/// Adds rows to a table.
pub(super) fn insert(target: &Connection, table: &Table, rows: &[Values]) -> Result<()> {
    let columns: Vec<String> = table.columns.iter().map(|column| quoted(&column.name)).collect();
    let one = format!("({})", vec!["?"; columns.len()].join(", "));
    let most = if target.likes_long_inserts() { TOGETHER } else { 1 };
    let mut rest = rows;
    while !rest.is_empty() {
        let count = most.min(1 << rest.len().ilog2());
        let (now, later) = rest.split_at(count);
        let places = vec![one.as_str(); count].join(", ");
        let sql = format!("INSERT INTO {} ({}) VALUES {places}", quoted(&table.name), columns.join(", "));
        let inserted = target.prepare_cached(&sql)?.execute(params_from_iter(now.iter().flatten()));
        inserted.map_err(|error| match error {
            sql::Error::Text(why) => CopyError::Unfit {
                table: table.name.clone(),
                row: format!("between {} and {}", key_of(table, &now[0]), key_of(table, &now[count - 1])),
                column: "one".to_owned(),
                why: format!("a text that {why}"),
            },
            other => other.into(),
        })?;
        rest = later;
    }
    Ok(())
}

/// The content of a table, whichever engine holds it.
#[derive(Default)]
pub(super) struct Digest {
    hasher: blake3::Hasher,
    pub rows: u64,
}

impl Digest {
    pub(super) fn add(&mut self, rows: &[Values]) {
        for value in rows.iter().flatten() {
            match value {
                Value::Null => self.put(0, &[]),
                Value::Integer(whole) => self.put(1, &whole.to_le_bytes()),
                Value::Real(float) => self.put(2, &float.to_bits().to_le_bytes()),
                Value::Text(text) => self.put(3, text.as_bytes()),
                Value::Blob(bytes) => self.put(4, bytes),
            }
        }
        self.rows += rows.len() as u64;
    }

    fn put(&mut self, kind: u8, bytes: &[u8]) {
        self.hasher.update(&[kind]);
        self.hasher.update(&(bytes.len() as u64).to_le_bytes());
        self.hasher.update(bytes);
    }

    pub(super) fn hash(&self) -> String {
        self.hasher.finalize().to_hex().to_string()
    }
}

/// A name in a statement.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_values_have_another_hash_and_their_borders_count() {
        let hash = |rows: &[Values]| {
            let mut digest = Digest::default();
            digest.add(rows);
            digest.hash()
        };
        let text = |text: &str| Value::Text(text.to_owned());
        let all = [
            vec![vec![text("a"), text("b")]],
            vec![vec![text("ab"), text("")]],
            vec![vec![text("a"), Value::Blob(b"b".to_vec())]],
            vec![vec![text("a"), Value::Null]],
            vec![vec![text("a"), Value::Integer(0)]],
            vec![vec![text("a"), Value::Real(0.0)]],
        ];
        let hashes: std::collections::BTreeSet<String> = all.iter().map(|rows| hash(rows)).collect();
        assert_eq!(hashes.len(), all.len());
    }
}
