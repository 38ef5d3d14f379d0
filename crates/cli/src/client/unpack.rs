//! Takes an archive apart that a master sent. Its names are not trusted: what would leave the folder is refused.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path};

use tar::{Archive, EntryType};

/// Unpacks a checkpoint into a folder that is made for it; gives the bytes of its files.
pub(super) fn unpack(archive: impl Read, folder: &Path) -> io::Result<u64> {
    let mut archive = Archive::new(archive);
    let mut total = 0;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.into_owned();
        let inside = name.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !inside || name.as_os_str().is_empty() {
            return Err(io::Error::other(format!("the master sent a file outside the checkpoint: {}", name.display())));
        }
        let path = folder.join(&name);
        match entry.header().entry_type() {
            EntryType::Directory => fs::create_dir_all(&path)?,
            EntryType::Regular => {
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent)?;
                }
                // Never through a link that is there already, and never over another file.
                let mut file = File::options().write(true).create_new(true).open(&path)?;
                total += io::copy(&mut entry, &mut file)?;
            }
            other => {
                let what = format!("the master sent {} as {other:?}, which no checkpoint contains", name.display());
                return Err(io::Error::other(what));
            }
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};
    use tar::{Builder, Header};

    use super::*;

    fn packed(name: &str, kind: EntryType) -> Vec<u8> {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_mode(0o644);
        // Written by hand: the builder refuses such names itself.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        if kind == EntryType::Symlink {
            header.set_link_name("/etc/passwd").unwrap();
        }
        header.set_cksum();
        let mut archive = Builder::new(Vec::new());
        archive.append(&header, io::empty()).unwrap();
        archive.into_inner().unwrap()
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        for name in ["../out", "/tmp/instep-never", "a/../../out"] {
            assert!(unpack(packed(name, EntryType::Regular).as_slice(), &inner).is_err(), "{name}");
        }
        assert!(unpack(packed("link", EntryType::Symlink).as_slice(), &inner).is_err());
        assert_eq!(unpack(packed("a/b", EntryType::Regular).as_slice(), &inner).unwrap(), 0);
        assert!(inner.join("a/b").is_file());
        assert!(!folder.path().join("out").exists());
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
            let folder = tempfile::tempdir().unwrap();
            let _ = unpack(bytes.as_slice(), &folder.path().join("inner"));
        }
    }
}
