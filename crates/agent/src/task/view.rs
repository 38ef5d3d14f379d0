//! What a task sees of the machine: a `/run/determined` and a `/tmp` of its own.
//!
//! Determined's package has these paths fixed in it, so several tasks on a machine need a view each. Two ways:
//!
//! - **A mount namespace**, where the system allows one (root, or user namespaces): the share's `run/` and `tmp/` lie
//!   over the fixed paths, for this task alone.
//! - **The real paths**, where it does not: variables say where the folders are, and a small module that Python imports at
//!   its start tells Determined's package ([`SHIM`]).
//!
//! A task of another user than the agent's also gets a `/dev/shm` and System V's shared memory of its own, which go with it:
//! what it left there would stay in the memory of the machine, and count against all tasks; so does any task whose
//! configuration says how large it is. Not where a GPU's sharing service runs, which meets its clients there.
//!
//! A private `/tmp` hides the machine's own, which may hold things that the task needs: its interpreter, its checkpoints,
//! this program. Whatever lies in `/tmp` and is known to be needed is bound into the private one, by its first part below
//! `/tmp`: virtual environments and checkouts refer to their neighbours.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use instep_api::link::Mount;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, getegid, geteuid};

use super::mount_points;
use super::mounts::{self, Opened, Rules, Source};
use crate::folder::{OpenedTaskFolder, TaskFolder};

/// Where Determined's package looks.
pub(super) const RUN: &str = "/run/determined";
const TMP: &str = "/tmp";
/// Where memory is that processes share.
const SHARED_MEMORY: &str = "/dev/shm";
/// Where a GPU's sharing service listens, unless told otherwise.
const MPS: &str = "/tmp/nvidia-mps";

/// What Python imports at its start where there is no mount namespace.
pub const SHIM: &str = include_str!("sitecustomize.py");

/// Where things are, as the task sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Information, context and working directory.
    pub run: PathBuf,
    /// For temporary files.
    pub tmp: PathBuf,
    /// Programs that the task must find.
    pub programs: PathBuf,
    /// To be imported from first; only without a mount namespace.
    pub shim: Option<PathBuf>,
}

impl View {
    /// Where the supervisor keeps what it needs as the task's user: output on its way, what a hook leaves.
    pub fn own(&self) -> PathBuf {
        self.run.join("instep")
    }
}

/// Why there is no view.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// No namespace can be had here; the real paths will do.
    #[error("no mount namespace: {0}")]
    NoNamespace(io::Error),
    /// The task cannot be run as it is wanted.
    #[error("{0}")]
    Impossible(String),
}

/// What a view is made for.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Paths that must stay reachable.
    pub needed: &'a [PathBuf],
    /// Folders that the task sees elsewhere.
    pub mounts: &'a [Mount],
    /// The shared folder of the task's checkpoints, where Determined's package looks for it.
    pub storage: Option<&'a Mount>,
    /// How large its `/dev/shm` is, if somebody has said.
    pub shared_memory_bytes: Option<NonZeroU64>,
    /// For whom. Another user than ours rules out a user namespace of ours.
    pub rules: Rules<'a>,
}

/// Makes the view by a mount namespace. The process must have no other thread; after a failure it must end, for it may
/// see half of each. The share's folder comes with it, opened before the task's mounts, one of which may hide it.
pub fn isolated(share: &TaskFolder, wanted: &Wanted<'_>) -> Result<(View, OpenedTaskFolder), ViewError> {
    let other_user = wanted.rules.account.is_some();
    let has_sharing_service = Path::new(MPS).exists();
    let own_shared_memory = other_user && !has_sharing_service;
    separate(other_user, own_shared_memory).map_err(|errno| ViewError::NoNamespace(errno.into()))?;
    let unavailable = ViewError::NoNamespace;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(|errno| unavailable(errno.into()))?;
    provide_mount_point(share).map_err(unavailable)?;
    for name in first_parts(wanted.needed) {
        keep_reachable(&Path::new(TMP).join(&name), &share.join("tmp").join(&name)).map_err(unavailable)?;
    }
    provide_places(share, wanted)?;
    // What is to be mounted is found before the machine's /tmp is hidden, and mounted after.
    let sources = wanted.mounts.iter().map(|mount| Source::find(mount, wanted.rules)).collect::<Result<Vec<_>, _>>()?;
    let storage = wanted.storage.and_then(|mount| Source::of_storage(mount, wanted.rules));
    let sources = sources.into_iter().chain(storage).enumerate().map(|(number, source)| {
        if source.holds(&[RUN, TMP]) { source.kept_at(&share.join(&format!("source-{number}"))) } else { Ok(source) }
    });
    let sources = sources.collect::<Result<Vec<_>, _>>()?;
    let opened = OpenedTaskFolder::open(share).map_err(unavailable)?;
    bind(&share.join("run"), Path::new(RUN)).map_err(unavailable)?;
    bind(&share.join("tmp"), Path::new(TMP)).map_err(unavailable)?;
    let sized = wanted.shared_memory_bytes.filter(|_| !has_sharing_service);
    if (own_shared_memory || sized.is_some()) && Path::new(SHARED_MEMORY).is_dir() {
        mount_shared_memory(sized).map_err(unavailable)?;
    }
    for source in &sources {
        let path = task_path(source.wanted());
        let own = in_share(share, &path).is_some();
        source.mount(&path, own.then_some(&[RUN, TMP]), wanted.rules)?;
    }
    let view = View { run: RUN.into(), tmp: TMP.into(), programs: Path::new(RUN).join("programs"), shim: None };
    Ok((view, opened))
}

/// Gives the task a `/dev/shm` of its own, of half the machine's memory unless a size is named, as the kernel has it.
fn mount_shared_memory(bytes: Option<NonZeroU64>) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let size = bytes.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
    mount(Some("tmpfs"), SHARED_MEMORY, Some("tmpfs"), flags, Some(format!("mode=1777{size}").as_str()))?;
    Ok(())
}

/// Makes the places of mounts that the machine does not have. First of all, for it may change the root.
fn provide_places(share: &TaskFolder, wanted: &Wanted<'_>) -> Result<(), ViewError> {
    for (number, mount) in wanted.mounts.iter().chain(wanted.storage).enumerate() {
        let path = task_path(mount);
        if in_share(share, &path).is_some() {
            continue;
        }
        if !path.exists() {
            wanted.rules.check_place(mount, &path)?;
        }
        let is_folder = !Path::new(&mount.host_path).is_file();
        let scratch = share.join(&format!("place-{number}"));
        mount_points::provide(&path, is_folder, wanted.rules.account, &scratch).map_err(|error| {
            let what = format!("bind_mounts: {} cannot be made on this machine: {error}", path.display());
            let hint = "create an empty folder there, or choose a container_path that is relative or below /tmp";
            ViewError::Impossible(format!("{what}\nhint: {hint}"))
        })?;
    }
    Ok(())
}

/// The view without a namespace.
pub fn plain(share: &TaskFolder, wanted: &Wanted<'_>) -> Result<View, ViewError> {
    for mount in wanted.mounts {
        let path = task_path(mount);
        let host = Path::new(&mount.host_path);
        let linked = match in_share(share, &path) {
            Some(inner) => make_parent(&inner).and_then(|()| symlink(host, inner)),
            None if path == host => Ok(()),
            None => Err(io::Error::other("this machine allows no mount namespaces")),
        };
        linked.map_err(|error| {
            let what = format!("bind_mounts: {} cannot be mounted at {}: {error}", mount.host_path, path.display());
            ViewError::Impossible(format!("{what}\nhint: use the same path for both, or one that is relative"))
        })?;
    }
    let run = share.join("run");
    let shim = run.join("shim");
    fs::create_dir_all(&shim)
        .and_then(|()| fs::write(shim.join("sitecustomize.py"), SHIM))
        .map_err(|error| ViewError::Impossible(format!("cannot write to {}: {error}", shim.display())))?;
    Ok(View { programs: run.join("programs"), tmp: share.join("tmp"), run, shim: Some(shim) })
}

/// A mount namespace: as root, or in a user namespace in which we are who we were.
fn separate(other_user: bool, own_shared_memory: bool) -> nix::Result<()> {
    let (user, group) = (geteuid(), getegid());
    let more = if own_shared_memory { CloneFlags::CLONE_NEWIPC } else { CloneFlags::empty() };
    let alone = unshare(CloneFlags::CLONE_NEWNS | more);
    if alone.is_ok() || other_user {
        return alone;
    }
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    map_user(user, group).map_err(|error| nix::errno::Errno::from_raw(error.raw_os_error().unwrap_or(libc::EPERM)))
}

fn map_user(user: Uid, group: Gid) -> io::Result<()> {
    // A change of rights makes the process unreadable for its own kind, and these files with it.
    prctl::set_dumpable(true)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Sees to it that `/run/determined` can be mounted upon.
fn provide_mount_point(share: &TaskFolder) -> io::Result<()> {
    if Path::new(RUN).is_dir() || fs::create_dir(RUN).is_ok() {
        return Ok(());
    }
    // We may not write to /run. A new one takes its place, with everything that was in it.
    let old = share.join("old-run");
    bind(Path::new("/run"), &old)?;
    mount_points::fill(&old, Path::new("/run"))?;
    fs::create_dir(RUN)
}

/// The parts below `/tmp` that lead to what is needed.
fn first_parts(needed: &[PathBuf]) -> BTreeSet<PathBuf> {
    let parts = needed.iter().map(PathBuf::as_path).chain([Path::new(MPS)]).filter_map(|path| {
        let first = path.strip_prefix(TMP).ok()?.components().next()?;
        matches!(first, Component::Normal(_)).then(|| PathBuf::from(first.as_os_str()))
    });
    parts.filter(|part| Path::new(TMP).join(part).exists()).collect()
}

/// Lets something of the machine's `/tmp` be found in the task's own. A link stays one: whoever follows it does so with the
/// rights of the task, which those who mount are not bound by.
fn keep_reachable(from: &Path, to: &Path) -> io::Result<()> {
    let found = Opened::without_links(from)?;
    let kind = found.metadata()?.file_type();
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if kind.is_dir() {
        fs::create_dir(to)?
    } else {
        fs::File::create_new(to).map(drop)?
    }
    mounts::bind(&found.path(), to)
}

/// Lets `from` be seen at `to`, which is made if it is not there.
fn bind(from: &Path, to: &Path) -> io::Result<()> {
    if !to.exists() {
        make_parent(to)?;
        if from.is_dir() { fs::create_dir(to)? } else { fs::File::create(to).map(drop)? }
    }
    mounts::bind(from, to)
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Where a mount is seen; relative paths lie in the working directory.
fn task_path(mount: &Mount) -> PathBuf {
    Path::new(RUN).join("workdir").join(&mount.task_path)
}

/// The place in the share's own folders that the task sees at a path.
fn in_share(share: &TaskFolder, path: &Path) -> Option<PathBuf> {
    let inner = |fixed: &str, own: &str| path.strip_prefix(fixed).ok().map(|rest| share.join(own).join(rest));
    let found = inner(RUN, "run").or_else(|| inner(TMP, "tmp"))?;
    mounts::stays_inside(&found).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_below_tmp_is_kept_by_its_first_part() {
        let folder = tempfile::Builder::new().tempdir_in(TMP).unwrap();
        let name = PathBuf::from(folder.path().file_name().unwrap());
        let needed = [folder.path().join("a/b/c"), "/tmp".into(), "/tmp/../etc".into(), "/usr".into()];
        let mut expected = BTreeSet::from([name]);
        expected.extend(Path::new(MPS).exists().then(|| PathBuf::from("nvidia-mps")));
        assert_eq!(first_parts(&needed), expected);
        assert!(!first_parts(&["/tmp/instep-never-there/x".into()]).contains(Path::new("instep-never-there")));
    }

    #[test]
    fn places_in_the_share_are_found_and_never_outside() {
        let share = TaskFolder::at("/s");
        assert_eq!(in_share(&share, Path::new("/run/determined/workdir/d")), Some("/s/run/workdir/d".into()));
        assert_eq!(in_share(&share, Path::new("/tmp/x")), Some("/s/tmp/x".into()));
        assert_eq!(in_share(&share, Path::new("/data")), None);
        assert_eq!(in_share(&share, Path::new("/tmp/../etc")), None);
    }
}
