//! Opens SQLite's files.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rusqlite::OpenFlags;

use super::{Backend, Connection, Result, STATEMENTS};

/// Opens a connection for reading.
pub(crate) fn open_reader(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = rusqlite::Connection::open_with_flags(path, flags)?;
    connection.execute_batch("PRAGMA busy_timeout = 5000; PRAGMA query_only = ON; PRAGMA cache_size = -8192;")?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(Connection(Backend::Sqlite(connection)))
}

/// Opens the connection for writing, and makes the file if there is none.
pub(crate) fn open_writer(path: &Path) -> Result<Connection> {
    // Made here so that only its owner can read the hashes in it; the journal takes its mode. If it cannot be made, the
    // next line says why.
    let _ = std::fs::File::options().create(true).append(true).mode(0o600).open(path);
    let connection = rusqlite::Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; \
         PRAGMA journal_size_limit = 67108864;",
    )?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(Connection(Backend::Sqlite(connection)))
}

/// Opens a file that is there, whoever else uses it. What is no database shows when it is used.
pub(crate) fn open_existing(path: &Path) -> Result<Connection> {
    // For writing, because a reader of a journalled database must be able to make its index.
    Ok(Connection(Backend::Sqlite(rusqlite::Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?)))
}

/// A database that is gone when it is closed.
pub(crate) fn open_in_memory() -> Result<Connection> {
    Ok(Connection(Backend::Sqlite(rusqlite::Connection::open_in_memory()?)))
}
