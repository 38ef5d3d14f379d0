//! Copies a whole database from one place to another, of the same engine or of the other one, while no master uses
//! either.
//!
//! A target is empty, marked, or whole. The mark is a table of its own, [`MARK`]: it is there before anything else, it
//! goes last, in one transaction, after counts and hashes of every table were compared, and nothing opens a database
//! that has it. So a copy that was killed at any moment is begun anew by the same command, and nothing else is ever
//! overwritten.
//!
//! Rows go in the order of their primary keys, some thousands or some megabytes at a time, and what is read is all that
//! is held. Which tables there are is read from the schema ([`catalog`]): a new one is copied without a word here.
//!
//! Threads: none. The locks of both databases are held throughout.

mod catalog;
mod places;
mod rows;

use std::path::PathBuf;

use catalog::Table;
pub use places::CopySide;
use places::{Held, State};
use rows::{Digest, Reader, quoted};
use serde::Serialize;

use crate::error::Error;
use crate::sql::{self, Connection};
use crate::{Opening, backup, migrations};

/// The table that a database has while it is being copied to. Its row says what is copied.
pub(crate) const MARK: &str = "incomplete_copy";

/// Why a database is not copied.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the names say it")]
pub enum CopyError {
    #[error("{0} is both what is copied and what it is copied to")]
    Same(String),
    #[error("there is no master's database at {0}")]
    Absent(String),
    #[error("{place} has schema {found}, and this version copies schema {known}")]
    OtherSchema { place: String, found: i64, known: i64 },
    #[error("{0} holds another master's database already")]
    Occupied(String),
    #[error("{0} holds something that is no master's database")]
    Foreign(String),
    /// A value that the other engine does not keep.
    #[error("table {table}, row {row}: column {column} has {why}")]
    Unfit { table: String, row: String, column: String, why: String },
    #[error("table {table} is not the same on both sides: {from} here, {to} there")]
    Different { table: String, from: String, to: String },
    #[error(transparent)]
    Failed(Error),
}

impl CopyError {
    /// What to do next.
    pub fn hint(&self) -> &'static str {
        match self {
            CopyError::Same(_) => "name two different databases; `?schema=NAME` is another one on the same server",
            CopyError::Absent(_) => "check the name, and the schema if it is an address (`?schema=NAME`)",
            CopyError::OtherSchema { .. } => {
                "start `instep master` of this version on it once, which brings it up to date; then stop it and copy"
            }
            CopyError::Occupied(_) | CopyError::Foreign(_) => {
                "nothing is overwritten: name a file that does not exist, or another schema with `?schema=NAME`"
            }
            CopyError::Unfit { .. } => "change it in the database that is copied, and run the same command again",
            CopyError::Different { .. } => "run the same command again, which begins anew",
            CopyError::Failed(source) => match source {
                Error::Refused { hint, .. } => hint,
                Error::InUse { .. } | Error::InUseHere { .. } => {
                    "stop that master with `instep down`, and start it again after the copy"
                }
                Error::InUseElsewhere { .. } => "stop that master where it runs, and start it again after the copy",
                Error::Unusable { .. } => "name the database of a master, or a file that does not exist as the target",
                Error::TooNew { .. } => "use the version of instep that wrote it, or a later one",
                Error::Incomplete { .. } => "finish that copy first, with the command that began it",
                Error::File { .. } => "check that the file is there and that you may read it, and write in its folder",
                _ => "run the same command again, which begins anew",
            },
        }
    }
}

impl From<Error> for CopyError {
    fn from(error: Error) -> CopyError {
        CopyError::Failed(error)
    }
}

impl From<sql::Error> for CopyError {
    fn from(error: sql::Error) -> CopyError {
        CopyError::Failed(error.into())
    }
}

type Result<T> = std::result::Result<T, CopyError>;

/// What is told while a database is copied.
pub trait CopyObserver {
    /// An earlier copy to the same target was stopped on its way; what it did is done again.
    fn begins_anew(&mut self);
    /// So many of all rows of a table were copied, or compared afterwards.
    fn progress(&mut self, table: &str, comparing: bool, rows: u64, total: u64);
}

/// A table that is the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CopiedTable {
    /// Its name.
    pub table: String,
    /// How many rows it has.
    pub rows: u64,
    /// Of its content (BLAKE3), the same for the same rows on both engines.
    pub hash: String,
    /// The id that its next row gets, where ids are counted.
    pub next_id: Option<i64>,
}

/// A copy on its way.
pub struct Transfer {
    from: Held,
    to: Held,
    tables: Vec<Table>,
    /// Whether the target is already a whole database, of the same cluster.
    was_whole: bool,
}

impl Transfer {
    /// Locks both databases, and makes sure that the one can be copied to the other. Changes nothing but locks.
    ///
    /// Must not be called on a thread of an asynchronous runtime.
    pub fn begin(from: &CopySide, to: &CopySide, opening: &Opening) -> Result<Transfer> {
        if from.is_same_file(to) {
            return Err(CopyError::Same(from.shown()));
        }
        let tables = catalog::tables(opening)?;
        let source = Held::source(from, opening)?;
        let target = Held::target(to, opening, &source, &tables)?;
        let was_whole = match target.state {
            State::Empty | State::Marked => false,
            State::Whole(ref identity) if Some(identity) == source.identity()?.as_ref() => true,
            State::Whole(_) => return Err(CopyError::Occupied(to.shown())),
            State::Foreign => return Err(CopyError::Foreign(to.shown())),
        };
        Ok(Transfer { from: source, to: target, tables, was_whole })
    }

    /// Whether the target was a copy already, and was only compared.
    pub fn was_whole(&self) -> bool {
        self.was_whole
    }

    /// Whether there are secrets, which only their key opens.
    pub fn holds_secrets(&self) -> Result<bool> {
        let found = self.from.connection.query_row("SELECT EXISTS (SELECT 1 FROM secrets)", [], |row| row.get(0));
        Ok(found?)
    }

    /// Copies everything, and compares it. The target is not usable before [`finish`](Self::finish).
    pub fn run(&mut self, opening: &Opening, observer: &mut dyn CopyObserver) -> Result<Vec<CopiedTable>> {
        if self.to.state == State::Marked {
            observer.begins_anew();
        }
        if !self.was_whole {
            self.prepare(opening)?;
        }
        let source = self.from.connection.snapshot()?;
        source.without_time_limit()?;
        let mut copied = Vec::with_capacity(self.tables.len());
        for table in &self.tables {
            let mut digest = Digest::default();
            let total = count(&source, table)?;
            let mut reader = Reader::new(&source, table);
            loop {
                let rows = reader.next()?;
                if rows.is_empty() {
                    break;
                }
                digest.add(&rows);
                if !self.was_whole {
                    rows::check(table, &rows, &self.to.connection)?;
                    let transaction = self.to.connection.transaction()?;
                    rows::insert(&transaction, table, &rows)?;
                    transaction.commit()?;
                }
                observer.progress(&table.name, self.was_whole, digest.rows, total);
            }
            let next_id = table.counts.then(|| source.next_id(&table.name)).transpose()?;
            if let Some(next) = next_id.filter(|_| !self.was_whole) {
                let transaction = self.to.connection.transaction()?;
                transaction.continue_ids(&table.name, next)?;
                transaction.commit()?;
            }
            copied.push(CopiedTable { table: table.name.clone(), rows: digest.rows, hash: digest.hash(), next_id });
        }
        source.roll_back()?;
        self.compare(&copied, observer)?;
        Ok(copied)
    }

    /// Marks the target, and makes its tables, without a row.
    fn prepare(&mut self, opening: &Opening) -> Result<()> {
        let target = &mut self.to;
        target.open_for_writing()?;
        let transaction = target.connection.migration()?;
        let mut made = Vec::new();
        for table in &self.tables {
            if transaction.has_table(&table.name)? {
                made.push(quoted(&table.name));
            }
        }
        if transaction.has_table(MARK)? {
            made.push(quoted(MARK));
        }
        // Those that refer to others go first.
        for name in made.iter().rev() {
            transaction.execute_batch(&format!("DROP TABLE {name}"))?;
        }
        transaction.execute_batch(&format!("CREATE TABLE {MARK} (original TEXT NOT NULL)"))?;
        transaction.execute(&format!("INSERT INTO {MARK} (original) VALUES (?)"), [self.from.side.shown()])?;
        transaction.commit()?;
        migrations::upgrade(&mut target.connection, &PathBuf::from(target.side.shown()), opening)?;
        // What a new database begins with comes from the source.
        let transaction = target.connection.transaction()?;
        for table in self.tables.iter().rev() {
            transaction.execute_batch(&format!("DELETE FROM {}", quoted(&table.name)))?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Reads the target again, and compares it with what was read from the source.
    fn compare(&mut self, copied: &[CopiedTable], observer: &mut dyn CopyObserver) -> Result<()> {
        let was_whole = self.was_whole;
        let shown = self.to.side.shown();
        let target = self.to.connection.snapshot()?;
        target.without_time_limit()?;
        for (table, expected) in self.tables.iter().zip(copied) {
            let mut digest = Digest::default();
            let mut reader = Reader::new(&target, table);
            loop {
                let rows = reader.next()?;
                if rows.is_empty() {
                    break;
                }
                digest.add(&rows);
                observer.progress(&table.name, true, digest.rows, expected.rows);
            }
            let next_id = table.counts.then(|| target.next_id(&table.name)).transpose()?;
            let found = CopiedTable { table: table.name.clone(), rows: digest.rows, hash: digest.hash(), next_id };
            if found != *expected {
                // A database that somebody has worked with since is another one.
                let different = || CopyError::Different {
                    table: table.name.clone(),
                    from: described(expected),
                    to: described(&found),
                };
                return Err(if was_whole { CopyError::Occupied(shown) } else { different() });
            }
        }
        Ok(target.roll_back()?)
    }

    /// Makes the target a database that a master opens.
    pub fn finish(self) -> Result<()> {
        let mut target = self.to;
        if self.was_whole {
            return Ok(());
        }
        let names: Vec<String> = self.tables.iter().map(|table| quoted(&table.name)).collect();
        target.connection.settle(&names)?;
        let transaction = target.connection.migration()?;
        transaction.execute_batch(&format!("DROP TABLE {MARK}"))?;
        transaction.commit()?;
        if let CopySide::File(path) = &target.side {
            backup::sync_folder(path)?;
        }
        Ok(())
    }
}

fn count(connection: &Connection, table: &Table) -> Result<u64> {
    let sql = format!("SELECT COUNT(*) FROM {}", quoted(&table.name));
    let rows: i64 = connection.query_row(&sql, [], |row| row.get(0))?;
    Ok(u64::try_from(rows).unwrap_or_default())
}

fn described(table: &CopiedTable) -> String {
    let next = table.next_id.map(|next| format!(", next id {next}")).unwrap_or_default();
    format!("{} rows, hash {}{next}", table.rows, &table.hash[..16])
}

/// Refuses a database that was only copied to in part.
pub(crate) fn refuse_incomplete(connection: &Connection, place: &str) -> crate::Result<()> {
    if !connection.has_table(MARK)? {
        return Ok(());
    }
    let original = connection.query_row(&format!("SELECT original FROM {MARK}"), [], |row| row.get(0))?;
    Err(Error::Incomplete { place: place.to_owned(), original })
}
