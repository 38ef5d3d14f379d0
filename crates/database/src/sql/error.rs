//! What an engine says when it fails.

/// Why a statement failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A row was asked for, and there is none.
    #[error("there is no such row")]
    NoRow,
    /// A column has another value than it must have.
    #[error("column {column}: {why}")]
    Column { column: String, why: String },
    #[error(transparent)]
    Sqlite(rusqlite::Error),
    /// PostgreSQL does not do what it was asked.
    #[error("{why}")]
    Server {
        why: String,
        /// As PostgreSQL numbers them: SQLSTATE.
        code: Option<String>,
    },
    /// PostgreSQL takes no connections, or not ours.
    #[error("{place}: {why}")]
    Refused {
        place: String,
        why: String,
        hint: &'static str,
        /// Whether waiting does not help.
        lasting: bool,
    },
    /// Another master has the schema.
    #[error("{place} is in use by another master ({holder})")]
    Locked { place: String, holder: String },
    /// The connection is gone, and what had not been committed with it.
    #[error("the connection to the database {place} was lost: {why}")]
    Lost { place: String, why: String },
    /// The connection was lost at the moment at which a transaction was being committed.
    #[error("the connection to the database {place} was lost during a commit: {why}")]
    UnknownOutcome { place: String, why: String },
    /// A text that PostgreSQL does not keep.
    #[error("a text {0}, which the database cannot keep")]
    Text(&'static str),
}

impl Error {
    /// What to do about what a server says to somebody who opens a database there.
    pub(crate) fn hint(&self) -> &'static str {
        let Error::Server { code, .. } = self else {
            return "check that the server runs and can be reached from here: host, port, firewall";
        };
        match code.as_deref() {
            // Missing rights; and where there is no right to look into it, there is no schema.
            Some("42501" | "3F000") => {
                "have its owner say `GRANT USAGE, CREATE ON SCHEMA name TO user`; what is in it must be the user's own"
            }
            Some("53100") => "make room on the server's disk",
            Some("55P03" | "57014") => {
                "something on the server keeps it waiting: `SELECT * FROM pg_stat_activity` shows what"
            }
            _ => "see what the server says, and its log",
        }
    }

    /// Whether there is no room left for what is to be written.
    pub(crate) fn is_full_disk(&self) -> bool {
        match self {
            Error::Sqlite(error) => error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull),
            Error::Server { code, .. } => code.as_deref() == Some("53100"),
            _ => false,
        }
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Error {
        match error {
            rusqlite::Error::QueryReturnedNoRows => Error::NoRow,
            other => Error::Sqlite(other),
        }
    }
}

/// What statements answer.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// For rows that need not exist.
pub(crate) trait OptionalExtension<T> {
    /// `None` if there is no such row.
    fn optional(self) -> Result<Option<T>>;
}

impl<T> OptionalExtension<T> for Result<T> {
    fn optional(self) -> Result<Option<T>> {
        match self {
            Ok(found) => Ok(Some(found)),
            Err(Error::NoRow) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What went wrong, in the server's words or the system's.
pub(super) fn reason(error: &postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return error.message().to_owned();
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text = next.to_string();
        cause = next.source();
    }
    text
}
