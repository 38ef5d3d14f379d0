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
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde_json::Value;

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
}

/// The folder of one checkpoint, open.
pub(crate) struct CheckpointFolder(OwnedFd);

const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

impl CheckpointFolder {
    /// Opens a checkpoint's folder; `None` if there is none.
    pub(crate) fn open(storage: &Path, uuid: &str) -> io::Result<Option<CheckpointFolder>> {
        let opened = open(storage, FOLDER, Mode::empty())
            .and_then(|storage| openat(&storage, uuid, FOLDER | OFlag::O_NOFOLLOW, Mode::empty()));
        match opened {
            Ok(folder) => Ok(Some(CheckpointFolder(folder))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
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

    /// Opens a file for reading.
    pub(crate) fn read(&self, path: &Path) -> io::Result<File> {
        let (folder, name) = self.parent(path)?;
        // Without O_NONBLOCK a pipe that has taken the file's place would be waited for.
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        Ok(File::from(openat(&folder, name, flags, Mode::empty())?))
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

/// Removes files of a checkpoint, or all of it; folders that become empty go too. Doing it again changes nothing.
pub(crate) fn remove(storage: &Path, uuid: &str, paths: Option<&[PathBuf]>) -> io::Result<()> {
    let Some(folder) = CheckpointFolder::open(storage, uuid)? else { return Ok(()) };
    // Backwards, so that folders come after what they hold.
    for entry in folder.entries()?.iter().rev() {
        if entry.kind == Kind::Folder || paths.is_none_or(|paths| paths.contains(&entry.path)) {
            folder.remove(&entry.path, entry.kind)?;
        }
    }
    let parent = open(storage, FOLDER, Mode::empty())?;
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
        found.push(Entry { path: below.clone(), kind, size, modified: status.st_mtime.max(0) as u64 });
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

    fn names(folder: &CheckpointFolder) -> Vec<String> {
        folder.entries().unwrap().into_iter().map(|entry| entry.path.display().to_string()).collect()
    }

    #[test]
    fn files_are_listed_read_and_removed() {
        let storage = made();
        let folder = CheckpointFolder::open(storage.path(), UUID).unwrap().unwrap();
        assert_eq!(names(&folder), ["state", "sub", "sub/deep", "sub/deep/file"]);
        assert_eq!(io::read_to_string(folder.read(Path::new("sub/deep/file")).unwrap()).unwrap(), "12");
        for path in ["../x", "/etc/passwd", "sub/../state", ""] {
            assert!(folder.read(Path::new(path)).is_err(), "{path}");
        }
        remove(storage.path(), UUID, Some(&[PathBuf::from("sub/deep/file")])).unwrap();
        assert_eq!(names(&folder), ["state"]);
        remove(storage.path(), UUID, None).unwrap();
        remove(storage.path(), UUID, None).unwrap();
        assert!(CheckpointFolder::open(storage.path(), UUID).unwrap().is_none());
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
        let open = CheckpointFolder::open(storage.path(), UUID).unwrap().unwrap();
        assert_eq!(names(&open), ["link", "state", "sub", "sub/deep", "sub/deep/file", "tree"]);
        assert!(open.read(Path::new("link")).is_err());
        assert!(open.read(Path::new("tree/inner/secret")).is_err());
        assert!(open.remove(Path::new("tree/inner/secret"), Kind::File).is_err());
        remove(storage.path(), UUID, None).unwrap();
        assert!(!folder.exists());
        assert_eq!(fs::read_to_string(other.path().join("inner/secret")).unwrap(), "secret");
        // Nor is a link taken for a checkpoint.
        symlink(other.path(), &folder).unwrap();
        assert!(CheckpointFolder::open(storage.path(), UUID).is_err());
        assert!(remove(storage.path(), UUID, None).is_err());
        assert!(other.path().join("inner/secret").exists());
    }
}
