//! Files of checkpoints, in folders that the master can reach.
//!
//! Paths come from users: the folder from a configuration, the names in it from whoever wrote there. The master must not
//! be led elsewhere by them, so nothing below a storage's folder is reached by a path: every step is an `openat` from the
//! folder that was opened before, and symbolic links are never followed.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde_json::Value;

use crate::file_owners::FileOwners;

/// Folders within folders at most; deeper ones are not a checkpoint but an attack, or a loop.
const DEEPEST: usize = 64;
/// Files of a checkpoint at most.
const MOST: usize = 1_000_000;

/// Why the master cannot reach a storage.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreachable {
    #[error("the experiment's configuration has no checkpoint_storage")]
    Missing,
    #[error("the master reads and deletes checkpoints in folders only, not in storage of type `{0}`")]
    Kind(String),
    #[error("checkpoint_storage.{0} must be an absolute path without `..`")]
    Path(&'static str),
    #[error(
        "the master may not use the folder {}\nhint: let its administrator start it with --storage-root {}",
        .0.display(), .0.display()
    )]
    Outside(PathBuf),
}

/// The folders in which the master reads and deletes checkpoints. Configurations are users', and the master's rights are
/// not theirs: elsewhere a folder that happens to be named like a checkpoint could be anybody's.
#[derive(Debug, Clone, Default)]
pub(crate) struct StorageRoots(Option<Vec<PathBuf>>);

impl StorageRoots {
    /// What was said; by default the folder of checkpoints. A master that serves its own machine alone is one person's,
    /// who may use every folder that it may.
    pub(crate) fn of(said: &[PathBuf], checkpoints: &Path, on_loopback: bool) -> StorageRoots {
        match said {
            [] if on_loopback => StorageRoots(None),
            [] => StorageRoots(Some(vec![checkpoints.to_owned()])),
            said => StorageRoots(Some(said.to_vec())),
        }
    }

    /// The storage of a configuration, if the master may use it.
    pub(crate) fn find(&self, config: &Value) -> Result<Storage, Unreachable> {
        let folder = folder_of(config)?;
        let Some(roots) = &self.0 else { return Ok(Storage { root: folder, below: PathBuf::new() }) };
        let found = roots.iter().find_map(|root| Some((root, folder.strip_prefix(root).ok()?)));
        match found {
            Some((root, below)) => Ok(Storage { root: root.clone(), below: below.to_owned() }),
            None => Err(Unreachable::Outside(folder)),
        }
    }
}

/// A folder of checkpoints: one that is trusted, and the way from there, on which no link is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Storage {
    root: PathBuf,
    below: PathBuf,
}

impl Storage {
    /// Where it is.
    pub(crate) fn path(&self) -> PathBuf {
        self.root.join(&self.below)
    }

    /// A folder in it, which is reached as it is.
    pub(crate) fn within(&self, folder: &str) -> Storage {
        Storage { root: self.root.clone(), below: self.below.join(folder) }
    }

    fn open(&self) -> nix::Result<OwnedFd> {
        let root = open(&self.root, FOLDER, Mode::empty())?;
        self.below
            .iter()
            .try_fold(root, |folder, name| openat(&folder, name, FOLDER | OFlag::O_NOFOLLOW, Mode::empty()))
    }
}

/// The folder of a storage configuration.
pub(crate) fn folder_of(config: &Value) -> Result<PathBuf, Unreachable> {
    let path = |key: &str| config.get(key).and_then(Value::as_str).map(PathBuf::from);
    let plain = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_) | Component::RootDir));
    let absolute =
        |key: &'static str| path(key).filter(|path| path.is_absolute() && plain(path)).ok_or(Unreachable::Path(key));
    match config.get("type").and_then(Value::as_str) {
        Some("directory") => absolute("container_path"),
        Some("shared_fs") => {
            let host = absolute("host_path")?;
            let inside = path("storage_path").unwrap_or_default();
            let folder = host.join(&inside);
            let stays = folder.starts_with(&host) && plain(&folder);
            if stays { Ok(folder) } else { Err(Unreachable::Path("storage_path")) }
        }
        Some(other) => Err(Unreachable::Kind(other.to_owned())),
        None => Err(Unreachable::Missing),
    }
}

/// What an entry of a folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Folder,
    /// A link, a pipe, or another thing that is never read.
    Other,
}

/// Something in a checkpoint's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Below the checkpoint's folder.
    pub path: PathBuf,
    pub kind: Kind,
    pub size: u64,
    /// Seconds since 1970.
    pub modified: u64,
    /// The Unix user whose it is.
    pub uid: u32,
}

/// The folder of one checkpoint, open.
pub(crate) struct CheckpointFolder(OwnedFd);

const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

impl CheckpointFolder {
    /// Opens a checkpoint's folder; `None` if there is none.
    pub(crate) fn open(storage: &Storage, uuid: &str) -> io::Result<Option<CheckpointFolder>> {
        let opened =
            storage.open().and_then(|storage| openat(&storage, uuid, FOLDER | OFlag::O_NOFOLLOW, Mode::empty()));
        match opened {
            Ok(folder) => Ok(Some(CheckpointFolder(folder))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Refuses what is another's, the folder itself or anything in it.
    pub(crate) fn check(&self, entries: &[Entry], owners: &FileOwners) -> io::Result<()> {
        let uids = entries.iter().map(|entry| entry.uid).chain([fstat(&self.0)?.st_uid]);
        uids.into_iter().try_for_each(|uid| owners.check(uid)).map_err(io::Error::other)
    }

    /// Everything in it, each folder before what it holds, by name.
    pub(crate) fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut found = Vec::new();
        list(&self.0, Path::new(""), 0, &mut found)?;
        Ok(found)
    }

    /// Opens the folder that holds `path`, and gives the last part of it.
    fn parent<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let mut folder = self.0.try_clone()?;
        let mut parts = path.components().peekable();
        while let Some(part) = parts.next() {
            let Component::Normal(name) = part else {
                return Err(io::Error::other(format!("{} points outside the checkpoint", path.display())));
            };
            if parts.peek().is_none() {
                return Ok((folder, name));
            }
            folder = openat(&folder, name, FOLDER | OFlag::O_NOFOLLOW, Mode::empty())?;
        }
        Err(io::Error::other("the path is empty"))
    }

    /// Opens a file for reading, if it is still the Unix user's whose it was when it was listed.
    pub(crate) fn read(&self, entry: &Entry) -> io::Result<File> {
        let (folder, name) = self.parent(&entry.path)?;
        // Without O_NONBLOCK a pipe that has taken the file's place would be waited for.
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = openat(&folder, name, flags, Mode::empty())?;
        if fstat(&file)?.st_uid != entry.uid {
            return Err(io::Error::other(format!("{} is another user's by now", entry.path.display())));
        }
        Ok(File::from(file))
    }

    /// Removes a file, or a folder that is empty. What is not there, or is not empty, stays that way.
    fn remove(&self, path: &Path, kind: Kind) -> io::Result<()> {
        let (folder, name) = match self.parent(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        let flag = match kind {
            Kind::Folder => UnlinkatFlags::RemoveDir,
            Kind::File | Kind::Other => UnlinkatFlags::NoRemoveDir,
        };
        match unlinkat(&folder, name, flag) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Removes files of a checkpoint, or all of it; folders that become empty go too. Doing it again changes nothing. Nothing
/// is removed if a part of it is another's.
pub(crate) fn remove(
    storage: &Storage,
    uuid: &str,
    paths: Option<&[PathBuf]>,
    owners: Option<&FileOwners>,
) -> io::Result<()> {
    let Some(folder) = CheckpointFolder::open(storage, uuid)? else { return Ok(()) };
    let entries = folder.entries()?;
    if let Some(owners) = owners {
        folder.check(&entries, owners)?;
    }
    // Backwards, so that folders come after what they hold.
    for entry in entries.iter().rev() {
        if entry.kind == Kind::Folder || paths.is_none_or(|paths| paths.contains(&entry.path)) {
            folder.remove(&entry.path, entry.kind)?;
        }
    }
    let parent = storage.open()?;
    match unlinkat(&parent, uuid, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn list(folder: &OwnedFd, path: &Path, depth: usize, found: &mut Vec<Entry>) -> io::Result<()> {
    if depth > DEEPEST {
        return Err(io::Error::other(format!("{} is nested too deeply", path.display())));
    }
    let mut names: Vec<CString> = Vec::new();
    // Opened once more: two descriptors of one opening would share how far it has been read.
    for entry in Dir::openat(folder, ".", FOLDER, Mode::empty())?.iter() {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    names.sort();
    for name in names {
        let below = path.join(OsStr::from_bytes(name.to_bytes()));
        let status = fstatat(folder, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
        let kind = SFlag::from_bits_truncate(status.st_mode & SFlag::S_IFMT.bits());
        let (kind, size) = match kind {
            SFlag::S_IFDIR => (Kind::Folder, 0),
            SFlag::S_IFREG => (Kind::File, status.st_size.max(0) as u64),
            _ => (Kind::Other, 0),
        };
        found.push(Entry {
            path: below.clone(),
            kind,
            size,
            modified: status.st_mtime.max(0) as u64,
            uid: status.st_uid,
        });
        if found.len() > MOST {
            return Err(io::Error::other(format!("there are more than {MOST} files")));
        }
        if kind == Kind::Folder {
            let inner = openat(folder, name.as_c_str(), FOLDER | OFlag::O_NOFOLLOW, Mode::empty())?;
            list(&inner, &below, depth + 1, found)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;
    use crate::file_owners::tests::owners;

    const UUID: &str = "0f4a1a6e-0000-4000-8000-000000000001";

    #[test]
    fn storages_are_folders_with_absolute_paths() {
        let cases = [
            (json!({"type": "directory", "container_path": "/a/b"}), Ok("/a/b")),
            (json!({"type": "shared_fs", "host_path": "/a", "storage_path": "b/c"}), Ok("/a/b/c")),
            (json!({"type": "shared_fs", "host_path": "/a", "storage_path": null}), Ok("/a")),
            (json!({"type": "shared_fs", "host_path": "/a", "storage_path": "/a/b"}), Ok("/a/b")),
            (json!({"type": "shared_fs", "host_path": "/a", "storage_path": "/b"}), Err(())),
            (json!({"type": "shared_fs", "host_path": "/a", "storage_path": "../b"}), Err(())),
            (json!({"type": "directory", "container_path": "a"}), Err(())),
            (json!({"type": "directory", "container_path": "/a/../b"}), Err(())),
            (json!({"type": "directory"}), Err(())),
            (json!({"type": "s3", "bucket": "b"}), Err(())),
            (json!({}), Err(())),
        ];
        for (config, expected) in cases {
            assert_eq!(folder_of(&config).map_err(drop), expected.map(PathBuf::from), "{config}");
        }
    }

    fn made() -> tempfile::TempDir {
        let storage = tempfile::tempdir().unwrap();
        let folder = storage.path().join(UUID);
        fs::create_dir_all(folder.join("sub/deep")).unwrap();
        fs::write(folder.join("state"), "1234").unwrap();
        fs::write(folder.join("sub/deep/file"), "12").unwrap();
        storage
    }

    fn all_of(folder: &tempfile::TempDir) -> Storage {
        Storage { root: folder.path().to_owned(), below: PathBuf::new() }
    }

    fn names(folder: &CheckpointFolder) -> Vec<String> {
        folder.entries().unwrap().into_iter().map(|entry| entry.path.display().to_string()).collect()
    }

    fn entry(folder: &CheckpointFolder, path: &str) -> Entry {
        folder.entries().unwrap().into_iter().find(|entry| entry.path == Path::new(path)).unwrap()
    }

    #[test]
    fn what_is_another_s_is_neither_read_nor_removed() {
        let storage = made();
        let folder = CheckpointFolder::open(&all_of(&storage), UUID).unwrap().unwrap();
        let (entries, uid) = (folder.entries().unwrap(), nix::unistd::geteuid().as_raw());
        let (theirs, others) = (owners(Some(uid), &[uid + 1]), owners(Some(uid + 1), &[uid]));
        folder.check(&entries, &theirs).unwrap();
        assert!(folder.check(&entries, &others).unwrap_err().to_string().contains("another account's"));
        assert!(folder.check(&[], &others).is_err(), "the folder itself");
        remove(&all_of(&storage), UUID, None, Some(&others)).unwrap_err();
        assert_eq!(names(&folder), ["state", "sub", "sub/deep", "sub/deep/file"]);
        assert!(folder.read(&Entry { uid: uid + 1, ..entry(&folder, "state") }).is_err(), "it changed hands");
        remove(&all_of(&storage), UUID, None, Some(&theirs)).unwrap();
        assert!(!storage.path().join(UUID).exists());
    }

    #[test]
    fn files_are_listed_read_and_removed() {
        let storage = made();
        let folder = CheckpointFolder::open(&all_of(&storage), UUID).unwrap().unwrap();
        assert_eq!(names(&folder), ["state", "sub", "sub/deep", "sub/deep/file"]);
        assert_eq!(io::read_to_string(folder.read(&entry(&folder, "sub/deep/file")).unwrap()).unwrap(), "12");
        for path in ["../x", "/etc/passwd", "sub/../state", ""] {
            assert!(folder.read(&Entry { path: path.into(), ..entry(&folder, "state") }).is_err(), "{path}");
        }
        remove(&all_of(&storage), UUID, Some(&[PathBuf::from("sub/deep/file")]), None).unwrap();
        assert_eq!(names(&folder), ["state"]);
        remove(&all_of(&storage), UUID, None, None).unwrap();
        remove(&all_of(&storage), UUID, None, None).unwrap();
        assert!(CheckpointFolder::open(&all_of(&storage), UUID).unwrap().is_none());
    }

    #[test]
    fn links_lead_nowhere() {
        let storage = made();
        let other = tempfile::tempdir().unwrap();
        fs::create_dir(other.path().join("inner")).unwrap();
        fs::write(other.path().join("inner/secret"), "secret").unwrap();
        let folder = storage.path().join(UUID);
        symlink(other.path().join("inner/secret"), folder.join("link")).unwrap();
        symlink(other.path(), folder.join("tree")).unwrap();
        let open = CheckpointFolder::open(&all_of(&storage), UUID).unwrap().unwrap();
        assert_eq!(names(&open), ["link", "state", "sub", "sub/deep", "sub/deep/file", "tree"]);
        assert!(open.read(&entry(&open, "link")).is_err());
        assert!(open.read(&Entry { path: "tree/inner/secret".into(), ..entry(&open, "state") }).is_err());
        assert!(open.remove(Path::new("tree/inner/secret"), Kind::File).is_err());
        remove(&all_of(&storage), UUID, None, None).unwrap();
        assert!(!folder.exists());
        assert_eq!(fs::read_to_string(other.path().join("inner/secret")).unwrap(), "secret");
        // Nor is a link taken for a checkpoint.
        symlink(other.path(), &folder).unwrap();
        assert!(CheckpointFolder::open(&all_of(&storage), UUID).is_err());
        assert!(remove(&all_of(&storage), UUID, None, None).is_err());
        assert!(other.path().join("inner/secret").exists());
    }

    #[test]
    fn only_folders_below_the_roots_are_used() {
        let config = |path: &str| json!({"type": "directory", "container_path": path});
        let roots = StorageRoots(Some(vec!["/data/a".into(), "/b".into()]));
        for inside in ["/data/a", "/data/a/c", "/b/c/d"] {
            assert_eq!(roots.find(&config(inside)).unwrap().path(), Path::new(inside));
        }
        for outside in ["/data", "/data/ab", "/etc", "/"] {
            assert_eq!(roots.find(&config(outside)), Err(Unreachable::Outside(outside.into())));
        }
        assert!(StorageRoots::default().find(&config("/etc")).is_ok());
        // By default: every folder for one person, else the folder of checkpoints.
        let checkpoints = Path::new("/checkpoints");
        assert!(StorageRoots::of(&[], checkpoints, true).find(&config("/etc")).is_ok());
        assert!(StorageRoots::of(&[], checkpoints, false).find(&config("/etc")).is_err());
        assert!(StorageRoots::of(&[], checkpoints, false).find(&config("/checkpoints/a")).is_ok());
        assert!(StorageRoots::of(&["/b".into()], checkpoints, true).find(&config("/checkpoints")).is_err());
    }

    #[test]
    fn no_link_leads_out_of_a_root() {
        let (storage, root) = (made(), tempfile::tempdir().unwrap());
        symlink(storage.path(), root.path().join("link")).unwrap();
        let through = Storage { root: root.path().to_owned(), below: "link".into() };
        assert!(CheckpointFolder::open(&through, UUID).is_err());
        assert!(remove(&through, UUID, None, None).is_err());
        assert!(CheckpointFolder::open(&all_of(&storage), UUID).unwrap().is_some());
    }
}
