//! The two databases of a copy: opened and locked so that nothing is made or changed where something is refused.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::catalog::Table;
use super::{CopyError, MARK, Result};
use crate::error::Error;
use crate::lock::Lock;
use crate::sql::{Connection, OptionalExtension, Place, sqlite};
use crate::{Opening, PostgresAddress, backup, migrations};

/// Where one of the two databases is.
#[derive(Debug, Clone)]
pub enum CopySide {
    /// A file of SQLite.
    File(PathBuf),
    /// A schema of PostgreSQL.
    Postgres {
        /// Where it is.
        address: Box<PostgresAddress>,
        /// What a master's files on this machine are named after.
        path: PathBuf,
    },
}

impl CopySide {
    /// How people call it, without a password.
    pub fn shown(&self) -> String {
        match self {
            CopySide::File(path) => path.display().to_string(),
            CopySide::Postgres { address, .. } => address.place().to_owned(),
        }
    }

    /// The file, or what the files on this machine are named after.
    pub fn path(&self) -> &Path {
        match self {
            CopySide::File(path) | CopySide::Postgres { path, .. } => path,
        }
    }

    pub(super) fn is_same_file(&self, other: &CopySide) -> bool {
        let identity = |side: &CopySide| match side {
            CopySide::File(path) => std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino())),
            CopySide::Postgres { .. } => None,
        };
        match (self, other) {
            (CopySide::File(one), CopySide::File(two)) if one == two => true,
            _ => identity(self).is_some() && identity(self) == identity(other),
        }
    }

    fn place(&self) -> Place {
        match self {
            CopySide::File(path) => Place::Sqlite(path.clone()),
            CopySide::Postgres { address, .. } => Place::Postgres(Arc::new((**address).clone())),
        }
    }

    /// Keeps masters on this machine out.
    fn lock(&self, holder: &str) -> Result<Lock> {
        Lock::take(self.path(), holder).map_err(|error| match self {
            CopySide::File(_) => self.failed(error),
            CopySide::Postgres { address, .. } => self.failed(error.beside(address.place())),
        })
    }

    /// An error about this database.
    fn failed(&self, error: impl Into<Error>) -> CopyError {
        let place = self.place();
        CopyError::Failed(match error.into().on_opening(&place) {
            Error::Engine(error) => Error::Unusable { path: place.shown(), why: error.to_string() },
            // The others say where already.
            error => error,
        })
    }
}

/// A cluster's id, and how often its database was opened for work: what has the same is a copy that nobody worked with.
pub(super) type Identity = (String, i64);

/// What a target holds before anything is copied to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing.
    Empty,
    /// A part of an earlier copy.
    Marked,
    /// A master's database.
    Whole(Identity),
    /// Something else.
    Foreign,
}

/// A database that nobody else uses.
pub(super) struct Held {
    pub side: CopySide,
    pub connection: Connection,
    pub state: State,
    _lock: Lock,
}

impl Held {
    /// Locks what is copied.
    pub(super) fn source(side: &CopySide, opening: &Opening) -> Result<Held> {
        if let CopySide::File(path) = side {
            // Before there is a lock beside a file that is none.
            std::fs::metadata(path).map_err(|source| side.failed(Error::File { path: path.clone(), source }))?;
        }
        let lock = side.lock(&opening.holder)?;
        let connection = match side {
            CopySide::File(path) => backup::open_existing(path).map_err(|error| side.failed(error))?,
            CopySide::Postgres { .. } => side.place().open_locked().map_err(|error| side.failed(error))?,
        };
        let known = connection.has_table("schema_steps").map_err(|error| side.failed(error))?;
        if !known {
            return Err(CopyError::Absent(side.shown()));
        }
        let path = side.place().shown();
        let found = migrations::check_version(&connection, &path).map_err(|error| side.failed(error))?;
        if found != migrations::KNOWN {
            return Err(CopyError::OtherSchema { place: side.shown(), found, known: migrations::KNOWN });
        }
        Ok(Held { side: side.clone(), connection, state: State::Foreign, _lock: lock })
    }

    /// Locks what is copied to, and finds out what it holds. A file is not made yet.
    pub(super) fn target(side: &CopySide, opening: &Opening, source: &Held, tables: &[Table]) -> Result<Held> {
        // A server's lock would be ours, as another master's.
        if let (Some(session), CopySide::Postgres { .. }) = (source.connection.session(), side)
            && side.place().is_locked_by(session).map_err(|error| side.failed(error))?
        {
            return Err(CopyError::Same(side.shown()));
        }
        let lock = side.lock(&opening.holder)?;
        let connection = match side {
            CopySide::File(path) if !path.exists() => sqlite::open_in_memory()?,
            CopySide::File(path) => backup::open_existing(path).map_err(|error| side.failed(error))?,
            CopySide::Postgres { .. } => side.place().open_locked().map_err(|error| side.failed(error))?,
        };
        let state = state(&connection, tables).map_err(|error| side.failed(error))?;
        Ok(Held { side: side.clone(), connection, state, _lock: lock })
    }

    pub(super) fn identity(&self) -> Result<Option<Identity>> {
        Ok(identity(&self.connection)?)
    }

    /// Makes the file or the schema, if there is none.
    pub(super) fn open_for_writing(&mut self) -> Result<()> {
        match &self.side {
            CopySide::File(path) => {
                self.connection = sqlite::open_writer(path).map_err(|error| self.side.failed(error))?;
                // Rows come in the order in which foreign keys want them, and hashes are compared in the end. What was
                // written last may be lost with the machine, never its order, until it is made whole.
                self.connection.execute_batch("PRAGMA foreign_keys = OFF; PRAGMA synchronous = NORMAL;")?;
            }
            CopySide::Postgres { .. } => self.connection.make_schema().map_err(|error| self.side.failed(error))?,
        }
        Ok(())
    }
}

fn state(connection: &Connection, tables: &[Table]) -> crate::Result<State> {
    if connection.has_table(MARK)? {
        return Ok(State::Marked);
    }
    if !connection.has_content(tables.iter().map(|table| table.name.as_str()))? {
        return Ok(State::Empty);
    }
    let known = ["schema_steps", "settings", "lease"].into_iter();
    let known = known.map(|name| connection.has_table(name)).collect::<crate::sql::Result<Vec<bool>>>()?;
    let identity = if known.into_iter().all(|there| there) { identity(connection)? } else { None };
    Ok(identity.map_or(State::Foreign, State::Whole))
}

fn identity(connection: &Connection) -> crate::sql::Result<Option<Identity>> {
    let sql = "SELECT value, epoch FROM settings, lease WHERE settings.name = 'cluster_id' AND lease.name = 'master'";
    connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).optional()
}
