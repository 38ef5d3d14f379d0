//! Unpacks the context directory: what the user sent along with an experiment.
//!
//! An archive is input from others. Nothing in it may land outside of the folder, nothing may be written through a link,
//! devices and hard links are refused, and so is more than fits the limits.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use flate2::read::GzDecoder;
use tar::{Archive, EntryType};

/// Entries of an archive at most.
const MOST_ENTRIES: usize = 100_000;
/// Bytes of all files together at most: contexts may have 96 MiB, but nobody says how well they were packed.
const MOST_BYTES: u64 = 1 << 30;

/// Why a context cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// An entry that does not belong into one.
    #[error("`{name}` in the context directory {what}")]
    Entry {
        /// As the archive names it.
        name: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// More than is taken.
    #[error("the context directory is too large: more than {0}")]
    TooLarge(String),
    /// It cannot be read, or files cannot be written.
    #[error("cannot unpack the context directory: {0}")]
    Failed(#[from] io::Error),
}

/// Unpacks a `.tar.gz` into a folder that is there.
pub fn unpack(archive: &[u8], folder: &Path) -> Result<(), ContextError> {
    unpack_within(archive, folder, MOST_ENTRIES, MOST_BYTES)
}

fn unpack_within(archive: &[u8], folder: &Path, entries: usize, bytes: u64) -> Result<(), ContextError> {
    let mut left = bytes;
    // Headers, padding and long names count too, else they would be a way around the limit.
    let unpacked = GzDecoder::new(archive).take(bytes.saturating_mul(2).saturating_add(1 << 20));
    let mut archive = Archive::new(unpacked);
    for (position, entry) in archive.entries()?.enumerate() {
        if position >= entries {
            return Err(ContextError::TooLarge(format!("{entries} files and folders")));
        }
        let mut entry = entry?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let refused = |what| ContextError::Entry { name: name.clone(), what };
        let path = inside(&entry.path()?).ok_or_else(|| refused("points outside it"))?;
        if path.as_os_str().is_empty() {
            continue;
        }
        let target = folder.join(&path);
        if !parents(folder, &path)? {
            return Err(refused("is below a link or a file"));
        }
        let mode = entry.header().mode().unwrap_or(0o644);
        match entry.header().entry_type() {
            EntryType::Directory => make_folder(&target, mode)?.then_some(()).ok_or_else(|| refused("exists twice"))?,
            EntryType::Regular | EntryType::Continuous => {
                if entry.size() > left {
                    return Err(ContextError::TooLarge(format!("{} MiB", bytes >> 20)));
                }
                left -= entry.size();
                let modified = entry.header().mtime().unwrap_or_default();
                write_file(&mut entry, &target, mode, modified)?;
            }
            EntryType::Symlink => {
                let link = entry.link_name()?.ok_or_else(|| refused("is a broken link"))?.into_owned();
                if !stays_inside(&path, &link) {
                    return Err(refused("is a link that points outside it"));
                }
                forget_file(&target)?;
                symlink(link, &target)?;
            }
            EntryType::XGlobalHeader => {}
            _ => return Err(refused("is neither a file nor a folder")),
        }
    }
    Ok(())
}

/// The path without `.`; `None` if it is absolute or goes up.
fn inside(path: &Path) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(clean)
}

/// Whether a link at `path` stays inside: it may go up at its beginning, from a folder that is really there, but not
/// further down, where a part may itself be a link.
fn stays_inside(path: &Path, link: &Path) -> bool {
    let depth = path.components().count().saturating_sub(1);
    let mut components = link.components().skip_while(|component| matches!(component, Component::CurDir)).peekable();
    let mut up = 0;
    while components.next_if(|component| matches!(component, Component::ParentDir)).is_some() {
        up += 1;
    }
    up <= depth && components.all(|component| matches!(component, Component::Normal(_)))
}

/// Makes the folders above; `false` if something else is in their place.
fn parents(folder: &Path, path: &Path) -> io::Result<bool> {
    let mut place = folder.to_owned();
    for part in path.parent().into_iter().flat_map(Path::components) {
        place.push(part);
        match fs::symlink_metadata(&place) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir(&place)?,
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// `false` if something that is no folder is in its place.
fn make_folder(target: &Path, mode: u32) -> io::Result<bool> {
    match fs::symlink_metadata(target) {
        Ok(found) if !found.is_dir() => return Ok(false),
        Ok(_) => {}
        Err(_) => fs::create_dir(target)?,
    }
    fs::set_permissions(target, fs::Permissions::from_mode(mode & 0o777 | 0o700))?;
    Ok(true)
}

fn write_file(entry: &mut impl Read, target: &Path, mode: u32, modified: u64) -> io::Result<()> {
    forget_file(target)?;
    let mode = mode & 0o777 | 0o600;
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(mode).open(target)?;
    io::copy(entry, &mut file)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    if let Some(time) = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(modified)) {
        // A time that the file system does not know is no reason to fail.
        let _ = file.set_modified(time);
    }
    Ok(())
}

/// Of two entries with one name the later counts. Never writes through what is there.
fn forget_file(target: &Path) -> io::Result<()> {
    match fs::symlink_metadata(target) {
        Ok(found) if !found.is_dir() => fs::remove_file(target),
        Ok(_) => Err(io::Error::other(format!("{} is already a folder", target.display()))),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert, prop_oneof, proptest};
    use proptest::strategy::{Just, Strategy};

    use super::*;

    /// An entry as an attacker may write it: the name goes into the header as it is.
    fn entry(name: &str, kind: EntryType, link: &str, content: &[u8]) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_mtime(1_700_000_000);
        header.set_size(content.len() as u64);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn pack(entries: &[Vec<u8>]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&entries.concat()).unwrap();
        encoder.write_all(&[0; 1024]).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn files_folders_and_links_inside_are_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let archive = pack(&[
            entry("./", EntryType::Directory, "", b""),
            entry("pkg/", EntryType::Directory, "", b""),
            entry("pkg/a.py", EntryType::Regular, "", b"x = 1\n"),
            entry("b/c/d.sh", EntryType::Regular, "", b"echo"),
            entry("pkg/link", EntryType::Symlink, "../b/c/d.sh", b""),
            entry("pkg/a.py", EntryType::Regular, "", b"x = 2\n"),
        ]);
        unpack(&archive, folder.path()).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("pkg/a.py")).unwrap(), "x = 2\n");
        assert_eq!(fs::read_to_string(folder.path().join("pkg/link")).unwrap(), "echo");
        let found = fs::metadata(folder.path().join("b/c/d.sh")).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o755);
        assert_eq!(found.modified().unwrap(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    }

    #[test]
    fn what_leads_out_is_refused_by_name() {
        let cases = [
            (vec![entry("../x", EntryType::Regular, "", b"")], "`../x` in the context directory points outside it"),
            (vec![entry("/etc/x", EntryType::Regular, "", b"")], "points outside"),
            (vec![entry("a/../../x", EntryType::Regular, "", b"")], "points outside"),
            (vec![entry("l", EntryType::Symlink, "/etc", b"")], "is a link that points outside"),
            (vec![entry("a/l", EntryType::Symlink, "../../x", b"")], "is a link that points outside"),
            (vec![entry("l", EntryType::Symlink, "a/..", b"")], "is a link that points outside"),
            (
                vec![entry("l", EntryType::Symlink, "a", b""), entry("l/x", EntryType::Regular, "", b"")],
                "is below a link",
            ),
            (vec![entry("h", EntryType::Link, "/etc/passwd", b"")], "is neither a file nor a folder"),
            (vec![entry("d", EntryType::Char, "", b"")], "is neither a file nor a folder"),
            (vec![entry("f", EntryType::Fifo, "", b"")], "is neither a file nor a folder"),
            (
                vec![entry("a", EntryType::Regular, "", b""), entry("a/b", EntryType::Regular, "", b"")],
                "is below a link or a file",
            ),
        ];
        for (entries, expected) in cases {
            let folder = tempfile::tempdir().unwrap();
            let error = unpack(&pack(&entries), folder.path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn more_than_the_limits_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let many: Vec<_> = (0..5).map(|n| entry(&format!("f{n}"), EntryType::Regular, "", b"")).collect();
        let error = unpack_within(&pack(&many), folder.path(), 4, 1 << 20).unwrap_err();
        assert!(matches!(error, ContextError::TooLarge(_)), "{error}");
        let large = [entry("one", EntryType::Regular, "", &[0; 600]), entry("two", EntryType::Regular, "", &[0; 600])];
        let error = unpack_within(&pack(&large), folder.path(), 10, 1000).unwrap_err();
        assert!(matches!(error, ContextError::TooLarge(_)), "{error}");
    }

    proptest! {
        #[test]
        fn nothing_is_ever_written_outside(
            entries in vec((
                vec(prop_oneof![Just(".."), Just("."), Just("a"), Just("b"), Just("/"), Just("")], 1..5),
                prop_oneof![Just(EntryType::Regular), Just(EntryType::Directory), Just(EntryType::Symlink)],
                vec(prop_oneof![Just(".."), Just("a"), Just("b"), Just("")], 1..5),
            ).prop_map(|(name, kind, link)| entry(&name.join("/"), kind, &link.join("/"), b"")), 0..12)
        ) {
            let outer = tempfile::tempdir().unwrap();
            let folder = outer.path().join("in/side");
            fs::create_dir_all(&folder).unwrap();
            let _ = unpack(&pack(&entries), &folder);
            prop_assert!(fs::read_dir(outer.path()).unwrap().count() == 1);
            prop_assert!(fs::read_dir(outer.path().join("in")).unwrap().count() == 1);
            prop_assert!(links_stay(&folder, &folder.canonicalize().unwrap()));
        }

        #[test]
        fn any_bytes_are_refused_or_unpacked(bytes in vec(any::<u8>(), 0..2000)) {
            let folder = tempfile::tempdir().unwrap();
            let _ = unpack(&bytes, folder.path());
            let _ = unpack(&pack(&[bytes]), folder.path());
        }
    }

    fn links_stay(folder: &Path, root: &Path) -> bool {
        fs::read_dir(folder).unwrap().flatten().all(|entry| {
            let path = entry.path();
            match path.canonicalize() {
                Ok(found) if !found.starts_with(root) => false,
                _ => !entry.file_type().unwrap().is_dir() || links_stay(&path, root),
            }
        })
    }
}
