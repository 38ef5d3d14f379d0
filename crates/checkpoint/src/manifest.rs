//! The manifest: the list of a checkpoint's files that makes it one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::name::Name;

/// The name of the manifest's file.
pub const MANIFEST: &str = "instep-manifest.json";
/// The name of the file with the user's metadata, as Determined has it.
pub const METADATA: &str = "metadata.json";
/// The version of the format.
const FORMAT: u32 = 1;

/// One file or folder that a rank saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name; folders end with `/`.
    pub name: String,
    /// Bytes; 0 for folders.
    pub size: u64,
    /// blake3 of the content, in hexadecimal; empty for folders.
    pub hash: String,
}

impl Entry {
    /// Whether it is a folder.
    pub fn is_folder(&self) -> bool {
        self.name.ends_with('/')
    }

    /// The checked name, without the slash of a folder.
    pub fn checked_name(&self) -> Result<Name> {
        Ok(Name::parse(self.name.strip_suffix('/').unwrap_or(&self.name))?)
    }
}

/// All files of a checkpoint but the manifest itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: u32,
    uuid: String,
    files: Vec<Entry>,
}

impl Manifest {
    /// The manifest of a checkpoint with these files.
    pub fn new(uuid: &str, mut files: Vec<Entry>) -> Manifest {
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Manifest { format: FORMAT, uuid: uuid.to_owned(), files }
    }

    /// Reads a manifest, and distrusts every name in it.
    pub fn read(uuid: &str, text: &[u8]) -> Result<Manifest> {
        let refused = |why: String| Error::Manifest { uuid: uuid.to_owned(), why };
        let manifest: Manifest = serde_json::from_slice(text).map_err(|error| refused(error.to_string()))?;
        if manifest.format != FORMAT {
            return Err(refused(format!("its format is {}, this version knows {FORMAT}", manifest.format)));
        }
        if manifest.uuid != uuid {
            return Err(refused(format!("it belongs to checkpoint {}", manifest.uuid)));
        }
        for entry in &manifest.files {
            entry.checked_name()?;
        }
        Ok(manifest)
    }

    /// The manifest as a file's content.
    pub fn text(&self) -> Result<Vec<u8>> {
        let refused = |error: serde_json::Error| Error::Manifest { uuid: self.uuid.clone(), why: error.to_string() };
        let mut text = serde_json::to_vec_pretty(self).map_err(refused)?;
        text.push(b'\n');
        Ok(text)
    }

    /// The files, sorted by name.
    pub fn files(&self) -> &[Entry] {
        &self.files
    }

    /// Names and sizes, as the master is told.
    pub fn resources(&self) -> BTreeMap<String, u64> {
        self.files.iter().map(|entry| (entry.name.clone(), entry.size)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};

    use super::*;

    fn entry(name: &str) -> Entry {
        Entry { name: name.into(), size: 1, hash: "00".into() }
    }

    #[test]
    fn a_manifest_is_read_as_written() {
        let manifest = Manifest::new("id", vec![entry("b"), entry("a/")]);
        let read = Manifest::read("id", &manifest.text().unwrap()).unwrap();
        assert_eq!(read, manifest);
        assert_eq!(read.resources().into_keys().collect::<Vec<_>>(), ["a/", "b"]);
        assert!(Manifest::read("other", &manifest.text().unwrap()).is_err());
    }

    #[test]
    fn a_manifest_with_a_name_that_leads_elsewhere_is_refused() {
        let manifest = Manifest::new("id", vec![entry("../../etc/passwd")]);
        assert!(matches!(Manifest::read("id", &manifest.text().unwrap()), Err(Error::Name(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(bytes in any::<Vec<u8>>()) {
            let _ = Manifest::read("id", &bytes);
        }
    }
}
