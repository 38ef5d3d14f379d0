//! Copies of the database, made and put back by hand.

use std::path::{Path, PathBuf};

use instep_database::{CopiedTable, CopyError, CopyObserver, CopySide, Error, Opening, Transfer};

use crate::clock::now;
use crate::presence::Presence;
use crate::random;
use crate::vault::{self, key_path};
use crate::{Options, ServeError};

/// Copies the database, in use or not, to a file that must not exist yet.
pub fn back_up(database: &Path, target: &Path) -> Result<(), ServeError> {
    instep_database::back_up(database, target).map_err(|error| match error {
        Error::File { ref path, .. } if path != database => ServeError::Copy(error),
        other => other.into(),
    })
}

/// What a process that is no master brings to change a database by hand.
pub fn opening_by(holder: &str) -> Opening {
    Opening { holder: format!("{holder}, pid {}", std::process::id()), cluster_id: random::uuid(), now: now() }
}

/// The key that the secrets of a database need, which is in no copy; `None` if it holds no secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretsKey {
    /// Where the master looks for it.
    pub path: PathBuf,
    /// Whether something is there.
    pub is_there: bool,
}

impl SecretsKey {
    /// Where the key of a database lies, if there is one.
    pub fn path_of(database: &Path) -> PathBuf {
        key_path(database)
    }

    /// That of a database, in use or not.
    pub fn of(database: &Path) -> Result<Option<SecretsKey>, ServeError> {
        if !instep_database::holds_secrets(database)? {
            return Ok(None);
        }
        let path = key_path(database);
        Ok(Some(SecretsKey { is_there: path.exists(), path }))
    }
}

/// Makes a copy the database. With `replace` a database that is there is kept under another name, which is given back.
pub fn restore(copy: &Path, database: &Path, replace: bool) -> Result<Option<PathBuf>, ServeError> {
    let suffix = replace.then(|| format!(".replaced-{}", now().0));
    let kept = suffix.as_ref().filter(|_| database.exists()).map(|suffix| {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    });
    instep_database::restore(copy, database, suffix.as_deref(), &Presence::starting()).map_err(
        |error| match error {
            Error::File { ref path, .. } | Error::Unusable { ref path, .. } if path == copy => {
                ServeError::Backup(error)
            }
            other => Presence::name_holder(other).into(),
        },
    )?;
    Ok(kept)
}

/// What became of a copy from one database to another.
#[derive(Debug)]
pub struct CopyReport {
    /// Every table, the same on both sides.
    pub tables: Vec<CopiedTable>,
    /// Whether the target was such a copy already.
    pub was_whole: bool,
    /// What became of the key of the secrets; nothing if there are none.
    pub key: Option<KeyOfCopy>,
}

/// What became of the key of the secrets, which is in no database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyOfCopy {
    /// It lies beside the target now.
    Copied(PathBuf),
    /// There was none to copy, where it should have been.
    Missing(PathBuf),
}

/// Why a database was not copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyFailed {
    /// It could not be read, written or compared.
    #[error(transparent)]
    Database(#[from] CopyError),
    /// There is the key of other secrets.
    #[error("{} is the key of other secrets", .0.display())]
    OtherKey(PathBuf),
    /// The key cannot be read or written.
    #[error("cannot copy the key of the secrets, {}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

impl CopyFailed {
    /// What to do next.
    pub fn hint(&self) -> &'static str {
        match self {
            CopyFailed::Database(error) => error.hint(),
            CopyFailed::OtherKey(_) => "move that file to where it belongs, or name another target",
            CopyFailed::Key { .. } => "make the file readable, and its folder writable, for this user",
        }
    }
}

/// What is told while a database is copied.
pub trait CopyProgress {
    /// An earlier copy to the same target was stopped on its way; what it did is done again.
    fn begins_anew(&mut self);
    /// So many of all rows of a table were copied, or compared afterwards.
    fn progress(&mut self, table: &str, comparing: bool, rows: u64, total: u64);
}

struct Told<'a>(&'a mut dyn CopyProgress);

impl CopyObserver for Told<'_> {
    fn begins_anew(&mut self) {
        self.0.begins_anew();
    }

    fn progress(&mut self, table: &str, comparing: bool, rows: u64, total: u64) {
        self.0.progress(table, comparing, rows, total);
    }
}

/// Copies the database of one master to another place, with the key of its secrets. No master may run on either.
pub fn copy(from: &Options, to: &Options, progress: &mut dyn CopyProgress) -> Result<CopyReport, CopyFailed> {
    let opening = opening_by("instep master copy");
    let mut transfer = Transfer::begin(&side(from), &side(to), &opening).map_err(|error| match error {
        CopyError::Failed(error) => CopyError::Failed(Presence::name_holder(error)),
        other => other,
    })?;
    let keys = transfer.holds_secrets()?.then(|| [key_path(&from.database), key_path(&to.database)]);
    let key = keys.as_ref().map(|[from, to]| readable_key(from, to)).transpose()?.flatten();
    let tables = transfer.run(&opening, &mut Told(progress))?;
    let was_whole = transfer.was_whole();
    let key = match (keys, key) {
        (Some([_, to]), Some(key)) => {
            vault::keep(&to, &key).map_err(|source| CopyFailed::Key { path: to.clone(), source })?;
            Some(KeyOfCopy::Copied(to))
        }
        (Some([from, _]), None) => Some(KeyOfCopy::Missing(from)),
        (None, _) => None,
    };
    transfer.finish()?;
    Ok(CopyReport { tables, was_whole, key })
}

fn side(options: &Options) -> CopySide {
    match &options.postgres {
        Some(address) => CopySide::Postgres { address: Box::new(address.clone()), path: options.database.clone() },
        None => CopySide::File(options.database.clone()),
    }
}

/// The key of the secrets, if it is there, and if no other one is where it is to be.
fn readable_key(from: &Path, to: &Path) -> Result<Option<Vec<u8>>, CopyFailed> {
    let read = |path: &Path| match std::fs::read(path) {
        Ok(key) => Ok(Some(key)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(CopyFailed::Key { path: path.to_owned(), source }),
    };
    let (key, there) = (read(from)?, read(to)?);
    if there.is_some() && there != key {
        return Err(CopyFailed::OtherKey(to.to_owned()));
    }
    Ok(key)
}
