//! A folder with checkpoints, and every step of saving and restoring one.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use instep_api::identifiers::{CheckpointUuid, NotAUuid};

use crate::error::{Error, Result, file};
use crate::manifest::{Entry, MANIFEST, METADATA, Manifest};
use crate::name::Name;

/// Bytes that are hashed at a time.
const PART: usize = 1 << 20;
/// Folders within folders; beyond this it is a mistake.
const DEEPEST: usize = 64;

/// A folder that holds checkpoints, the same for all ranks.
#[derive(Debug, Clone)]
pub struct Folder {
    root: PathBuf,
}

/// A checkpoint to read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Where its files are.
    pub path: PathBuf,
    /// Whether its content was compared with a manifest; the stock client's checkpoints have none.
    pub verified: bool,
}

impl Folder {
    /// The folder at a path; it is made when something is saved.
    pub fn new(root: impl Into<PathBuf>) -> Folder {
        Folder { root: root.into() }
    }

    /// Makes the place into which a rank writes, and gives it.
    pub fn begin(&self, uuid: &str, rank: usize) -> Result<PathBuf> {
        let path = self.staging(uuid)?.join(format!("rank-{rank}"));
        fs::create_dir_all(&path).map_err(file("make", &path))?;
        Ok(path)
    }

    /// Hashes and syncs what a rank has written, and lists it.
    pub fn seal(&self, uuid: &str, rank: usize) -> Result<Vec<Entry>> {
        let path = self.staging(uuid)?.join(format!("rank-{rank}"));
        let mut entries = Vec::new();
        walk(&path, "", 0, &mut |name, path, is_folder| {
            Name::parse_of_rank(name)?;
            entries.push(if is_folder {
                sync_folder(path)?;
                Entry { name: format!("{name}/"), size: 0, hash: String::new() }
            } else {
                let (size, hash) = hash_and_sync(path)?;
                Entry { name: name.to_owned(), size, hash }
            });
            Ok(())
        })?;
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    /// Moves the files that a rank brings in to where all ranks' files come together.
    pub fn join(&self, uuid: &str, rank: usize, names: &[String]) -> Result<()> {
        let staging = self.staging(uuid)?;
        let (from, to) = (staging.join(format!("rank-{rank}")), staging.join("joined"));
        fs::create_dir_all(&to).map_err(file("make", &to))?;
        for name in names {
            let name = Name::parse_of_rank(name)?;
            let target = to.join(name.path());
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent).map_err(file("make", parent))?;
            }
            let source = from.join(name.path());
            fs::rename(&source, &target).map_err(file("move", &source))?;
        }
        Ok(())
    }

    /// Makes a checkpoint of what the ranks joined: checks that all of it is here, writes metadata and manifest, and
    /// lets it appear. `metadata` is the text of a JSON object.
    pub fn commit(&self, uuid: &str, metadata: &str, entries: &[Entry]) -> Result<Manifest> {
        let staging = self.staging(uuid)?;
        let joined = staging.join("joined");
        fs::create_dir_all(&joined).map_err(file("make", &joined))?;
        for entry in entries {
            let path = joined.join(entry.checked_name()?.path());
            if entry.is_folder() {
                fs::create_dir_all(&path).map_err(file("make", &path))?;
            } else if fs::symlink_metadata(&path).map(|found| found.len()).ok() != Some(entry.size) {
                // Another machine has it, so the folder is not shared.
                let (name, uuid) = (entry.name.clone(), uuid.to_owned());
                return Err(Error::Missing { name, uuid, root: self.root.clone() });
            }
        }
        let hash = write(&joined.join(METADATA), metadata.as_bytes())?;
        let mut files = entries.to_vec();
        files.push(Entry { name: METADATA.to_owned(), size: metadata.len() as u64, hash });
        let manifest = Manifest::new(uuid, files);
        walk(&joined, "", 0, &mut |_, path, is_folder| if is_folder { sync_folder(path) } else { Ok(()) })?;
        let unfinished = joined.join(format!(".{MANIFEST}"));
        write(&unfinished, &manifest.text()?)?;
        fs::rename(&unfinished, joined.join(MANIFEST)).map_err(file("move", &unfinished))?;
        sync_folder(&joined)?;
        let target = self.root.join(uuid);
        fs::rename(&joined, &target).map_err(file("make", &target))?;
        sync_folder(&self.root)?;
        // What is left of the save is empty folders; that they could not be removed harms nobody.
        let _ = fs::remove_dir_all(&staging);
        Ok(manifest)
    }

    /// Removes what was written of a checkpoint that will not be finished.
    pub fn abandon(&self, uuid: &str) -> Result<()> {
        let staging = self.staging(uuid)?;
        match fs::remove_dir_all(&staging) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file("remove", &staging)(error)),
            _ => Ok(()),
        }
    }

    /// Gives a checkpoint after comparing its files with its manifest: all, or those that `wanted` names.
    pub fn open(&self, uuid: &str, wanted: Option<&[String]>) -> Result<Opened> {
        let path = self.path(uuid)?;
        let verified = verify(&path, uuid, |name| wanted.is_none_or(|wanted| wanted.iter().any(|each| each == name)))?;
        Ok(Opened { path, verified })
    }

    /// The names and sizes of a checkpoint's files, without the manifest.
    pub fn list(&self, uuid: &str) -> Result<Vec<(String, u64)>> {
        let mut found = Vec::new();
        walk(&self.path(uuid)?, "", 0, &mut |name, path, is_folder| {
            if is_folder {
                found.push((format!("{name}/"), 0));
            } else if name != MANIFEST {
                found.push((name.to_owned(), fs::metadata(path).map_err(file("look at", path))?.len()));
            }
            Ok(())
        })?;
        found.sort();
        Ok(found)
    }

    /// Deletes a checkpoint. It stops being one first, so that nobody finds half of it.
    pub fn delete(&self, uuid: &str) -> Result<()> {
        let path = self.path(uuid)?;
        let hidden = self.staging(uuid)?;
        fs::rename(&path, &hidden).map_err(file("delete", &path))?;
        sync_folder(&self.root)?;
        fs::remove_dir_all(&hidden).map_err(file("delete", &hidden))
    }

    fn path(&self, uuid: &str) -> Result<PathBuf> {
        let path = self.root.join(checked(uuid)?.as_str());
        if path.is_dir() {
            return Ok(path);
        }
        Err(Error::Absent { uuid: uuid.to_owned(), root: self.root.clone() })
    }

    fn staging(&self, uuid: &str) -> Result<PathBuf> {
        Ok(self.root.join(format!(".instep-{}", checked(uuid)?)))
    }
}

/// Compares the files of a checkpoint in the folder `path` with its manifest, those whose names are `wanted`; gives
/// whether it has a manifest.
pub fn verify(path: &Path, uuid: &str, wanted: impl Fn(&str) -> bool) -> Result<bool> {
    let manifest = path.join(MANIFEST);
    let manifest = match fs::read(&manifest) {
        Ok(text) => Manifest::read(uuid, &text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(file("read", &manifest)(error)),
    };
    for entry in manifest.files().iter().filter(|entry| wanted(&entry.name)) {
        verify_entry(path, uuid, entry)?;
    }
    Ok(true)
}

fn verify_entry(root: &Path, uuid: &str, entry: &Entry) -> Result<()> {
    let path = root.join(entry.checked_name()?.path());
    let found = match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (name, uuid) = (entry.name.clone(), uuid.to_owned());
            return Err(Error::Missing { name, uuid, root: root.to_owned() });
        }
        found => found.map_err(file("look at", &path))?,
    };
    let damaged = |why: String| Error::Damaged { name: entry.name.clone(), uuid: uuid.to_owned(), why };
    if entry.is_folder() {
        return if found.is_dir() { Ok(()) } else { Err(damaged("it is not a folder".to_owned())) };
    }
    if !found.is_file() {
        return Err(damaged("it is not a file".to_owned()));
    }
    if found.len() != entry.size {
        return Err(damaged(format!("it has {} bytes, not {}", found.len(), entry.size)));
    }
    let (_, hash) = hash(&mut File::open(&path).map_err(file("read", &path))?, &path)?;
    if hash == entry.hash { Ok(()) } else { Err(damaged("its content has changed".to_owned())) }
}

fn checked(uuid: &str) -> Result<CheckpointUuid> {
    uuid.parse().map_err(|NotAUuid(text)| Error::Uuid(text))
}

/// Calls `visit` with name, path and whether it is a folder, for everything below a folder, contents before folders.
fn walk(
    folder: &Path,
    prefix: &str,
    depth: usize,
    visit: &mut impl FnMut(&str, &Path, bool) -> Result<()>,
) -> Result<()> {
    if depth > DEEPEST {
        return Err(Error::Kind { path: folder.to_owned() });
    }
    for entry in fs::read_dir(folder).map_err(file("list", folder))? {
        let entry = entry.map_err(file("list", folder))?;
        let path = entry.path();
        // A name that is no text could not be written to a manifest.
        let name = entry.file_name().into_string().map_err(|_| Error::Kind { path: path.clone() })?;
        let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        // Links are not followed: they could lead out of the checkpoint.
        let kind = entry.file_type().map_err(file("look at", &path))?;
        if kind.is_dir() {
            walk(&path, &name, depth + 1, visit)?;
        } else if !kind.is_file() {
            return Err(Error::Kind { path });
        }
        visit(&name, &path, kind.is_dir())?;
    }
    Ok(())
}

fn hash_and_sync(path: &Path) -> Result<(u64, String)> {
    let mut opened = File::open(path).map_err(file("read", path))?;
    let found = hash(&mut opened, path)?;
    opened.sync_all().map_err(file("sync", path))?;
    Ok(found)
}

fn hash(opened: &mut File, path: &Path) -> Result<(u64, String)> {
    let mut hasher = blake3::Hasher::new();
    let mut part = vec![0; PART];
    let mut size = 0;
    loop {
        let count = opened.read(&mut part).map_err(file("read", path))?;
        if count == 0 {
            return Ok((size, hasher.finalize().to_hex().to_string()));
        }
        hasher.update(&part[..count]);
        size += count as u64;
    }
}

/// Writes a file, syncs it, and gives the hash of its content.
fn write(path: &Path, content: &[u8]) -> Result<String> {
    let mut opened = File::create(path).map_err(file("write", path))?;
    opened.write_all(content).map_err(file("write", path))?;
    opened.sync_all().map_err(file("sync", path))?;
    Ok(blake3::hash(content).to_hex().to_string())
}

fn sync_folder(path: &Path) -> Result<()> {
    File::open(path).and_then(|opened| opened.sync_all()).map_err(file("sync", path))
}
