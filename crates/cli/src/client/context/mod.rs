//! The code that goes with an experiment or a task: a folder, packed as the master takes it.
//!
//! What `.detignore` names stays here, as with Determined's `det`. Links are not followed out of the folder: what they
//! lead to was not meant to leave this machine, and is named instead.

mod rules;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use instep_api::experiments::ModelFile;
use instep_api::wire::{Base64, Long, Whole};
use rules::Rules;

use super::session;
use crate::report::Hinted;

/// Bytes that a context may have, as `det` has it.
const LIMIT: u64 = 95 << 20;
/// Folders inside of folders at most.
const DEEPEST: usize = 64;
/// How tar numbers kinds of entries.
const FILE: i64 = 48;
const FOLDER: i64 = 53;

/// A folder, packed.
#[derive(Debug, Default)]
pub(super) struct Packed {
    pub files: Vec<ModelFile>,
    /// Of all files together.
    pub bytes: u64,
    /// What is not in it although nobody said so, with the reason.
    pub left_out: Vec<String>,
}

/// Packs a folder, without this user's sessions, if they lie in it.
pub(super) fn pack(folder: &Path) -> anyhow::Result<Packed> {
    let sessions = session::folder().ok().and_then(|folder| folder.canonicalize().ok());
    pack_without(sessions, folder)
}

fn pack_without(sessions: Option<PathBuf>, folder: &Path) -> anyhow::Result<Packed> {
    let missing = |error: std::io::Error| {
        let what = format!("cannot open the folder {}: {error}", folder.display());
        Hinted::new(what, "give the folder that contains the code")
    };
    let root = folder.canonicalize().map_err(missing)?;
    if !root.is_dir() {
        let what = format!("{} is not a folder", folder.display());
        return Err(Hinted::new(what, "give the folder that contains the code").into());
    }
    let mut walk = Walk { rules: Rules::of(&root)?, root, sessions, packed: Packed::default() };
    walk.folder(&PathBuf::new(), 0)?;
    Ok(walk.packed)
}

struct Walk {
    root: PathBuf,
    /// Tokens and keys lie there: whoever sees the code would act as this user.
    sessions: Option<PathBuf>,
    rules: Rules,
    packed: Packed,
}

impl Walk {
    fn folder(&mut self, inner: &Path, depth: usize) -> anyhow::Result<()> {
        anyhow::ensure!(depth < DEEPEST, "{} has more than {DEEPEST} levels of folders", inner.display());
        let path = self.root.join(inner);
        let mut names = Vec::new();
        for entry in fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))? {
            names.push(entry.with_context(|| format!("cannot read {}", path.display()))?.file_name());
        }
        names.sort();
        let databases = databases_of_masters(&names);
        for database in &databases {
            let name = inner.join(format!("{database}.db"));
            self.packed.left_out.push(format!("{} and the files of its master: they are no code", name.display()));
        }
        for name in names {
            if !name.to_str().is_some_and(|name| databases.iter().any(|database| is_of_master(name, database))) {
                self.entry(&inner.join(name), depth)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, inner: &Path, depth: usize) -> anyhow::Result<()> {
        let path = self.root.join(inner);
        let Some(name) = inner.to_str() else {
            let what = format!("the name of {} is not UTF-8", path.display());
            return Err(Hinted::new(what, "rename it, or list it in .detignore").into());
        };
        let link = fs::symlink_metadata(&path).with_context(|| format!("cannot read {}", path.display()))?.is_symlink();
        if self.rules.ignores(name, !link && path.is_dir()) {
            return Ok(());
        }
        let target = if link { self.inside(&path) } else { Some(path.clone()) };
        if let (Some(target), Some(sessions)) = (&target, &self.sessions)
            && target.starts_with(sessions)
        {
            self.packed.left_out.push(format!("{name}: your sessions at masters, which are no code"));
            return Ok(());
        }
        let Some(metadata) = target.as_ref().and_then(|target| fs::metadata(target).ok()) else {
            self.packed.left_out.push(format!("{name}: a link that leaves the folder or is broken"));
            return Ok(());
        };
        if metadata.is_dir() {
            self.packed.files.push(described(name, FOLDER, &metadata, Vec::new()));
            // A link to a folder of the same tree is an empty folder, as det has it: following it could go in circles.
            return if link { Ok(()) } else { self.folder(inner, depth + 1) };
        }
        if !metadata.is_file() {
            self.packed.left_out.push(format!("{name}: neither a file nor a folder"));
            return Ok(());
        }
        self.fits(name, metadata.len())?;
        let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        // It may have grown meanwhile.
        self.fits(name, content.len() as u64)?;
        self.packed.bytes += content.len() as u64;
        self.packed.files.push(described(name, FILE, &metadata, content));
        Ok(())
    }

    /// Where a link leads, if that is inside of the folder.
    fn inside(&self, path: &Path) -> Option<PathBuf> {
        path.canonicalize().ok().filter(|target| target.starts_with(&self.root))
    }

    fn fits(&self, name: &str, size: u64) -> anyhow::Result<()> {
        if self.packed.bytes + size <= LIMIT {
            return Ok(());
        }
        let root = self.root.display();
        let limit = LIMIT >> 20;
        let what = format!("{root} exceeds the limit of {limit} MiB for an experiment's code, at {name}");
        Err(Hinted::new(what, "list files that the code does not need in .detignore, as in .gitignore").into())
    }
}

/// The databases of masters among the names in a folder, without `.db`: each has a lock beside it.
fn databases_of_masters(names: &[OsString]) -> Vec<String> {
    let locked = |name: &OsString| name.to_str()?.strip_suffix(".db.lock").map(str::to_owned);
    names.iter().filter_map(locked).filter(|name| names.contains(&OsString::from(format!("{name}.db")))).collect()
}

/// Whether a master or its agent has made this file or folder beside its database: passwords' hashes, keys, logs.
fn is_of_master(name: &str, database: &str) -> bool {
    const BESIDE: [&str; 5] = ["agent", "agent.log", "cert.pem", "key.pem", "log"];
    let ending = name.strip_prefix(database).and_then(|rest| rest.strip_prefix('.'));
    ending.is_some_and(|ending| ending.starts_with("db") || BESIDE.contains(&ending))
}

fn described(name: &str, kind: i64, metadata: &fs::Metadata, content: Vec<u8>) -> ModelFile {
    ModelFile {
        path: Some(name.to_owned()),
        kind: Some(Whole(kind)),
        content: Some(Base64(content)),
        mtime: Some(Long(metadata.mtime())),
        mode: Some(Whole(i64::from(metadata.mode()))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_belongs_to_a_master_is_no_code() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["m.db", "m.db.lock", "m.db-wal", "m.db.secret-key", "m.key.pem", "m.log", "m.py", "own.db"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let packed = pack(folder.path()).unwrap();
        assert_eq!(names(&packed), ["m.py", "own.db"]);
        assert_eq!(packed.left_out, ["m.db and the files of its master: they are no code"]);
    }

    #[test]
    fn sessions_are_no_code() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let sessions = root.join(".config/instep");
        fs::create_dir_all(&sessions).unwrap();
        for file in [&sessions.join("sessions.json"), &root.join("train.py")] {
            fs::write(file, "x").unwrap();
        }
        symlink(sessions.join("sessions.json"), root.join("link")).unwrap();
        let packed = pack_without(Some(sessions.clone()), &root).unwrap();
        assert_eq!(names(&packed), [".config", "train.py"]);
        let reason = "your sessions at masters, which are no code";
        assert_eq!(packed.left_out, [format!(".config/instep: {reason}"), format!("link: {reason}")]);
        assert!(pack_without(Some(sessions.clone()), &sessions).unwrap().files.is_empty());
    }

    fn names(packed: &Packed) -> Vec<&str> {
        packed.files.iter().map(|file| file.path.as_deref().unwrap()).collect()
    }

    #[test]
    fn a_folder_is_packed_without_what_is_ignored_and_without_leaving_it() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "s").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for inner in ["b", "b/deep", "__pycache__", "data", ".git"] {
            fs::create_dir(root.join(inner)).unwrap();
        }
        for (name, text) in [
            ("a.py", "print(1)\n"),
            ("b/deep/c.py", "c"),
            ("b/d.pyc", "x"),
            ("__pycache__/x", "x"),
            ("data/big", "x"),
            (".git/HEAD", "x"),
            (".detignore", "data/\n# a comment\n*.log\n!keep.log\n"),
            ("some.log", "x"),
            ("keep.log", "x"),
        ] {
            fs::write(root.join(name), text).unwrap();
        }
        symlink(outside.path().join("secret"), root.join("leak")).unwrap();
        symlink(outside.path(), root.join("leaks")).unwrap();
        symlink("a.py", root.join("same.py")).unwrap();
        symlink("..", root.join("b/up")).unwrap();
        let packed = pack(root).unwrap();
        assert_eq!(names(&packed), ["a.py", "b", "b/deep", "b/deep/c.py", "b/up", "keep.log", "same.py"]);
        assert_eq!(packed.files[0].content, Some(Base64(b"print(1)\n".to_vec())));
        assert_eq!(packed.files[0].kind, Some(Whole(48)));
        assert_eq!(packed.files[1].kind, Some(Whole(53)));
        assert_eq!(packed.left_out.len(), 2, "{:?}", packed.left_out);
        assert!(packed.left_out.iter().all(|each| each.starts_with("leak")));
    }

    #[test]
    fn too_much_is_named_before_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("small"), "x").unwrap();
        fs::File::create(folder.path().join("weights.pt")).unwrap().set_len(LIMIT).unwrap();
        let error = pack(folder.path()).unwrap_err().to_string();
        assert!(error.contains("at weights.pt") && error.contains(".detignore"), "{error}");
        assert!(pack(&folder.path().join("small")).unwrap_err().to_string().contains("is not a folder"));
    }
}
