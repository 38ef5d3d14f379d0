//! The database engines, behind one set of calls: the only module that knows a driver.
//!
//! [`Connection`], [`Statement`] and [`Row`] have what the rest of the crate uses of SQLite's driver, under the same
//! names, for SQLite and for PostgreSQL. Values of columns and parameters are that driver's too ([`Value`], [`ToSql`],
//! [`FromSql`]). Statements are written once, in the SQL that both understand; what they spell differently is here.

mod error;
mod params;
mod postgres;
pub(crate) mod sqlite;
mod statement;
mod whole;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::leadership::{Observation, Session};

pub use error::Error;
pub(crate) use error::{OptionalExtension, Result};
pub(crate) use params::{Params, params, params_from_iter};
pub use postgres::{Address, AddressError};
pub(crate) use rusqlite::ToSql;
pub(crate) use rusqlite::types::{FromSql, Value, ValueRef};
pub(crate) use statement::{Row, Statement};

/// Prepared statements that each connection keeps.
const STATEMENTS: usize = 128;
/// How long what a server is still doing for us is waited for at the end.
const CLOSING: Duration = Duration::from_secs(5);

/// Where a database is.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Sqlite(PathBuf),
    Postgres(Arc<Address>),
}

impl Place {
    /// Opens the connection for writing. SQLite makes the file if there is none, PostgreSQL the schema.
    pub(crate) fn open_writer(&self) -> Result<Connection> {
        match self {
            Place::Sqlite(path) => sqlite::open_writer(path),
            Place::Postgres(address) => {
                Ok(Connection(Backend::Postgres(Box::new(postgres::Connection::writer(address)?))))
            }
        }
    }

    /// Opens a connection for reading.
    pub(crate) fn open_reader(&self) -> Result<Connection> {
        match self {
            Place::Sqlite(path) => sqlite::open_reader(path),
            Place::Postgres(address) => {
                Ok(Connection(Backend::Postgres(Box::new(postgres::Connection::reader(address)?))))
            }
        }
    }

    /// Opens a database in PostgreSQL and takes its lock, and makes nothing; a file, which must be there.
    pub(crate) fn open_locked(&self) -> Result<Connection> {
        match self {
            Place::Sqlite(path) => sqlite::open_existing(path),
            Place::Postgres(address) => {
                Ok(Connection(Backend::Postgres(Box::new(postgres::Connection::locked(address)?))))
            }
        }
    }

    /// Whether a session, as [`Connection::session`] gives it, holds the lock of this database.
    pub(crate) fn is_locked_by(&self, session: (i32, i64)) -> Result<bool> {
        match self {
            Place::Sqlite(_) => Ok(false),
            Place::Postgres(address) => postgres::Connection::visitor(address)?.is_locked_by(session),
        }
    }

    /// How long to wait at the end for threads that use it: a file's disk answers some time, a server perhaps never.
    pub(crate) fn closing_patience(&self) -> Option<Duration> {
        match self {
            Place::Sqlite(_) => None,
            Place::Postgres(_) => Some(CLOSING),
        }
    }

    /// How messages call it: the file, or what an address shows of itself.
    pub(crate) fn shown(&self) -> PathBuf {
        match self {
            Place::Sqlite(path) => path.clone(),
            Place::Postgres(address) => address.place().into(),
        }
    }
}

impl From<&Path> for Place {
    fn from(path: &Path) -> Place {
        Place::Sqlite(path.to_owned())
    }
}

/// A connection to a database.
pub(crate) struct Connection(Backend);

enum Backend {
    Sqlite(rusqlite::Connection),
    Postgres(Box<postgres::Connection>),
}

impl Connection {
    /// Opens the connection of a master that may lead, without the lock. Only PostgreSQL has several masters.
    pub(crate) fn open_candidate(address: &Arc<Address>) -> Result<Connection> {
        Ok(Connection(Backend::Postgres(Box::new(postgres::Connection::candidate(address)?))))
    }

    /// Opens a connection that says that a term goes on.
    pub(crate) fn open_renewing(address: &Arc<Address>) -> Result<Connection> {
        let connection = postgres::Connection::visitor(address)?;
        connection.commit_at_once()?;
        Ok(Connection(Backend::Postgres(Box::new(connection))))
    }

    /// That of PostgreSQL, which alone knows of several masters.
    fn server(&self) -> Result<&postgres::Connection> {
        match &self.0 {
            Backend::Sqlite(_) => Err(Error::Server { why: "a file has one master".to_owned(), code: None }),
            Backend::Postgres(connection) => Ok(connection),
        }
    }

    /// Takes the lock that keeps other masters out, if it is free.
    pub(crate) fn try_lock(&self) -> Result<bool> {
        self.server()?.try_lock()
    }

    /// Looks at who leads.
    pub(crate) fn observe(&self) -> Result<Observation> {
        self.server()?.observe()
    }

    /// Ends the session of a leader that has let its lease expire. Gives whether the server let us.
    pub(crate) fn end_session(&self, session: Session) -> Result<bool> {
        self.server()?.end_session(session)
    }

    /// Says that a term goes on. Gives whether it does.
    pub(crate) fn renew(&self, epoch: i64) -> Result<bool> {
        self.server()?.renew(epoch)
    }

    /// Prepares a statement that is used once. (PostgreSQL keeps it all the same: making one is a way to the server.)
    pub(crate) fn prepare(&self, sql: &str) -> Result<Statement<'_>> {
        match &self.0 {
            Backend::Sqlite(connection) => Ok(Statement::once(connection.prepare(sql)?)),
            Backend::Postgres(connection) => Ok(Statement::postgres(connection.prepare(sql)?)),
        }
    }

    /// Prepares a statement, or takes it from among those that were prepared before.
    pub(crate) fn prepare_cached(&self, sql: &str) -> Result<Statement<'_>> {
        match &self.0 {
            Backend::Sqlite(connection) => Ok(Statement::cached(connection.prepare_cached(sql)?)),
            Backend::Postgres(connection) => Ok(Statement::postgres(connection.prepare(sql)?)),
        }
    }

    /// Runs a statement; gives how many rows it changed.
    pub(crate) fn execute(&self, sql: &str, params: impl Params) -> Result<usize> {
        self.prepare(sql)?.execute(params)
    }

    /// Runs statements that take nothing and give nothing.
    pub(crate) fn execute_batch(&self, sql: &str) -> Result<()> {
        match &self.0 {
            Backend::Sqlite(connection) => Ok(connection.execute_batch(sql)?),
            Backend::Postgres(connection) => connection.execute_batch(sql),
        }
    }

    /// Runs a query for its first row; see [`OptionalExtension`] for when there may be none.
    pub(crate) fn query_row<T>(
        &self,
        sql: &str,
        params: impl Params,
        map: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<T> {
        self.prepare(sql)?.query_row(params, map)
    }

    /// Runs a statement without values that is run often, such as `SAVEPOINT`.
    pub(crate) fn command(&self, sql: &str) -> Result<()> {
        match &self.0 {
            Backend::Sqlite(connection) => connection.prepare_cached(sql)?.execute([]).map(drop).map_err(Error::from),
            Backend::Postgres(connection) => connection.execute_batch(sql),
        }
    }

    /// Begins a transaction, which is rolled back unless it is committed.
    pub(crate) fn transaction(&mut self) -> Result<Transaction<'_>> {
        match &self.0 {
            Backend::Sqlite(connection) => connection.execute_batch("BEGIN")?,
            Backend::Postgres(connection) => connection.begin_changes()?,
        }
        Ok(Transaction { connection: self })
    }

    /// Begins a transaction that changes the schema, which may take long.
    pub(crate) fn migration(&mut self) -> Result<Transaction<'_>> {
        let transaction = self.transaction()?;
        transaction.without_time_limit()?;
        Ok(transaction)
    }

    /// Lets the statements of the open transaction take as long as they need.
    pub(crate) fn without_time_limit(&self) -> Result<()> {
        match &self.0 {
            Backend::Sqlite(_) => Ok(()),
            Backend::Postgres(connection) => connection.execute_batch("SET LOCAL statement_timeout = 0"),
        }
    }

    /// Begins a transaction that shows one state of the database throughout.
    pub(crate) fn snapshot(&mut self) -> Result<Transaction<'_>> {
        match &self.0 {
            Backend::Sqlite(connection) => connection.execute_batch("BEGIN")?,
            Backend::Postgres(connection) => connection.begin_snapshot()?,
        }
        Ok(Transaction { connection: self })
    }

    /// Begins a transaction that decides something; gives the epoch of the lease, which nobody raises meanwhile.
    pub(crate) fn begin_deciding(&self) -> Result<i64> {
        match &self.0 {
            Backend::Sqlite(connection) => {
                connection.execute_batch("BEGIN IMMEDIATE")?;
                self.prepare_cached("SELECT epoch FROM lease WHERE name = 'master'")?.query_row([], |row| row.get(0))
            }
            Backend::Postgres(connection) => connection.begin_deciding(),
        }
    }

    /// Begins a part of the open transaction that can be taken back alone.
    pub(crate) fn savepoint(&self) -> Result<()> {
        match &self.0 {
            Backend::Sqlite(_) => self.command("SAVEPOINT job"),
            Backend::Postgres(connection) => connection.savepoint(),
        }
    }

    /// Ends the part, and keeps what it did.
    pub(crate) fn release(&self) -> Result<()> {
        match &self.0 {
            Backend::Sqlite(_) => self.command("RELEASE job"),
            Backend::Postgres(connection) => {
                connection.release();
                Ok(())
            }
        }
    }

    /// Ends the part, and takes back what it did.
    pub(crate) fn rollback_to(&self) -> Result<()> {
        match &self.0 {
            Backend::Sqlite(_) => {
                self.command("ROLLBACK TO job")?;
                self.command("RELEASE job")
            }
            Backend::Postgres(connection) => connection.rollback_to(),
        }
    }

    /// How many parts a transaction should have at most. PostgreSQL slows others down that look at one with more than
    /// 64 savepoints.
    pub(crate) fn most_jobs(&self) -> usize {
        match &self.0 {
            Backend::Sqlite(_) => 256,
            Backend::Postgres(_) => 64,
        }
    }

    /// Keeps what the open transaction did. If that fails it is rolled back.
    pub(crate) fn commit(&self) -> Result<()> {
        match &self.0 {
            Backend::Sqlite(connection) => Ok(connection.execute_batch("COMMIT")?),
            Backend::Postgres(connection) => connection.commit(),
        }
    }

    /// Takes back what the open transaction did.
    pub(crate) fn roll_back(&self) -> Result<()> {
        match &self.0 {
            Backend::Sqlite(connection) => Ok(connection.execute_batch("ROLLBACK")?),
            Backend::Postgres(connection) => connection.roll_back(),
        }
    }

    /// Whether no transaction is open.
    pub(crate) fn is_autocommit(&self) -> bool {
        match &self.0 {
            Backend::Sqlite(connection) => connection.is_autocommit(),
            Backend::Postgres(connection) => connection.is_autocommit(),
        }
    }

    /// Says that a transaction is gone that nobody has ended, and why.
    pub(crate) fn rolled_back(&self) -> crate::Error {
        match &self.0 {
            Backend::Sqlite(_) => {
                crate::Error::NotDurable("the transaction was rolled back; is the disk full?".to_owned())
            }
            Backend::Postgres(connection) => crate::Error::Engine(connection.lost()),
        }
    }

    /// How a step of the schema is spelled here. `{identity}` and `{bytes}` are explained in the first of them;
    /// `{, texts}` stands for columns of an index that PostgreSQL leaves out, because its indexes keep no long texts.
    /// Texts are compared and sorted byte by byte, as SQLite does it.
    pub(crate) fn spelled(&self, step: &str) -> String {
        let spellings: &[(&str, &str)] = match &self.0 {
            Backend::Sqlite(_) => &[
                ("{identity}", "INTEGER PRIMARY KEY AUTOINCREMENT"),
                ("{bytes}", "BLOB"),
                ("{, texts: name, labels}", ", name, labels"),
            ],
            Backend::Postgres(_) => &[
                (" TEXT", " TEXT COLLATE \"C\""),
                ("{identity}", "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"),
                ("{bytes}", "BYTEA"),
                ("{, texts: name, labels}", ""),
            ],
        };
        spellings.iter().fold(step.to_owned(), |text, (name, spelling)| text.replace(name, spelling))
    }
}

/// An open transaction.
pub(crate) struct Transaction<'c> {
    connection: &'c Connection,
}

impl Transaction<'_> {
    /// Keeps what was done. If that fails it is rolled back.
    pub(crate) fn commit(self) -> Result<()> {
        self.connection.commit()
    }

    /// Takes back what was done.
    pub(crate) fn roll_back(self) -> Result<()> {
        self.connection.roll_back()
    }
}

impl Deref for Transaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.connection.is_autocommit() {
            // If it fails, the next transaction cannot begin and says why.
            let _ = self.connection.roll_back();
        }
    }
}
