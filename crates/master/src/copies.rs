//! Copies of the database, made and put back by hand.

use std::path::{Path, PathBuf};

use crate::ServeError;
use crate::clock::now;
use crate::presence::Presence;

/// Copies the database, in use or not, to a file that must not exist yet.
pub fn back_up(database: &Path, target: &Path) -> Result<(), ServeError> {
    Ok(instep_database::back_up(database, target)?)
}

/// Makes a copy the database. With `replace` a database that is there is kept under another name, which is given back.
pub fn restore(copy: &Path, database: &Path, replace: bool) -> Result<Option<PathBuf>, ServeError> {
    let suffix = replace.then(|| format!(".replaced-{}", now().0));
    let kept = suffix.as_ref().filter(|_| database.exists()).map(|suffix| {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    });
    instep_database::restore(copy, database, suffix.as_deref(), &Presence::starting())?;
    Ok(kept)
}
