//! Prepared statements, and the rows that they give.

use super::error::{Error, Result};
use super::{FromSql, Params, ValueRef, postgres};

/// A prepared statement.
pub(crate) struct Statement<'c>(Backend<'c>);

enum Backend<'c> {
    SqliteOnce(rusqlite::Statement<'c>),
    SqliteCached(rusqlite::CachedStatement<'c>),
    Postgres(postgres::Statement<'c>),
}

impl<'c> Statement<'c> {
    pub(super) fn once(statement: rusqlite::Statement<'c>) -> Statement<'c> {
        Statement(Backend::SqliteOnce(statement))
    }

    pub(super) fn cached(statement: rusqlite::CachedStatement<'c>) -> Statement<'c> {
        Statement(Backend::SqliteCached(statement))
    }

    pub(super) fn postgres(statement: postgres::Statement<'c>) -> Statement<'c> {
        Statement(Backend::Postgres(statement))
    }

    /// Runs it; gives how many rows it changed.
    pub(crate) fn execute(&mut self, params: impl Params) -> Result<usize> {
        match &mut self.0 {
            Backend::SqliteOnce(statement) => Ok(params.with(|values| statement.execute(values))?),
            Backend::SqliteCached(statement) => Ok(params.with(|values| statement.execute(values))?),
            Backend::Postgres(statement) => params.with(|values| statement.execute(values)),
        }
    }

    /// Runs it for its rows.
    pub(crate) fn query(&mut self, params: impl Params) -> Result<Rows<'_>> {
        match &mut self.0 {
            Backend::SqliteOnce(statement) => Ok(Rows::Sqlite(params.with(|values| statement.query(values))?)),
            Backend::SqliteCached(statement) => Ok(Rows::Sqlite(params.with(|values| statement.query(values))?)),
            Backend::Postgres(statement) => {
                let rows = params.with(|values| statement.query(values))?.into_iter();
                Ok(Rows::Postgres { rows, row: None })
            }
        }
    }

    /// Runs it for its rows, each turned into something else.
    pub(crate) fn query_map<T, F>(&mut self, params: impl Params, map: F) -> Result<MappedRows<'_, F>>
    where
        F: FnMut(&Row<'_>) -> Result<T>,
    {
        Ok(MappedRows { rows: self.query(params)?, map })
    }

    /// Runs it for its first row; see [`super::OptionalExtension`] for when there may be none.
    pub(crate) fn query_row<T>(&mut self, params: impl Params, map: impl FnOnce(&Row<'_>) -> Result<T>) -> Result<T> {
        let mut rows = self.query(params)?;
        rows.next()?.ok_or(Error::NoRow).and_then(|row| map(&row))
    }
}

/// Rows, one after the other. PostgreSQL sends all of them at once.
pub(crate) enum Rows<'s> {
    Sqlite(rusqlite::Rows<'s>),
    Postgres { rows: std::vec::IntoIter<::postgres::Row>, row: Option<::postgres::Row> },
}

impl Rows<'_> {
    /// The next one; `None` after the last.
    pub(crate) fn next(&mut self) -> Result<Option<Row<'_>>> {
        match self {
            Rows::Sqlite(rows) => Ok(rows.next()?.map(Row::Sqlite)),
            Rows::Postgres { rows, row } => {
                *row = rows.next();
                Ok(row.as_ref().map(Row::Postgres))
            }
        }
    }
}

/// Rows, each turned into something else.
pub(crate) struct MappedRows<'s, F> {
    rows: Rows<'s>,
    map: F,
}

impl<T, F: FnMut(&Row<'_>) -> Result<T>> Iterator for MappedRows<'_, F> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        match self.rows.next() {
            Ok(row) => row.map(|row| (self.map)(&row)),
            Err(error) => Some(Err(error)),
        }
    }
}

/// One row.
pub(crate) enum Row<'r> {
    Sqlite(&'r rusqlite::Row<'r>),
    Postgres(&'r ::postgres::Row),
}

/// What names a column: its number, or its name.
pub(crate) trait Index: rusqlite::RowIndex + Copy + std::fmt::Display {
    /// The column's number, if there is one of that name.
    fn number(self, row: &::postgres::Row) -> Option<usize>;
}

impl Index for usize {
    fn number(self, row: &::postgres::Row) -> Option<usize> {
        (self < row.len()).then_some(self)
    }
}

impl Index for &str {
    fn number(self, row: &::postgres::Row) -> Option<usize> {
        row.columns().iter().position(|column| column.name() == self)
    }
}

impl Row<'_> {
    /// A column, by its number or its name.
    pub(crate) fn get<I: Index, T: FromSql>(&self, column: I) -> Result<T> {
        match self {
            Row::Sqlite(row) => Ok(row.get(column)?),
            Row::Postgres(row) => {
                let value = T::column_result(value(row, column)?);
                value.map_err(|error| Error::Column { column: column.to_string(), why: error.to_string() })
            }
        }
    }

    /// The same without a copy.
    pub(crate) fn get_ref<I: Index>(&self, column: I) -> Result<ValueRef<'_>> {
        match self {
            Row::Sqlite(row) => Ok(row.get_ref(column)?),
            Row::Postgres(row) => value(row, column),
        }
    }
}

fn value(row: &::postgres::Row, column: impl Index) -> Result<ValueRef<'_>> {
    let missing = || Error::Column { column: column.to_string(), why: "there is no such column".to_owned() };
    let number = column.number(row).ok_or_else(missing)?;
    let found = row.try_get::<_, postgres::Column<'_>>(number);
    found.map(|column| column.0).map_err(|error| {
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        Error::Column { column: column.to_string(), why }
    })
}
