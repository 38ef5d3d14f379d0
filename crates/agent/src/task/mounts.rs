//! `bind_mounts`: folders of the machine that a task sees elsewhere, and which of them it may.
//!
//! An agent of root mounts with root's rights what a user names. So for a task of another user the administrator lists what
//! may be mounted, nothing is mounted over the system's folders, and no step follows a path that the user could have
//! changed after it was looked at: source and target are opened first, looked at by what was opened, and mounted by that.
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

use super::privileges::Account;
use super::view::ViewError;
use crate::order::AllowedMount;

/// What a task of another user sees as it is.
const SYSTEM: [&str; 14] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/root", "/run", "/sbin", "/sys",
    "/usr",
];
/// In place of the part of a line of `mountinfo` that is the place of a mount.
const MOUNT_POINT: usize = 4;

/// For whom something is mounted.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// The user that the task runs as, if it is not the agent's.
    pub account: Option<&'a Account>,
    /// What such a user may have mounted.
    pub allowed: &'a [AllowedMount],
}

/// Mounts what is wanted at a path. `within` is the folder that the path must not lead out of, and in which it is made.
pub fn mount_one(wanted: &Mount, to: &Path, within: Option<&Path>, rules: Rules<'_>) -> Result<(), ViewError> {
    let failed =
        |error: io::Error| ViewError::Impossible(format!("bind_mounts: host_path {}: {error}", wanted.host_path));
    if !Path::new(&wanted.host_path).is_absolute() {
        return Err(failed(io::Error::other("it is not absolute")));
    }
    let source = Opened::at(Path::new(&wanted.host_path)).map_err(failed)?;
    let mut read_only = wanted.read_only;
    if rules.account.is_some() {
        let Some(allowed) = rules.allowed.iter().find(|allowed| source.real.starts_with(&allowed.path)) else {
            return Err(not_allowed(&wanted.host_path));
        };
        read_only |= !allowed.writable;
    }
    if within.is_some() && !to.exists() {
        let make = || make_target(to, source.real.is_dir());
        match rules.account {
            Some(account) => account.acting(make).and_then(|made| made),
            None => make(),
        }
        .map_err(failed)?;
    }
    let target = Opened::at(to).map_err(failed)?;
    let leads_out = within.is_some_and(|folder| !target.real.starts_with(folder));
    if rules.account.is_some() && (leads_out || is_system(&target.real)) && target.real != source.real {
        let hint = "choose a container_path that is relative, below /tmp, or a folder of the machine made for this";
        let what = format!("bind_mounts: nothing may be mounted at {}", wanted.task_path);
        return Err(ViewError::Impossible(format!("{what}\nhint: {hint}")));
    }
    bind(&source.path(), &target.path()).and_then(|()| restrict(&target.real, &source.real, read_only)).map_err(failed)
}

fn not_allowed(host_path: &str) -> ViewError {
    let what = format!("bind_mounts: this agent's administrator does not allow {host_path} to be mounted");
    let hint = format!("ask them to start the agent with `--allow-mount {host_path}` (`:rw` behind it to write there)");
    ViewError::Impossible(format!("{what}\nhint: {hint}"))
}

/// Something that was looked up once, whatever its path leads to later.
struct Opened {
    file: File,
    real: PathBuf,
}

impl Opened {
    fn at(path: &Path) -> io::Result<Opened> {
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
        let real = fs::read_link(by_number(&file))?;
        Ok(Opened { file, real })
    }

    fn path(&self) -> PathBuf {
        by_number(&self.file)
    }
}

fn by_number(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn make_target(path: &Path, folder: bool) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    if folder { fs::create_dir(path) } else { File::create(path).map(drop) }
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
    fn what_is_opened_is_known_by_what_it_is_and_not_by_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        assert_eq!(Opened::at(&link).unwrap().real, Path::new("/etc"));
    }
}
