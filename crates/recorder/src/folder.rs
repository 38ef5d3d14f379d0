//! Where the files of jobs lie: one private folder per job and machine.
//!
//! ```text
//! /tmp/instep-1000/                  or $INSTEP_RUN_DIR; only this user may look inside
//!   jobs/NAME-PID/                   the launcher's process; without our launcher, the parent of the ranks
//!     owner                          its process id and when that started
//!     job.json                       what the launcher knows of its workers
//!     rank-RANK-PID.records          one for each process that has made a group
//!     rank-RANK-PID.ask              a named pipe: a request for its stacks
//!     rank-RANK-PID.answer-NUMBER    what it answered
//! ```
//!
//! A job that ends well takes its folder along. One that fails leaves it, and the next that starts removes what is old.

use std::fs::{self, DirBuilder, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::{Snapshot, process};

/// How the name of a file with records ends.
pub const EXTENSION: &str = "records";
/// Names another place for all of this.
pub const VARIABLE: &str = "INSTEP_RUN_DIR";
const OWNER: &str = "owner";

/// Folders that failed jobs left are kept, so many of the newest.
const KEPT: usize = 8;
/// Files of processes that have ended are kept, so many in a folder.
const MOST_LEFT: usize = 32;
/// And no longer than this.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// Where this user's jobs have their folders.
pub fn base() -> PathBuf {
    match std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
        Some(folder) => folder.into(),
        None => format!("/tmp/instep-{}", nix::unistd::geteuid()).into(),
    }
}

/// The folder of a job that belongs to a process.
pub fn path_of(base: &Path, job: &str, owner: u32) -> PathBuf {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let name: String = job.chars().take(40).map(plain).collect();
    base.join("jobs").join(format!("{name}-{owner}"))
}

/// Makes the folder of a job that belongs to a process, or finds it made.
pub fn create(base: &Path, job: &str, owner: u32) -> io::Result<PathBuf> {
    let jobs = private(base)?.join("jobs");
    make(&jobs)?;
    let folder = path_of(base, job, owner);
    if !make(&folder)? && owner_of(&folder).is_some_and(|known| known != started(owner)) {
        // Left by another process that had this number.
        fs::remove_dir_all(&folder)?;
        make(&folder)?;
    }
    let mut file = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(folder.join(OWNER))?;
    writeln!(file, "{} {}", owner, started(owner).1)?;
    Ok(folder)
}

fn started(process: u32) -> (u32, u64) {
    (process, process::stat(process).map_or(0, |stat| stat.started))
}

/// Makes a folder that only this user may enter; true if it was not there.
fn make(folder: &Path) -> io::Result<bool> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// In a folder where everybody may write, somebody else may have been first.
fn private(base: &Path) -> io::Result<&Path> {
    make(base)?;
    let found = fs::symlink_metadata(base)?;
    let own = nix::unistd::geteuid().as_raw();
    if !found.is_dir() || found.uid() != own || found.mode() & 0o022 != 0 {
        let what = format!("{} is not a folder that only this user may write to", base.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(base)
}

/// The process that a job's folder belongs to, and when that started.
pub fn owner_of(folder: &Path) -> Option<(u32, u64)> {
    let text = fs::read_to_string(folder.join(OWNER)).ok()?;
    let (process, started) = text.trim().split_once(' ')?;
    Some((process.parse().ok()?, started.parse().ok()?))
}

/// Whether the process that a folder belongs to lives.
pub fn is_live(folder: &Path) -> bool {
    owner_of(folder).is_some_and(|(process, started)| process::is_alive(process, started))
}

/// The folders of all jobs, the newest first.
pub fn jobs(base: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(base.join("jobs")).into_iter().flatten().flatten();
    let mut found: Vec<(SystemTime, PathBuf)> = entries
        .filter_map(|entry| Some((entry.metadata().ok().filter(Metadata::is_dir)?.modified().ok()?, entry.path())))
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

/// The files with records in a job's folder, in the order of their names.
pub fn records(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION))
        .collect();
    found.sort();
    found
}

/// Removes what processes left that have ended, but for the newest: their parent may start very many in its life.
pub fn prune(folder: &Path) {
    let process = |path: &PathBuf| path.file_stem()?.to_str()?.rsplit_once('-')?.1.parse::<u32>().ok();
    let mut left: Vec<(SystemTime, PathBuf)> = records(folder)
        .into_iter()
        .filter(|path| process(path).is_some_and(|process| process::stat(process).is_none()))
        .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
        .collect();
    left.sort();
    let many = left.len().saturating_sub(MOST_LEFT);
    for (_, path) in left.into_iter().take(many) {
        let _ = fs::remove_file(crate::stack_request::pipe_path(&path));
        let _ = fs::remove_file(path);
    }
}

/// A process that ends takes the folder along if no other needs it: all others have ended, and said so.
pub fn leave(folder: &Path) {
    if records(folder).iter().all(|path| Snapshot::read(path).is_ok_and(|snapshot| snapshot.ended)) {
        let _ = fs::remove_dir_all(folder);
    }
}

/// Removes what jobs left that have long ended. Nothing is said when that fails: the next start tries again.
pub fn tidy(base: &Path, now: SystemTime) {
    let ended = jobs(base).into_iter().filter(|folder| !is_live(folder));
    for (index, folder) in ended.enumerate() {
        let changed = fs::metadata(&folder).and_then(|found| found.modified());
        let age = changed.ok().and_then(|changed| now.duration_since(changed).ok()).unwrap_or_default();
        if index >= KEPT || age >= KEPT_FOR {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_ended_jobs_go_when_they_are_many_or_old() {
        let base = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let living = create(base.path(), "my job/1", own).unwrap();
        assert_eq!(living.file_name().unwrap().to_str().unwrap(), format!("my-job-1-{own}"));
        assert_eq!(create(base.path(), "my job/1", own).unwrap(), living, "siblings share it");
        for number in 0..20 {
            let folder = create(base.path(), &number.to_string(), own).unwrap();
            fs::write(folder.join(OWNER), "1 1\n").unwrap();
        }
        tidy(base.path(), SystemTime::now());
        assert_eq!(jobs(base.path()).len(), 1 + KEPT);
        tidy(base.path(), SystemTime::now() + 2 * KEPT_FOR);
        assert_eq!(jobs(base.path()), [living]);
    }

    #[test]
    fn a_folder_of_a_process_with_the_same_number_is_emptied() {
        let base = tempfile::tempdir().unwrap();
        let folder = create(base.path(), "job", std::process::id()).unwrap();
        fs::write(folder.join(OWNER), format!("{} 1\n", std::process::id())).unwrap();
        fs::write(folder.join("rank-0-1.records"), "old").unwrap();
        assert!(!is_live(&folder) && records(&folder).len() == 1);
        create(base.path(), "job", std::process::id()).unwrap();
        assert!(is_live(&folder) && records(&folder).is_empty());
    }

    #[test]
    fn files_of_ended_processes_do_not_pile_up() {
        let base = tempfile::tempdir().unwrap();
        let folder = create(base.path(), "process", std::process::id()).unwrap();
        for number in 0..50 {
            fs::write(folder.join(format!("rank-0-{}.records", 5_000_000 + number)), "").unwrap();
        }
        fs::write(folder.join(format!("rank-0-{}.records", std::process::id())), "").unwrap();
        prune(&folder);
        assert_eq!(records(&folder).len(), MOST_LEFT + 1);
    }

    #[test]
    fn a_base_of_somebody_else_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let base = tempfile::tempdir().unwrap();
        let open = base.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(create(&open, "job", 1).is_err());
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        assert!(create(&link, "job", 1).is_err());
    }
}
