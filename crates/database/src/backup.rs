//! Copies of a database: on request while it is in use, before the schema changes, and back again.
//!
//! A copy is made by SQLite itself from one snapshot, so writers go on meanwhile. It appears under its name only when it
//! is whole and on disk. Copies hold password hashes, and are readable by their owner alone.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::migrations;
use crate::sql::{Connection, sqlite};
use crate::transfer::refuse_incomplete;

/// Copies a database to a file that must not exist yet. The database may be in use.
pub fn back_up(database: &Path, target: &Path) -> Result<()> {
    let source = open_existing(database)?;
    refuse_incomplete(&source, &database.display().to_string())?;
    copy(&source, target)
}

/// Copies what a connection sees to a file that must not exist yet.
pub(crate) fn copy(source: &Connection, target: &Path) -> Result<()> {
    if target.exists() {
        return Err(Error::FileExists { path: target.to_owned() });
    }
    let partial = with_suffix(target, ".partial");
    let failed = |source| Error::File { path: partial.clone(), source };
    // An earlier attempt that did not get to its end may be there. SQLite takes an empty file as a new one.
    let file = File::options().create(true).write(true).truncate(true).mode(0o600).open(&partial).map_err(failed)?;
    let name = partial.to_str().ok_or_else(|| Error::Invalid("the name of a copy must be UTF-8".to_owned()))?;
    let copied = source.execute("VACUUM INTO ?", [name]).map_err(Error::from);
    let finished = copied.and_then(|_| {
        file.sync_all().map_err(failed)?;
        // Not a plain rename: that would replace a file that came meanwhile.
        std::fs::hard_link(&partial, target).map_err(|source| Error::File { path: target.to_owned(), source })?;
        sync_folder(target)
    });
    // If it cannot be removed it is overwritten the next time.
    let _ = std::fs::remove_file(&partial);
    finished
}

/// Makes a copy the database. Refuses while a master has the database open. A database that is there is refused too,
/// unless `replace` says how the replaced one is to be called: its name and this suffix.
pub fn restore(copy: &Path, database: &Path, replace: Option<&str>, holder: &str) -> Result<()> {
    let _lock = Lock::take(database, holder)?;
    if database.exists() && replace.is_none() {
        return Err(Error::FileExists { path: database.to_owned() });
    }
    check(copy)?;
    let source = open_existing(copy)?;
    let fresh = with_suffix(database, ".restored");
    match std::fs::remove_file(&fresh) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::File { path: fresh, source });
        }
        _ => {}
    }
    self::copy(&source, &fresh)?;
    // The journal belongs to the database by its name: it moves first, so that a crash between the moves never leaves the
    // new database with the old one's journal.
    for ending in ["-wal", "-shm", ""] {
        let old = with_suffix(database, ending);
        if let Some(suffix) = replace
            && old.exists()
        {
            let kept = with_suffix(&with_suffix(database, suffix), ending);
            std::fs::rename(&old, kept).map_err(|source| Error::File { path: old, source })?;
        }
    }
    std::fs::rename(&fresh, database).map_err(|source| Error::File { path: database.to_owned(), source })?;
    sync_folder(database)
}

/// Whether a database, in use or not, holds secrets, which only their key opens.
pub fn holds_secrets(database: &Path) -> Result<bool> {
    let connection = open_existing(database)?;
    let sql = "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = 'secrets'";
    let known: i64 = connection.query_row(sql, [], |row| row.get(0))?;
    Ok(known > 0 && connection.query_row("SELECT EXISTS (SELECT 1 FROM secrets)", [], |row| row.get(0))?)
}

/// Whether a file is a database of ours that is whole and not too new.
fn check(path: &Path) -> Result<()> {
    let connection = open_existing(path)?;
    let unusable = |why: String| Error::Unusable { path: path.to_owned(), why };
    let verdict: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|error| unusable(error.to_string()))?;
    if verdict != "ok" {
        return Err(unusable(verdict));
    }
    migrations::check_version(&connection, path).map(drop)
}

pub(crate) fn open_existing(path: &Path) -> Result<Connection> {
    if let Err(source) = std::fs::metadata(path) {
        return Err(Error::File { path: path.to_owned(), source });
    }
    let connection = sqlite::open_existing(path)?;
    connection
        .execute_batch("PRAGMA busy_timeout = 5000")
        .map_err(|error| Error::Unusable { path: path.to_owned(), why: error.to_string() })?;
    Ok(connection)
}

pub(crate) fn sync_folder(of: &Path) -> Result<()> {
    let folder = of.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|source| Error::File { path: folder.to_owned(), source })
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Database, Opening};
    use instep_api::wire::Timestamp;

    fn open(path: &Path) -> Database {
        let opening = Opening { holder: "test".into(), cluster_id: path.display().to_string(), now: Timestamp(1) };
        Database::open(path, &opening).unwrap()
    }

    #[test]
    fn a_copy_of_a_database_in_use_can_be_restored_elsewhere_and_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second, copy] = ["a.db", "b.db", "copy.db"].map(|name| folder.path().join(name));
        let database = open(&first);
        let id = database.cluster_id().to_owned();
        back_up(&first, &copy).unwrap();
        assert!(matches!(back_up(&first, &copy), Err(Error::FileExists { .. })));
        assert!(matches!(restore(&copy, &first, Some(".old"), "test"), Err(Error::InUse { .. })));
        drop(database);
        assert!(matches!(restore(&copy, &first, None, "test"), Err(Error::FileExists { .. })));
        restore(&copy, &second, None, "test").unwrap();
        assert_eq!(open(&second).cluster_id(), id);
        restore(&copy, &first, Some(".old"), "test").unwrap();
        assert_eq!(open(&first).cluster_id(), id);
        assert_eq!(open(&folder.path().join("a.db.old")).cluster_id(), id);
    }

    #[test]
    fn what_is_no_database_is_not_restored() {
        let folder = tempfile::tempdir().unwrap();
        let [copy, target] = ["copy.db", "a.db"].map(|name| folder.path().join(name));
        assert!(matches!(restore(&copy, &target, None, "test"), Err(Error::File { .. })));
        std::fs::write(&copy, "no database, although it is long enough to be one".repeat(100)).unwrap();
        assert!(matches!(restore(&copy, &target, None, "test"), Err(Error::Unusable { .. })));
        assert!(!target.exists());
    }
}
