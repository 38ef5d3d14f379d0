//! What can go wrong in the database, as far as a caller can act on it.

use std::path::PathBuf;

use crate::sql::{self, Place};

/// Why the database did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Error {
    /// There is no such thing.
    #[error("{what} '{id}' not found")]
    NotFound {
        /// What kind of thing, as users call it.
        what: &'static str,
        /// How it was named.
        id: String,
    },
    /// There already is one.
    #[error("{0}")]
    AlreadyExists(String),
    /// The request contradicts what is stored.
    #[error("{0}")]
    Invalid(String),
    /// The thing is not in a state in which this can be done.
    #[error("{0}")]
    Precondition(String),
    /// A checkpoint stays because a model has it.
    #[error(
        "checkpoint '{uuid}' is version {version} of a model in the registry, '{model}', and cannot be deleted\n\
         hint: `instep model delete-version {model} {version}` takes it out of the registry"
    )]
    Registered {
        uuid: String,
        /// The model's name.
        model: String,
        /// The number of the version.
        version: i64,
    },
    /// Something changed between reading and writing; the work can be done again.
    #[error("the data was changed in the meantime")]
    Aborted,
    /// Another master has taken over; this one must not decide anything any more.
    #[error("another master has taken over this database")]
    Superseded,
    /// This master may not write any more: it has to begin anew, with what the database says.
    #[error("this master has stepped down: {0}")]
    SteppedDown(String),
    /// Nothing of the request was stored.
    #[error("the change could not be stored: {0}")]
    NotDurable(String),
    /// The database is being closed.
    #[error("the database is closed")]
    Closed,
    /// The PostgreSQL server takes no connections, or not ours, or does not let us use the database.
    #[error("{place}: {why}")]
    Refused {
        /// As the address shows itself.
        place: String,
        /// What the server says.
        why: String,
        /// What to do next.
        hint: &'static str,
        /// Whether waiting does not help: somebody has to change something.
        lasting: bool,
    },
    /// Another process uses the database.
    #[error("{} is in use by another master ({holder})", path.display())]
    InUse {
        /// The database file.
        path: PathBuf,
        /// What that one says of itself.
        holder: String,
    },
    /// Another process of this user uses the schema in PostgreSQL, and the folder for what belongs to it here.
    #[error("{place} is in use by another master here ({holder}), which has its files in {}", folder.display())]
    InUseHere {
        /// As the address shows itself.
        place: String,
        /// Where the files lie.
        folder: PathBuf,
        /// What that one says of itself.
        holder: String,
    },
    /// Another process uses the schema in PostgreSQL, on this machine or on another one.
    #[error("{place} is in use by another master ({holder})")]
    InUseElsewhere {
        /// As the address shows itself.
        place: String,
        /// What the server knows of that one.
        holder: String,
    },
    /// Written by a later version.
    #[error("{} has schema {found}, this version knows up to {known}", path.display())]
    TooNew {
        /// The database file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest schema that this version knows.
        known: i64,
    },
    /// A copy to it was stopped on its way.
    #[error("{place} is an incomplete copy of {original}")]
    Incomplete {
        /// The database.
        place: String,
        /// What was copied to it.
        original: String,
    },
    /// Not a database, or a damaged one.
    #[error("{} is not a usable database: {why}", path.display())]
    Unusable {
        /// The database file.
        path: PathBuf,
        /// What the engine says.
        why: String,
    },
    /// Stored content that cannot be read back.
    #[error("damaged content in the database: {0}")]
    Damaged(String),
    /// There is a file that would be overwritten.
    #[error("{} exists already", path.display())]
    FileExists { path: PathBuf },
    /// The folder or the lock file cannot be used.
    #[error("cannot use {}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    /// Anything else that the engine says.
    #[error("the database failed")]
    Engine(#[source] sql::Error),
}

impl From<sql::Error> for Error {
    fn from(error: sql::Error) -> Error {
        match error {
            sql::Error::Refused { place, why, hint, lasting } => Error::Refused { place, why, hint, lasting },
            sql::Error::Locked { place, holder } => Error::InUseElsewhere { place, holder },
            sql::Error::Text(_) => Error::Invalid(error.to_string()),
            other => Error::Engine(other),
        }
    }
}

impl Error {
    /// What it means that the files beside a database in PostgreSQL are in use: the path is no file that anybody named.
    pub(crate) fn beside(self, place: &str) -> Error {
        match self {
            Error::InUse { path, holder } => {
                let folder = path.parent().map(PathBuf::from).unwrap_or_default();
                Error::InUseHere { place: place.to_owned(), folder, holder }
            }
            other => other,
        }
    }

    /// Whether there is no room left for what is to be written.
    pub fn is_full_disk(&self) -> bool {
        match self {
            Error::Engine(error) => error.is_full_disk(),
            Error::File { source, .. } => source.kind() == std::io::ErrorKind::StorageFull,
            _ => false,
        }
    }

    /// Whether the server is away, and the same may succeed later.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Engine(sql::Error::Lost { .. }))
    }

    /// Whether a server does not let us, and will not before somebody changes something: there is no such database or user.
    pub fn is_of_setup(&self) -> bool {
        matches!(self, Error::Refused { lasting: true, .. })
    }

    /// Whether it is about a PostgreSQL server.
    pub fn is_of_server(&self) -> bool {
        use sql::Error::{Lost, Server, UnknownOutcome};
        matches!(self, Error::Engine(Server { .. } | Lost { .. } | UnknownOutcome { .. }))
    }

    /// What a failure means to somebody who opens a database: that a server does not let us, and what to do about it.
    pub(crate) fn on_opening(self, place: &Place) -> Error {
        let Error::Engine(error) = self else { return self };
        let hint = error.hint();
        match error {
            sql::Error::Server { why, .. } | sql::Error::Lost { why, .. } => {
                Error::Refused { place: place.shown().display().to_string(), why, hint, lasting: false }
            }
            other => Error::Engine(other),
        }
    }

    /// There is no `what` called `id`.
    pub(crate) fn not_found(what: &'static str, id: impl ToString) -> Error {
        Error::NotFound { what, id: id.to_string() }
    }
}

/// What the database answers.
pub type Result<T> = std::result::Result<T, Error>;
