//! What there is to copy: the tables of the schema, read from an empty database that this version makes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::Opening;
use crate::error::{Error, Result};
use crate::migrations;
use crate::sql::{Connection, params, sqlite};

/// What a column holds, whatever an engine calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Whole,
    Truth,
    Real,
    Text,
    Bytes,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub name: String,
    pub kind: Kind,
}

/// A table: its columns, those of its primary key, and whether that is a number which the engine counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    pub name: String,
    pub columns: Vec<Column>,
    /// Places in `columns`, in the key's order.
    pub key: Vec<usize>,
    pub counts: bool,
}

/// All tables, those that others refer to first.
pub(super) fn tables(opening: &Opening) -> Result<Vec<Table>> {
    let mut connection = sqlite::open_in_memory()?;
    migrations::upgrade(&mut connection, Path::new(":memory:"), opening)?;
    let mut statement = connection
        .prepare("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name")?;
    let names = statement.query_map([], |row| row.get::<_, String>(0))?.collect::<crate::sql::Result<Vec<_>>>()?;
    let mut found = BTreeMap::new();
    let mut above = BTreeMap::new();
    for name in names {
        let mut statement = connection.prepare("SELECT \"table\" FROM pragma_foreign_key_list(?)")?;
        let parents = statement.query_map([&name], |row| row.get::<_, String>(0))?;
        above.insert(name.clone(), parents.collect::<crate::sql::Result<BTreeSet<_>>>()?);
        found.insert(name.clone(), table(&connection, name)?);
    }
    let mut ordered = Vec::new();
    while let Some(next) = found.keys().find(|name| above[*name].iter().all(|parent| !found.contains_key(parent))) {
        let next = next.clone();
        ordered.extend(found.remove(&next));
    }
    match found.keys().next() {
        None => Ok(ordered),
        Some(name) => Err(Error::Damaged(format!("the schema's table {name} refers to itself by others"))),
    }
}

fn table(connection: &Connection, name: String) -> Result<Table> {
    let mut statement = connection.prepare("SELECT name, type, pk FROM pragma_table_info(?) ORDER BY cid")?;
    let columns = statement.query_map(params![name], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(2)?))
    })?;
    let mut table = Table { name, columns: Vec::new(), key: Vec::new(), counts: false };
    let mut key = BTreeMap::new();
    for (place, column) in columns.enumerate() {
        let (name, declared, position) = column?;
        let kind = match declared.as_str() {
            "BIGINT" | "INTEGER" => Kind::Whole,
            "BOOLEAN" => Kind::Truth,
            "DOUBLE PRECISION" => Kind::Real,
            "TEXT" => Kind::Text,
            "BLOB" => Kind::Bytes,
            other => return Err(Error::Damaged(format!("column {}.{name} is of the type {other}", table.name))),
        };
        if position > 0 {
            key.insert(position, place);
        }
        // Only what the engine counts is declared so.
        table.counts |= declared == "INTEGER";
        table.columns.push(Column { name, kind });
    }
    table.key = key.into_values().collect();
    if table.key.is_empty() {
        return Err(Error::Damaged(format!("the schema's table {} has no primary key", table.name)));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use instep_api::wire::Timestamp;

    use super::*;

    #[test]
    fn every_table_has_an_order_and_comes_after_those_that_it_refers_to() {
        let opening = Opening { holder: "test".into(), cluster_id: "x".into(), now: Timestamp(1) };
        let tables = tables(&opening).unwrap();
        let place = |name: &str| tables.iter().position(|table| table.name == name).unwrap();
        for (first, then) in [
            ("users", "sessions"),
            ("access_tokens", "sessions"),
            ("experiments", "trials"),
            ("trials", "tasks"),
            ("tasks", "checkpoints"),
            ("metric_series", "metric_chunks"),
        ] {
            assert!(place(first) < place(then), "{first} before {then}");
        }
        assert!(tables[place("task_logs")].counts);
        assert!(!tables[place("checkpoints")].counts);
        let chunks = &tables[place("metric_chunks")];
        assert_eq!(chunks.key, [0, 1]);
        assert_eq!(chunks.columns.last().unwrap().kind, Kind::Bytes);
    }
}
