//! `bind_mounts`: folders of the machine that a task sees elsewhere, and which of them it may.
//!
//! An agent of root mounts with root's rights what a user names. So for a task of another user the administrator lists what
//! may be mounted, nothing is mounted over the system's folders or where agent and task keep what they decide by, and no
//! step follows a path that the user could have changed after it was looked at: source and target are opened first, looked
//! at by what was opened, and mounted by that.
//! Everything else has no more rights than its own user, who may mount what that user can reach.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use instep_api::link::Mount;
use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::mount_points;
use super::privileges::Account;
use super::view::{RUN, ViewError};
use crate::order::AllowedMount;

/// What a task of another user sees as it is.
const SYSTEM: [&str; 14] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/root", "/run", "/sbin", "/sys",
    "/usr",
];
/// What the task's supervisor has made for itself, or for every task.
const OWN: [&str; 4] = ["info", "instep", "programs", "train"];
/// In place of the part of a line of `mountinfo` that is the place of a mount.
const MOUNT_POINT: usize = 4;

/// For whom something is mounted.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// The user that the task runs as, if it is not the agent's.
    pub account: Option<&'a Account>,
    /// What such a user may have mounted.
    pub allowed: &'a [AllowedMount],
    /// The folder of the agent's state, without links.
    pub state: Option<&'a Path>,
}

impl Rules<'_> {
    /// Refuses a place of a task of another user that is, holds or lies in a folder of ours.
    pub fn check_place(&self, wanted: &Mount, place: &Path) -> Result<(), ViewError> {
        let own = OWN.iter().map(|name| Path::new(RUN).join(name));
        let mut ours = own.chain(self.state.map(Path::to_owned));
        match ours.find(|ours| place.starts_with(ours) || ours.starts_with(place)) {
            Some(ours) if self.account.is_some() => {
                let why = format!("it would hide what tasks of this agent are run by, in {}", ours.display());
                Err(not_there(wanted, &format!(": {why}")))
            }
            _ => Ok(()),
        }
    }
}

/// Something to be mounted, looked up before a task's own `/tmp` hides the machine's.
pub struct Source<'a> {
    wanted: &'a Mount,
    opened: Opened,
    read_only: bool,
}

impl<'a> Source<'a> {
    /// Looks up what is wanted, with the rights of the task's user: what lies behind a folder that the user may not enter
    /// stays there, whoever may mount it.
    pub fn find(wanted: &'a Mount, rules: Rules<'_>) -> Result<Source<'a>, ViewError> {
        let path = Path::new(&wanted.host_path);
        if !path.is_absolute() {
            return Err(failed(wanted, &io::Error::other("it is not absolute")));
        }
        let opened = as_user(rules.account, || Opened::at(path)).map_err(|error| failed(wanted, &error))?;
        let Some(_) = rules.account else { return Ok(Source { wanted, opened, read_only: wanted.read_only }) };
        match rules.allowed.iter().find(|allowed| opened.real.starts_with(&allowed.path)) {
            Some(allowed) => Ok(Source { wanted, opened, read_only: wanted.read_only || !allowed.writable }),
            None => Err(not_allowed(&wanted.host_path)),
        }
    }

    /// Looks up the folder of checkpoints. It needs no permission: the task reaches it by its own path anyway. `None` where it
    /// cannot be reached, which is told when it is tried out.
    pub fn of_storage(wanted: &'a Mount, rules: Rules<'_>) -> Option<Source<'a>> {
        let opened = as_user(rules.account, || Opened::at(Path::new(&wanted.host_path))).ok()?;
        Some(Source { wanted, opened, read_only: false })
    }

    /// Keeps what was found from being covered by something that is mounted later, as the machine's `/tmp` is by the task's:
    /// a mount of it would show what covers it. `place` is an empty folder of the share's.
    pub fn kept_at(self, place: &Path) -> Result<Source<'a>, ViewError> {
        let failed = |error: io::Error| failed(self.wanted, &error);
        fs::create_dir_all(place).map_err(failed)?;
        bind(&self.opened.path(), place).map_err(failed)?;
        let Opened { file, .. } = Opened::at(place).map_err(failed)?;
        Ok(Source { opened: Opened { file, real: self.opened.real }, ..self })
    }

    /// Whether it is a folder that has one of these paths in it, or is one of them.
    pub fn holds(&self, paths: &[&str]) -> bool {
        paths.iter().any(|path| Path::new(path).starts_with(&self.opened.real))
    }

    /// What was asked for.
    pub fn wanted(&self) -> &Mount {
        self.wanted
    }

    /// Mounts it at a path. `own` are the folders of the task if the path is in one of them: there it is made if it is
    /// missing, and must not lead out of them.
    pub fn mount(&self, to: &Path, own: Option<&[&str]>, rules: Rules<'_>) -> Result<(), ViewError> {
        let account = rules.account;
        let failed = |error: io::Error| failed(self.wanted, &error);
        if own.is_some() && !to.exists() {
            let is_folder = self.opened.metadata().map_err(failed)?.is_dir();
            as_user(account, || mount_points::make(to, is_folder)).map_err(failed)?;
        }
        let (source, target) = (&self.opened, Opened::at(to).map_err(failed)?);
        let forbidden = match own {
            Some(folders) => !folders.iter().any(|folder| target.real.starts_with(folder)),
            None => is_system(&target.real),
        };
        // A folder at its own place hides nothing.
        if target.real != source.real {
            rules.check_place(self.wanted, &target.real)?;
            if account.is_some() && forbidden {
                return Err(not_there(self.wanted, ""));
            }
        }
        bind(&source.path(), &target.path())
            .and_then(|()| restrict(&target.real, &source.real, self.read_only))
            .map_err(failed)
    }
}

/// Does something with the rights of the task's user, if that is not the agent's.
pub fn as_user<T>(account: Option<&Account>, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    match account {
        Some(account) => account.acting(work).and_then(|done| done),
        None => work(),
    }
}

fn failed(wanted: &Mount, error: &io::Error) -> ViewError {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "\nhint: the task's Unix user must be allowed to enter the folders on the way"
        }
        _ => "",
    };
    ViewError::Impossible(format!("bind_mounts: host_path {}: {error}{hint}", wanted.host_path))
}

fn not_there(wanted: &Mount, why: &str) -> ViewError {
    let hint = "choose a container_path that is relative, below /tmp, or a folder of the machine made for this";
    ViewError::Impossible(format!("bind_mounts: nothing may be mounted at {}{why}\nhint: {hint}", wanted.task_path))
}

fn not_allowed(host_path: &str) -> ViewError {
    let what = format!("bind_mounts: this agent's administrator does not allow {host_path} to be mounted");
    let hint = format!("ask them to start the agent with `--allow-mount {host_path}` (`:rw` behind it to write there)");
    ViewError::Impossible(format!("{what}\nhint: {hint}"))
}

/// Something that was looked up once, whatever its path leads to later.
pub struct Opened {
    file: File,
    real: PathBuf,
}

impl Opened {
    fn at(path: &Path) -> io::Result<Opened> {
        Opened::by(path, OFlag::empty())
    }

    /// What is at a path itself, be it a link.
    pub fn without_links(path: &Path) -> io::Result<Opened> {
        Opened::by(path, OFlag::O_NOFOLLOW)
    }

    fn by(path: &Path, more: OFlag) -> io::Result<Opened> {
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | more;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
        let real = fs::read_link(by_number(&file))?;
        Ok(Opened { file, real })
    }

    /// A path that leads to it, for as long as this lives.
    pub fn path(&self) -> PathBuf {
        by_number(&self.file)
    }

    /// What it is.
    pub fn metadata(&self) -> io::Result<fs::Metadata> {
        self.file.metadata()
    }
}

/// A path that leads to an open file, for as long as it is open.
pub fn by_number(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn is_system(path: &Path) -> bool {
    path == Path::new("/") || SYSTEM.iter().any(|folder| path.starts_with(folder))
}

/// Lets `from` be seen at `to`, with everything that is mounted below it.
pub fn bind(from: &Path, to: &Path) -> io::Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
    Ok(())
}

/// Takes rights away from a mount and from all below it: no programs that change the user, no devices, maybe no writing.
fn restrict(path: &Path, source: &Path, read_only: bool) -> io::Result<()> {
    let mut more = MsFlags::MS_NOSUID;
    if !source.starts_with("/dev") {
        more |= MsFlags::MS_NODEV;
    }
    if read_only {
        more |= MsFlags::MS_RDONLY;
    }
    for mounted in mounts_below(path, &fs::read_to_string("/proc/self/mountinfo")?) {
        // What the mount already forbids must be forbidden again, or the kernel refuses.
        let flags = statvfs(&mounted)?.flags();
        let pairs = [
            (FsFlags::ST_RDONLY, MsFlags::MS_RDONLY),
            (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
            (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
            (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
            (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
            (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
        ];
        let kept = pairs.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, same)| *same);
        let again = kept.fold(MsFlags::MS_BIND | MsFlags::MS_REMOUNT | more, |all, flag| all | flag);
        mount(None::<&str>, &mounted, None::<&str>, again, None::<&str>)?;
    }
    Ok(())
}

/// The places of mounts at and below a path, from the text of `mountinfo`.
fn mounts_below(path: &Path, table: &str) -> Vec<PathBuf> {
    let places = table.lines().filter_map(|line| line.split(' ').nth(MOUNT_POINT)).map(|text| unescaped(text).into());
    let mut found: Vec<PathBuf> = places.filter(|place: &PathBuf| place.starts_with(path)).collect();
    found.dedup();
    found
}

/// Spaces and their like are written as `\040`.
fn unescaped(text: &str) -> String {
    let text = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain));
    text.replace("\\134", "\\")
}

/// Whether a path stays below the folder it is joined to.
pub fn stays_inside(path: &Path) -> bool {
    path.components().all(|part| !matches!(part, Component::ParentDir))
}

#[cfg(test)]
mod tests {
    use instep_api::link::RunAs;

    use super::*;

    #[test]
    fn mounts_are_found_at_and_below_a_path() {
        let table = "22 1 0:21 / /data rw shared:1 - ext4 /dev/a rw\n\
                     23 22 0:22 / /data/a\\040b rw - tmpfs tmpfs rw\n\
                     24 1 0:23 / /database rw - tmpfs tmpfs rw\nnonsense\n";
        assert_eq!(mounts_below(Path::new("/data"), table), [Path::new("/data"), Path::new("/data/a b")]);
    }

    #[test]
    fn the_system_is_not_mounted_over() {
        for path in ["/", "/etc", "/usr/lib/python3", "/lib64"] {
            assert!(is_system(Path::new(path)), "{path}");
        }
        for path in ["/data", "/home/alice", "/etcetera", "/mnt/etc", "/var/tmp/x"] {
            assert!(!is_system(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn nothing_of_another_user_is_mounted_where_agent_and_task_keep_theirs() {
        let account = Account::find(&RunAs::unnamed(41_001, 41_001)).unwrap();
        let mount = Mount { host_path: "/data".into(), task_path: "/x".into(), read_only: false };
        let state = Some(Path::new("/var/lib/instep/agent"));
        let others = Rules { account: Some(&account), allowed: &[], state };
        let refused = [
            "/",
            "/var",
            "/var/lib/instep",
            "/var/lib/instep/agent",
            "/var/lib/instep/agent/shares/a/task",
            RUN,
            "/run/determined/info",
            "/run/determined/train/logs",
            "/run/determined/programs",
            "/run/determined/instep",
        ];
        for place in refused {
            let error = others.check_place(&mount, Path::new(place)).unwrap_err().to_string();
            assert!(
                error.starts_with("bind_mounts: nothing may be mounted at /x: ") && error.contains("\nhint: "),
                "{error}"
            );
            assert!(Rules { account: None, ..others }.check_place(&mount, Path::new(place)).is_ok(), "{place}");
        }
        for place in
            ["/var/lib/instep/agent-2", "/data", "/tmp/a", "/run/determined/workdir/d", "/run/determined/config"]
        {
            assert!(others.check_place(&mount, Path::new(place)).is_ok(), "{place}");
        }
    }

    #[test]
    fn what_is_opened_is_known_by_what_it_is_and_not_by_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        assert_eq!(Opened::at(&link).unwrap().real, Path::new("/etc"));
    }
}
