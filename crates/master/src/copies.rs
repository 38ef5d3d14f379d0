//! Copies of the database, made and put back by hand.

use std::path::{Path, PathBuf};

use instep_database::{Error, Opening};

use crate::ServeError;
use crate::clock::now;
use crate::presence::Presence;
use crate::random;
use crate::vault::key_path;

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
