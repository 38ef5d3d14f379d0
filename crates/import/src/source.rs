//! Where rows come from: a server or a dump.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::text::Row;

/// The table in which Determined notes its migrations.
pub const MIGRATIONS: &str = "gopg_migrations";
/// The last migration of the version that can be imported, and that version.
pub const KNOWN_MIGRATION: i64 = 20_241_024_164_947;
/// The release that the last migration belongs to.
pub const RELEASE: &str = "0.38";

/// What is read of a table.
#[derive(Debug)]
pub struct Table {
    /// Its name in the schema `public`.
    pub name: &'static str,
    /// The columns that are read.
    pub columns: &'static [&'static str],
    /// The column that orders its rows, for tables that are too large for one transaction.
    pub order: Option<&'static str>,
}

/// How far a table has been read; what it means is the source's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker(pub i64);

/// Takes one row, and the marker behind it.
pub type Visit<'a> = &'a mut dyn FnMut(&Row<'_>, Marker) -> Result<()>;

/// A database of Determined.
pub trait Source {
    /// How people call it, without secrets.
    fn place(&self) -> &str;
    /// The tables of the schema `public`, and how many rows each has.
    fn counts(&mut self) -> Result<BTreeMap<String, u64>>;
    /// Hands over the rows of a table, from behind a marker on.
    fn read(&mut self, table: &Table, after: Option<Marker>, visit: Visit<'_>) -> Result<()>;
}

const MIGRATION: Table = Table { name: MIGRATIONS, columns: &["version"], order: None };
const CLUSTER: Table = Table { name: "cluster_id", columns: &["cluster_id"], order: None };

/// Refuses what is not a database of Determined, or of another version; gives the cluster's id.
pub fn check(source: &mut dyn Source) -> Result<String> {
    let counts = source.counts()?;
    let place = source.place().to_owned();
    for table in [MIGRATIONS, "experiments", "runs", "users"] {
        if !counts.contains_key(table) {
            return Err(Error::NotDetermined { place, table });
        }
    }
    let mut last = None;
    source.read(&MIGRATION, None, &mut |row, _| {
        last = last.max(row.optional_integer("version")?);
        Ok(())
    })?;
    if last != Some(KNOWN_MIGRATION) {
        let found = last.map_or("none".to_owned(), |version| version.to_string());
        return Err(Error::OtherVersion { place, found, known: KNOWN_MIGRATION, release: RELEASE });
    }
    let mut cluster = String::new();
    source.read(&CLUSTER, None, &mut |row, _| {
        cluster = row.text("cluster_id")?;
        Ok(())
    })?;
    Ok(cluster)
}
