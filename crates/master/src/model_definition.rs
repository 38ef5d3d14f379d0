//! The code that comes with an experiment: a list of files in, a tar in gzip out.
//!
//! Paths come from users and are unpacked on agents, so none may lead out of the folder it is unpacked in.

use std::io;
use std::path::{Component, Path};

use flate2::Compression;
use flate2::write::GzEncoder;
use instep_api::experiments::ModelFile;
use tar::{Builder, EntryType, Header};

/// Bytes of all files together, before compression: what Determined's command line lets through.
const MOST_BYTES: usize = 96 << 20;
/// Files and folders.
const MOST_FILES: usize = 100_000;
/// Folders that a file may lie in, with the file itself.
pub(crate) const DEEPEST: usize = 64;
/// Bytes of a path, as Linux takes them.
pub(crate) const LONGEST_PATH: usize = 4096;
/// Letters of a path that a refusal shows.
const SHOWN: usize = 100;
/// As tar numbers kinds of entries.
const FILE: i64 = b'0' as i64;
const OLD_FILE: i64 = 0;
const FOLDER: i64 = b'5' as i64;
const LINK: i64 = b'2' as i64;

/// Packs files; the error is a sentence for whoever sent them.
pub(crate) fn pack(files: &[ModelFile]) -> Result<Vec<u8>, String> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    if files.len() > MOST_FILES {
        return Err(format!("the model definition has {} files, the limit is {MOST_FILES}", files.len()));
    }
    let bytes: usize = files.iter().map(|file| file.content.as_ref().map_or(0, |content| content.0.len())).sum();
    if bytes > MOST_BYTES {
        return Err(format!("the model definition has {bytes} bytes, the limit is {MOST_BYTES}"));
    }
    let mut archive = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for file in files {
        let path = file.path.as_deref().unwrap_or_default();
        append(&mut archive, path, file).map_err(|error| format!("cannot take `{}`: {error}", shortened(path)))?;
    }
    let packed = archive.into_inner().and_then(GzEncoder::finish);
    packed.map_err(|error| format!("cannot pack the model definition: {error}"))
}

/// Whether a path has so many folders, or is so long, that nobody could work with it.
pub(crate) fn is_too_deep(path: &str) -> bool {
    path.len() > LONGEST_PATH || path.split('/').count() > DEEPEST
}

fn shortened(path: &str) -> String {
    match path.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &path[..end]),
        None => path.to_owned(),
    }
}

fn append(archive: &mut Builder<GzEncoder<Vec<u8>>>, path: &str, file: &ModelFile) -> io::Result<()> {
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if path.is_empty() || !plain || path.contains('\0') {
        return Err(io::Error::other("it points outside the model definition"));
    }
    if is_too_deep(path) {
        return Err(io::Error::other(format!(
            "its path has {} parts and {} bytes, the limits are {DEEPEST} and {LONGEST_PATH}\n\
             hint: move it up, or leave it out with .detignore",
            path.split('/').count(),
            path.len()
        )));
    }
    let content = file.content.as_ref().map_or(&[] as &[u8], |content| &content.0);
    let mut header = Header::new_gnu();
    let (mode, default) = (file.mode.unwrap_or_default().0, 0o644);
    header.set_mode(u32::try_from(mode & 0o777).ok().filter(|mode| *mode != 0).unwrap_or(default));
    header.set_mtime(u64::try_from(file.mtime.unwrap_or_default().0).unwrap_or(0));
    match file.kind.unwrap_or_default().0 {
        FILE | OLD_FILE => {
            header.set_entry_type(EntryType::Regular);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, path, content)
        }
        FOLDER => {
            header.set_entry_type(EntryType::Directory);
            header.set_size(0);
            archive.append_data(&mut header, path, io::empty())
        }
        LINK => Err(io::Error::other("links are not accepted; send the target instead")),
        other => Err(io::Error::other(format!("{other} is neither a file nor a folder"))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn files(value: serde_json::Value) -> Vec<ModelFile> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn files_and_folders_come_out_as_they_went_in() {
        let packed = pack(&files(json!([
            {"path": "pkg", "type": 53, "content": "", "mode": 16877},
            {"path": "pkg/a.py", "type": 48, "content": "aGVsbG8=", "mtime": "1794704205", "mode": 33188},
        ])))
        .unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let mode = entry.header().mode().unwrap();
            found.push((entry.path().unwrap().display().to_string(), text, mode));
        }
        let expected = [("pkg".to_owned(), String::new(), 0o755), ("pkg/a.py".to_owned(), "hello".to_owned(), 0o644)];
        assert_eq!(found, expected);
        assert_eq!(pack(&[]).unwrap(), b"");
    }

    #[test]
    fn nothing_leads_out() {
        for path in ["../a", "/etc/passwd", "a/../../b", "", "a/.."] {
            let error = pack(&files(json!([{"path": path, "type": 48, "content": ""}]))).unwrap_err();
            assert!(error.contains("points outside"), "{path}: {error}");
        }
        assert!(pack(&files(json!([{"path": "a", "type": 50, "content": ""}]))).unwrap_err().contains("links"));
        assert!(pack(&files(json!([{"path": "a", "type": 51, "content": ""}]))).is_err());
    }

    #[test]
    fn paths_of_thousands_of_folders_are_refused() {
        let refusal = |path: String| pack(&files(json!([{"path": path, "type": 48, "content": ""}]))).err();
        assert_eq!(refusal(format!("{}x.py", "a/".repeat(DEEPEST - 1))), None);
        for path in [format!("{}x.py", "a/".repeat(DEEPEST)), format!("{}x.py", "a/".repeat(2000)), "a".repeat(5000)] {
            let error = refusal(path).unwrap();
            assert!(error.contains("the limits are 64 and 4096\nhint:") && error.len() < 400, "{error}");
        }
    }

    proptest! {
        /// Whatever path is sent: it is refused, or it stays below the folder.
        #[test]
        fn paths_are_refused_or_stay_inside(path in "[a./\\\\ \u{0}é]{0,12}") {
            if let Ok(packed) = pack(&files(json!([{"path": path, "type": 48, "content": ""}]))) {
                let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
                for entry in archive.entries().unwrap() {
                    let entry = entry.unwrap();
                    let found = entry.path().unwrap().into_owned();
                    prop_assert!(found.is_relative());
                    prop_assert!(found.components().all(|part| part != Component::ParentDir));
                }
            }
        }
    }
}
