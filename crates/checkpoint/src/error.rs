//! What can go wrong with a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

use crate::name::NameError;

/// The result of a step of saving or restoring.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a checkpoint could not be saved or restored.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Error {
    /// The text is not a UUID, and so not the name of a checkpoint.
    #[error("`{0}` is not the UUID of a checkpoint")]
    Uuid(String),
    /// A name that cannot be in a checkpoint.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Something that is neither a file nor a folder.
    #[error("{} is neither a file nor a folder and cannot be in a checkpoint", path.display())]
    Kind {
        /// What it is about.
        path: PathBuf,
    },
    /// Two ranks use one name for different things.
    #[error("ranks {first} and {second} both save `{name}`, with different content")]
    Conflict {
        name: String,
        /// Who has it.
        first: usize,
        /// Who has it too.
        second: usize,
    },
    /// There is no such checkpoint.
    #[error("there is no checkpoint {uuid} in {}", root.display())]
    Absent {
        uuid: String,
        /// Where it was looked for.
        root: PathBuf,
    },
    /// A file is missing that the manifest, or another rank, says is there.
    #[error("`{name}` is missing from checkpoint {uuid} in {}", root.display())]
    Missing {
        name: String,
        /// Of which checkpoint.
        uuid: String,
        root: PathBuf,
    },
    /// A file is not what was saved.
    #[error("`{name}` of checkpoint {uuid} is not what was saved: {why}")]
    Damaged {
        name: String,
        /// Of which checkpoint.
        uuid: String,
        /// In what way.
        why: String,
    },
    /// The manifest cannot be understood.
    #[error("the manifest of checkpoint {uuid} cannot be read: {why}")]
    Manifest {
        /// Of which checkpoint.
        uuid: String,
        why: String,
    },
    /// The file system refused.
    #[error("cannot {doing} {}", path.display())]
    File {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        source: io::Error,
    },
}

/// Turns an I/O error into one that says what was tried with which file.
pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { doing, path: path.to_owned(), source }
}
