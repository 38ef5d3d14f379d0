//! A checkpoint's files as one stream: tar, or tar in gzip.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use crate::storage::{CheckpointFolder, Entry, Kind};

/// In which form files are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Tar,
    /// Determined's client asks for this one. Weights do not get smaller by it, so nothing is compressed.
    Gzip,
}

impl Format {
    /// The form that an `Accept` header asks for, by the first type that we know; `None` if it knows only others.
    pub(crate) fn accepted(header: Option<&str>) -> Option<Format> {
        let Some(header) = header.filter(|header| !header.trim().is_empty()) else { return Some(Format::Tar) };
        header.split(',').find_map(|kind| match kind.split(';').next().unwrap_or_default().trim() {
            "application/gzip" | "application/x-gzip" | "application/x-tgz" => Some(Format::Gzip),
            "application/x-tar" | "application/*" | "*/*" => Some(Format::Tar),
            _ => None,
        })
    }

    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Format::Tar => "application/x-tar",
            Format::Gzip => "application/gzip",
        }
    }

    pub(crate) fn extension(self) -> &'static str {
        match self {
            Format::Tar => "tar",
            Format::Gzip => "tar.gz",
        }
    }
}

/// Writes files of a checkpoint. Each must still have the size that was listed: an archive of something that changes
/// under the reader's hands is worth nothing, and a failure says so.
pub(crate) fn pack(folder: &CheckpointFolder, entries: &[Entry], format: Format, out: impl Write) -> io::Result<()> {
    match format {
        Format::Tar => pack_tar(folder, entries, out).map(drop),
        Format::Gzip => pack_tar(folder, entries, GzEncoder::new(out, Compression::none()))?.finish().map(drop),
    }
}

fn pack_tar<Out: Write>(folder: &CheckpointFolder, entries: &[Entry], out: Out) -> io::Result<Out> {
    let mut archive = Builder::new(out);
    for entry in entries {
        let mut header = Header::new_gnu();
        header.set_mtime(entry.modified);
        if entry.kind == Kind::Folder {
            header.set_entry_type(EntryType::Directory);
            header.set_mode(0o755);
            header.set_size(0);
            archive.append_data(&mut header, &entry.path, io::empty())?;
        } else {
            header.set_entry_type(EntryType::Regular);
            header.set_mode(0o644);
            header.set_size(entry.size);
            let file = Exactly { inner: folder.read(entry)?, left: entry.size };
            archive.append_data(&mut header, &entry.path, file)?;
        }
    }
    archive.into_inner()
}

/// Reads so many bytes, and fails if there are fewer. What is beyond them was written later.
struct Exactly<Inner> {
    inner: Inner,
    left: u64,
}

impl<Inner: Read> Read for Exactly<Inner> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.inner.read(&mut buffer[..wanted])?;
        if count == 0 && wanted > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a file became shorter while it was read"));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::storage::StorageRoots;

    #[test]
    fn the_first_type_that_is_known_is_sent() {
        let cases = [
            (None, Some(Format::Tar)),
            (Some(""), Some(Format::Tar)),
            (Some("application/gzip"), Some(Format::Gzip)),
            (Some("text/html, application/gzip;q=0.9, */*"), Some(Format::Gzip)),
            (Some("*/*"), Some(Format::Tar)),
            (Some("application/zip"), None),
        ];
        for (header, expected) in cases {
            assert_eq!(Format::accepted(header), expected, "{header:?}");
        }
    }

    #[test]
    fn archives_hold_what_was_listed_and_nothing_shorter() {
        let storage = tempfile::tempdir().unwrap();
        let uuid = "0f4a1a6e-0000-4000-8000-000000000002";
        let long = format!("sub/{}", "n".repeat(200));
        std::fs::create_dir_all(storage.path().join(uuid).join("sub")).unwrap();
        std::fs::write(storage.path().join(uuid).join(&long), "content").unwrap();
        let config = serde_json::json!({"type": "directory", "container_path": storage.path()});
        let all = StorageRoots::default().find(&config).unwrap();
        let folder = CheckpointFolder::open(&all, uuid).unwrap().unwrap();
        let mut entries = folder.entries().unwrap();
        let mut bytes = Vec::new();
        pack(&folder, &entries, Format::Gzip, &mut bytes).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
        let names: Vec<PathBuf> = archive.entries().unwrap().map(|one| one.unwrap().path().unwrap().into()).collect();
        assert_eq!(names, [PathBuf::from("sub"), PathBuf::from(long)]);
        entries[1].size += 1;
        let failed = pack(&folder, &entries, Format::Tar, Vec::new()).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::UnexpectedEof);
    }
}
