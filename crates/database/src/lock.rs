//! The file beside the database that keeps a second process out, and says who the first one is.
//!
//! The lock is the kernel's (`flock`), so it ends with its process however that ends; what stands in the file is
//! believed only while the lock is held.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::backup::with_suffix;
use crate::error::{Error, Result};

/// How often the lock is tried: somebody who only looks holds it for a moment.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(10);
/// Bytes of the file that are read; a holder's words are shorter.
const LONGEST_WORDS: u64 = 1024;

/// The lock on a database, held until dropped.
pub(crate) struct Lock(Flock<File>);

impl Lock {
    /// Takes the lock and leaves the holder's words; makes the folder if there is none.
    pub(crate) fn take(database: &Path, words: &str) -> Result<Lock> {
        if let Some(folder) = database.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|source| Error::File { path: folder.to_owned(), source })?;
        }
        let path = lock_path(database);
        let failed = |source| Error::File { path: path.clone(), source };
        let mut file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        for attempt in 1.. {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(held) => {
                    let lock = Lock(held);
                    lock.announce(words).map_err(failed)?;
                    return Ok(lock);
                }
                Err((unlocked, Errno::EWOULDBLOCK)) if attempt < ATTEMPTS => {
                    file = unlocked;
                    std::thread::sleep(PAUSE);
                }
                Err((_, Errno::EWOULDBLOCK)) => break,
                Err((_, errno)) => return Err(failed(errno.into())),
            }
        }
        Err(Error::InUse { path: database.to_owned(), holder: holder(database)?.unwrap_or_default() })
    }

    /// Replaces the holder's words.
    pub(crate) fn announce(&self, words: &str) -> std::io::Result<()> {
        self.0.set_len(0)?;
        self.0.write_all_at(words.as_bytes(), 0)
    }
}

/// What the process says that has this database open; `None` if there is none.
pub fn holder(database: &Path) -> Result<Option<String>> {
    let path = lock_path(database);
    let failed = |source| Error::File { path: path.clone(), source };
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let file = match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Ok(_) => return Ok(None),
        Err((file, Errno::EWOULDBLOCK)) => file,
        Err((_, errno)) => return Err(failed(errno.into())),
    };
    let mut words = Vec::new();
    file.take(LONGEST_WORDS).read_to_end(&mut words).map_err(failed)?;
    Ok(Some(String::from_utf8_lossy(&words).into_owned()))
}

fn lock_path(database: &Path) -> PathBuf {
    with_suffix(database, ".lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_process_is_kept_out_and_told_who_the_first_is() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("deep/a.db");
        assert_eq!(holder(&database).unwrap(), None);
        let lock = Lock::take(&database, "pid 1").unwrap();
        assert_eq!(holder(&database).unwrap().as_deref(), Some("pid 1"));
        lock.announce("at 2").unwrap();
        let error = Lock::take(&database, "pid 3").err().unwrap();
        assert!(matches!(&error, Error::InUse { holder, .. } if holder == "at 2"), "{error}");
        drop(lock);
        assert_eq!(holder(&database).unwrap(), None);
        Lock::take(&database, "pid 4").unwrap();
    }
}
