//! What a copy of a whole database asks of an engine, and the rest of the crate does not.

use super::{Backend, Connection, Result};

impl Connection {
    /// The session that holds the lock of a database in PostgreSQL.
    pub(crate) fn session(&self) -> Option<(i32, i64)> {
        match &self.0 {
            Backend::Sqlite(_) => None,
            Backend::Postgres(connection) => connection.session(),
        }
    }

    /// Makes the schema if there is none; a file is made when it is opened.
    pub(crate) fn make_schema(&self) -> Result<()> {
        match &self.0 {
            Backend::Sqlite(_) => Ok(()),
            Backend::Postgres(connection) => connection.make_schema(),
        }
    }

    /// Whether there is a table.
    pub(crate) fn has_table(&self, name: &str) -> Result<bool> {
        let sql = match &self.0 {
            Backend::Sqlite(_) => "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?)",
            Backend::Postgres(_) => {
                "SELECT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = ?)"
            }
        };
        self.query_row(sql, [name], |row| row.get(0))
    }

    /// Whether there is anything that tables of these names would mix with: in a file any table, in a schema, which
    /// others may use too, one of the same name.
    pub(crate) fn has_content<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> Result<bool> {
        match &self.0 {
            Backend::Sqlite(_) => self.query_row("SELECT EXISTS (SELECT 1 FROM sqlite_master)", [], |row| row.get(0)),
            Backend::Postgres(_) => names.try_fold(false, |found, name| Ok(found || self.has_table(name)?)),
        }
    }

    /// Whether texts may hold the character NUL.
    pub(crate) fn keeps_nul(&self) -> bool {
        matches!(self.0, Backend::Sqlite(_))
    }

    /// Whether many rows are better inserted by one statement than by one each.
    pub(crate) fn likes_long_inserts(&self) -> bool {
        matches!(self.0, Backend::Postgres(_))
    }

    /// The id that the next row of a table gets.
    pub(crate) fn next_id(&self, table: &str) -> Result<i64> {
        let counted = match &self.0 {
            Backend::Sqlite(_) => {
                let sql = "SELECT COALESCE(MAX(seq), 0) + 1 FROM sqlite_sequence WHERE name = ?";
                self.query_row(sql, [table], |row| row.get(0))?
            }
            Backend::Postgres(_) => {
                let sql = "SELECT pg_get_serial_sequence(?, 'id')";
                let sequence: String = self.query_row(sql, [table], |row| row.get(0))?;
                let sql = format!("SELECT last_value + CASE WHEN is_called THEN 1 ELSE 0 END FROM {sequence}");
                self.query_row(&sql, [], |row| row.get(0))?
            }
        };
        let sql = format!("SELECT COALESCE(MAX(id), 0) + 1 FROM \"{table}\"");
        let beyond: i64 = self.query_row(&sql, [], |row| row.get(0))?;
        Ok(beyond.max(counted))
    }

    /// Says which id the next row of a table gets.
    pub(crate) fn continue_ids(&self, table: &str, next: i64) -> Result<()> {
        match &self.0 {
            Backend::Sqlite(_) => {
                self.execute("DELETE FROM sqlite_sequence WHERE name = ?", [table])?;
                let values: &[&dyn super::ToSql] = &[&table, &(next - 1)];
                self.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", values).map(drop)
            }
            Backend::Postgres(connection) => {
                connection.execute_batch(&format!("ALTER TABLE \"{table}\" ALTER COLUMN id RESTART WITH {next}"))
            }
        }
    }

    /// Puts what was written without hurry on disk, and lets the engine look at how much there is of what.
    pub(crate) fn settle(&mut self, quoted_tables: &[String]) -> Result<()> {
        match &self.0 {
            Backend::Sqlite(connection) => {
                Ok(connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_checkpoint(TRUNCATE);")?)
            }
            Backend::Postgres(_) => {
                let transaction = self.migration()?;
                transaction.execute_batch(&format!("ANALYZE {}", quoted_tables.join(", ")))?;
                transaction.commit()
            }
        }
    }
}
