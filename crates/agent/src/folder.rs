//! Where agent and task meet: the folder of an agent's state, and in it one folder for each share.
//!
//! ```text
//! STATE/                0711: tasks of other users must find their own folder
//!   agent.lock          held by the agent
//!   identity.json       by which the master tells it from another agent of this name
//!   heard               when the master was last heard, in milliseconds since the machine started
//!   shares/ID/          0711, of the agent's user
//!     share.json        which share it is, and its devices
//!     order.json        0600, what to run; removed as soon as the guardian has read it, for it holds a token
//!     lock              shared by all processes that look after the share: while it is held, something of it may run
//!     claim             made by the one process that runs the share
//!     pid               of the guardian
//!     stop.json         that it is to end
//!     exit.json         how it ended, written by the guardian or the agent
//!     complaints.log    what guardian and supervisor wrote to stderr
//!     task/             0700, of the user that the task runs as: run/ and tmp/, which it sees as /run/determined and /tmp
//! ```
//!
//! What decides lies outside of `task/`, where a task of another user can change nothing. A task of the agent's own user
//! can, so nothing here is believed further than it has to be: links are not followed, lengths are bounded, and
//! `exit.json` says how a share has ended, never that it has.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use instep_api::link::Ending;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::sys::stat::Mode;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::order::{ShareRecord, StopOrder, TaskOrder};

/// Characters of an identifier that becomes the name of a folder.
const LONGEST_NAME: usize = 100;
/// Bytes of a file that is read: an order holds an experiment's configuration, and a message of the master 16 MiB.
const LONGEST_FILE: u64 = 64 << 20;

/// The folder of an agent.
#[derive(Debug, Clone)]
pub struct StateFolder(PathBuf);

impl StateFolder {
    /// The folder at a path; nothing is made.
    pub fn at(path: impl Into<PathBuf>) -> StateFolder {
        StateFolder(path.into())
    }

    /// The folder that a share's folder lies in.
    pub fn of_share(share: &ShareFolder) -> Option<StateFolder> {
        share.path().parent().and_then(Path::parent).map(StateFolder::at)
    }

    /// Makes what is missing.
    pub fn prepare(&self) -> io::Result<()> {
        for folder in [self.0.clone(), self.shares()] {
            DirBuilder::new().recursive(true).mode(0o711).create(&folder)?;
        }
        // Also where the umask takes it away.
        fs::set_permissions(self.shares(), fs::Permissions::from_mode(0o711))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The lock that keeps a second agent out.
    pub fn lock(&self) -> PathBuf {
        self.0.join("agent.lock")
    }

    /// Where the shares' folders are.
    pub fn shares(&self) -> PathBuf {
        self.0.join("shares")
    }

    /// The folder of a share; `None` for an identifier that cannot be a name.
    pub fn share(&self, resources: &str) -> Option<ShareFolder> {
        is_name(resources).then(|| ShareFolder(self.shares().join(resources)))
    }

    /// What distinguishes the agent of this folder from all others, made when it is first asked for.
    pub fn identity(&self) -> io::Result<String> {
        let path = self.0.join("identity.json");
        if let Some(known) = read_json(&path).ok().filter(|known: &String| is_name(known)) {
            return Ok(known);
        }
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let identity: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        write_json(&path, &identity)?;
        Ok(identity)
    }

    /// Notes that the master was heard just now.
    pub fn note_contact(&self) -> io::Result<()> {
        let path = self.0.join("heard");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o644).open(path)?;
        file.write_all_at(format!("{:020}\n", boot_milliseconds()).as_bytes(), 0)
    }

    /// How long ago the master was heard; `None` if that is not known.
    pub fn silence(&self) -> Option<Duration> {
        let text = fs::read_to_string(self.0.join("heard")).ok()?;
        let heard: u64 = text.trim().parse().ok()?;
        // A machine that was started anew counts from 0 again.
        Some(Duration::from_millis(boot_milliseconds().saturating_sub(heard)))
    }
}

/// Time since the machine started: the same for all processes, and never set back.
fn boot_milliseconds() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
        seconds * 1000 + u64::try_from(time.tv_nsec()).unwrap_or_default() / 1_000_000
    })
}

fn is_name(text: &str) -> bool {
    let harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && text.len() <= LONGEST_NAME && !text.starts_with('.') && text.bytes().all(harmless)
}

/// The part of a share's folder that belongs to its task.
#[derive(Debug, Clone)]
pub struct TaskFolder(PathBuf);

impl TaskFolder {
    /// The folder at a path; nothing is made.
    pub fn at(path: impl Into<PathBuf>) -> TaskFolder {
        TaskFolder(path.into())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file or folder in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// A task's folder itself, opened before the task has a say in what is seen at its path: whatever is mounted there later,
/// what is written here lies in it.
#[derive(Debug)]
pub struct OpenedTaskFolder(File);

impl OpenedTaskFolder {
    /// Opens it; the path must still lead to it. What is put there can be mounted only in the mount namespace of this moment.
    pub fn open(folder: &TaskFolder) -> io::Result<OpenedTaskFolder> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(folder.path())?;
        Ok(OpenedTaskFolder(opened))
    }

    /// Makes a file in it that everybody may read, and gives it opened. What was there under its name is removed, and no
    /// link is followed.
    pub fn put(&self, name: &str, content: &[u8]) -> io::Result<File> {
        match unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&self.0, name, flags, Mode::from_bits_truncate(0o600))?);
        file.write_all(content)?;
        // Not by the mode of its creation, from which the umask takes away.
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        Ok(file)
    }
}

/// The folder of a share.
#[derive(Debug, Clone)]
pub struct ShareFolder(PathBuf);

impl ShareFolder {
    /// The folder at a path; nothing is made.
    pub fn at(path: impl Into<PathBuf>) -> ShareFolder {
        ShareFolder(path.into())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file or folder in it.
    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The part that belongs to the task.
    pub fn task(&self) -> TaskFolder {
        TaskFolder(self.join("task"))
    }

    /// For what guardian and supervisor have to complain of.
    pub fn complaints(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.join("complaints.log"))
    }

    /// Makes the folder with its order, completely or not at all.
    pub fn create(&self, order: &TaskOrder) -> io::Result<()> {
        let name = self.0.file_name().unwrap_or_default().to_string_lossy();
        let new = self.0.with_file_name(format!(".new-{name}"));
        if new.exists() {
            fs::remove_dir_all(&new)?;
        }
        DirBuilder::new().mode(0o700).create(&new)?;
        DirBuilder::new().mode(0o700).create(new.join("task"))?;
        write_json(&new.join("share.json"), &ShareRecord::of(order))?;
        write_json(&new.join("order.json"), order)?;
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(new.join("lock"))?;
        // Not by the mode of its creation, from which the umask takes away.
        fs::set_permissions(&new, fs::Permissions::from_mode(0o711))?;
        fs::rename(&new, &self.0)
    }

    /// Which share it is.
    pub fn record(&self) -> io::Result<ShareRecord> {
        read_json(&self.join("share.json"))
    }

    /// What to run. It can be asked for once: the order holds a token, and is removed.
    pub fn take_order(&self) -> io::Result<TaskOrder> {
        let path = self.join("order.json");
        let order = read_json(&path)?;
        fs::remove_file(&path)?;
        Ok(order)
    }

    /// Takes the step from ordered to running, which one process may take: `false` if another has.
    pub fn claim(&self) -> io::Result<bool> {
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.join("claim")) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Shows that somebody looks after the share, until dropped.
    pub fn look_after(&self) -> io::Result<Flock<File>> {
        let file = File::open(self.join("lock"))?;
        Flock::lock(file, FlockArg::LockShared).map_err(|(_, errno)| errno.into())
    }

    /// Whether somebody looks after it.
    pub fn is_looked_after(&self) -> bool {
        let Ok(file) = File::open(self.join("lock")) else { return false };
        matches!(Flock::lock(file, FlockArg::LockExclusiveNonblock), Err((_, Errno::EWOULDBLOCK)))
    }

    /// Says under which process id the task runs.
    pub fn write_pid(&self) -> io::Result<()> {
        replace(&self.join("pid"), std::process::id().to_string().as_bytes())
    }

    /// The process id of the task; to be believed only while the share is looked after.
    pub fn pid(&self) -> Option<i32> {
        String::from_utf8(read_bounded(&self.join("pid"), LONGEST_FILE).ok()?).ok()?.trim().parse().ok()
    }

    /// Says that it is to end.
    pub fn write_stop(&self, stop: &StopOrder) -> io::Result<()> {
        write_json(&self.join("stop.json"), stop)
    }

    /// Whether it is to end.
    pub fn stop(&self) -> Option<StopOrder> {
        read_json(&self.join("stop.json")).ok()
    }

    /// Says how it ended. Whoever calls this knows: what may have been there is replaced.
    pub fn write_exit(&self, exit: &Ending) -> io::Result<()> {
        write_json(&self.join("exit.json"), exit)
    }

    /// How it ended; to be believed only while nobody looks after the share.
    pub fn exit(&self) -> Option<Ending> {
        read_json(&self.join("exit.json")).ok()
    }

    /// Removes it with everything in it. Nothing of the share may run any more.
    pub fn remove(&self) -> io::Result<()> {
        // First out of the way, so that a half-removed folder is no share.
        let name = self.0.file_name().unwrap_or_default().to_string_lossy();
        let old = self.0.with_file_name(format!(".old-{name}"));
        match fs::rename(&self.0, &old) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed?,
        }
        if !geteuid().is_root() {
            make_removable(&old);
        }
        fs::remove_dir_all(&old)
    }
}

/// Gives back the right to write to folders that a task has taken it from. Root needs no such right, and must not change
/// the rights of what a path of somebody else's leads to.
fn make_removable(folder: &Path) {
    let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_removable(&entry.path());
        }
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let bytes = read_bounded(path, LONGEST_FILE)?;
    serde_json::from_slice(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads a file that others may have put there: no link, no pipe that keeps us waiting, no more than so many bytes.
pub fn read_bounded(path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(longest + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > longest {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {longest} bytes")));
    }
    Ok(bytes)
}

fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    replace(path, &serde_json::to_vec(value).map_err(io::Error::other)?)
}

/// Puts a file in its place at once and for good: readers see the old one or the whole new one, also after a crash. What a
/// task of our own user has put in the way is moved out of it.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    match put(path, content) {
        Err(_) if !geteuid().is_root() => {
            clear_the_way(path);
            put(path, content)
        }
        done => done,
    }
}

/// Makes a place for a file where a folder is, or in a folder that was closed. Root's folders are closed to tasks.
fn clear_the_way(path: &Path) {
    if let Some(folder) = path.parent() {
        let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o711));
    }
    if fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
        let _ = fs::rename(path, path.with_extension(format!("moved{}", boot_milliseconds())));
    }
}

fn put(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension(format!("new{}", std::process::id()));
    // One that a process of the same id left, or a link that somebody else put there.
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use instep_api::link::Exit;

    use super::*;

    #[test]
    fn a_folder_keeps_its_identity_unless_somebody_spoils_it() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let identity = StateFolder::at(one.path()).identity().unwrap();
        assert_eq!(StateFolder::at(one.path()).identity().unwrap(), identity);
        assert_ne!(StateFolder::at(other.path()).identity().unwrap(), identity);
        for spoilt in ["", "\"\"", "\"../x\"", "7"] {
            fs::write(one.path().join("identity.json"), spoilt).unwrap();
            let next = StateFolder::at(one.path()).identity().unwrap();
            assert_eq!(StateFolder::at(one.path()).identity().unwrap(), next, "{spoilt}");
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_no_shares() {
        let state = StateFolder::at("/nowhere");
        for name in ["", ".", "..", "a/b", "../x", ".hidden", "a\0b", &"x".repeat(101)] {
            assert!(state.share(name).is_none(), "{name:?}");
        }
        assert_eq!(state.share("4f0c-1").unwrap().path(), Path::new("/nowhere/shares/4f0c-1"));
    }

    #[test]
    fn a_share_is_claimed_once_and_its_last_word_counts() {
        let folder = tempfile::tempdir().unwrap();
        let share = ShareFolder::at(folder.path());
        assert!(share.claim().unwrap());
        assert!(!share.claim().unwrap());
        share.write_exit(&Exit::code(0).into()).unwrap();
        share.write_exit(&Exit::Killed.into()).unwrap();
        assert_eq!(share.exit(), Some(Exit::Killed.into()), "what a task put there is replaced");
    }

    #[test]
    fn whoever_looks_after_a_share_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let share = ShareFolder::at(folder.path());
        File::create(share.join("lock")).unwrap();
        assert!(!share.is_looked_after());
        let one = share.look_after().unwrap();
        let other = share.look_after().unwrap();
        drop(one);
        assert!(share.is_looked_after());
        drop(other);
        assert!(!share.is_looked_after());
    }

    #[test]
    fn silence_is_counted_from_the_last_word() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::at(folder.path());
        assert_eq!(state.silence(), None);
        state.note_contact().unwrap();
        assert!(state.silence().unwrap() < Duration::from_secs(60));
        fs::write(folder.path().join("heard"), "what").unwrap();
        assert_eq!(state.silence(), None);
    }

    #[test]
    fn an_order_is_read_once_and_the_share_is_known_without_it() {
        let folder = tempfile::tempdir().unwrap();
        let share = ShareFolder::at(folder.path().join("a"));
        let order = crate::task::testing::order();
        share.create(&order).unwrap();
        assert_eq!(share.take_order().unwrap(), order);
        assert_eq!(share.take_order().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(share.record().unwrap(), ShareRecord::of(&order));
        for entry in fs::read_dir(share.path()).unwrap().flatten().filter(|entry| entry.path().is_file()) {
            assert!(!fs::read_to_string(entry.path()).unwrap().contains(&order.start.token), "{entry:?}");
        }
    }

    #[test]
    fn nothing_is_read_or_written_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let share = ShareFolder::at(folder.path().join("a"));
        share.create(&crate::task::testing::order()).unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "7").unwrap();
        let new = format!("new{}", std::process::id());
        for name in ["exit.json", &format!("exit.{new}"), "stop.json", &format!("stop.{new}"), "pid"] {
            std::os::unix::fs::symlink(&victim, share.join(name)).unwrap();
        }
        assert_eq!(share.pid(), None);
        share.write_exit(&Exit::Killed.into()).unwrap();
        share.write_stop(&StopOrder { grace_seconds: 0, why: String::new(), lost: false }).unwrap();
        assert_eq!(share.exit(), Some(Exit::Killed.into()));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "7");
    }

    #[test]
    fn what_is_put_into_an_opened_folder_lies_there_whatever_its_path_leads_to() {
        let place = tempfile::tempdir().unwrap();
        let (path, moved, victim) =
            (place.path().join("task"), place.path().join("moved"), place.path().join("victim"));
        fs::create_dir(&path).unwrap();
        fs::write(&victim, "untouched").unwrap();
        std::os::unix::fs::symlink(&victim, path.join("passwd")).unwrap();
        let opened = OpenedTaskFolder::open(&TaskFolder::at(&path)).unwrap();
        // As a mount over the path does.
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        std::os::unix::fs::symlink(&victim, path.join("passwd")).unwrap();
        for _ in 0..2 {
            opened.put("passwd", b"ann:x:1:1").unwrap();
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(fs::read_to_string(moved.join("passwd")).unwrap(), "ann:x:1:1");
        assert_eq!(fs::metadata(moved.join("passwd")).unwrap().permissions().mode() & 0o777, 0o644);
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&moved, &link).unwrap();
        assert!(OpenedTaskFolder::open(&TaskFolder::at(&link)).is_err(), "a link is no folder");
    }

    #[test]
    fn a_folder_that_a_task_has_closed_is_removed_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let share = ShareFolder::at(folder.path().join("a"));
        fs::create_dir_all(share.task().join("run/closed/deep")).unwrap();
        fs::set_permissions(share.task().join("run/closed"), fs::Permissions::from_mode(0o500)).unwrap();
        share.remove().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        share.remove().unwrap();
    }
}
