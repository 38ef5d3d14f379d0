//! The steps of saving and restoring checkpoints, for `instep.core`, which talks between the ranks.

use instep_checkpoint::{Entry, Folder, merge};
use pyo3::prelude::{PyResult, Python};
use pyo3::{pyclass, pymethods};

use crate::errors;

/// Name, size and hash of a file or folder.
type Listed = (String, u64, String);

/// A folder with checkpoints.
#[pyclass(frozen, module = "instep._native")]
pub(crate) struct CheckpointFolder {
    folder: Folder,
}

#[pymethods]
impl CheckpointFolder {
    #[new]
    fn new(root: &str) -> CheckpointFolder {
        CheckpointFolder { folder: Folder::new(root) }
    }

    /// Make the place into which a rank writes, and give it.
    fn begin(&self, py: Python<'_>, uuid: &str, rank: usize) -> PyResult<String> {
        let path = py.detach(|| self.folder.begin(uuid, rank)).map_err(|error| errors::checkpoint(&error))?;
        Ok(path.to_string_lossy().into_owned())
    }

    /// Hash and sync what a rank has written, and list it.
    fn seal(&self, py: Python<'_>, uuid: &str, rank: usize) -> PyResult<Vec<Listed>> {
        let entries = py.detach(|| self.folder.seal(uuid, rank)).map_err(|error| errors::checkpoint(&error))?;
        Ok(entries.into_iter().map(|entry| (entry.name, entry.size, entry.hash)).collect())
    }

    /// Move the files that a rank brings in to where all ranks' files come together.
    fn join(&self, py: Python<'_>, uuid: &str, rank: usize, names: Vec<String>) -> PyResult<()> {
        py.detach(|| self.folder.join(uuid, rank, &names)).map_err(|error| errors::checkpoint(&error))
    }

    /// Make a checkpoint of what was joined; gives names and sizes of its files.
    fn commit(&self, py: Python<'_>, uuid: &str, metadata: &str, files: Vec<Listed>) -> PyResult<Vec<(String, u64)>> {
        let entries = entries(files);
        let manifest = py.detach(|| self.folder.commit(uuid, metadata, &entries));
        Ok(manifest.map_err(|error| errors::checkpoint(&error))?.resources().into_iter().collect())
    }

    /// Remove what was written of a checkpoint that will not be finished.
    fn abandon(&self, py: Python<'_>, uuid: &str) -> PyResult<()> {
        py.detach(|| self.folder.abandon(uuid)).map_err(|error| errors::checkpoint(&error))
    }

    /// Compare a checkpoint's files with its manifest, all or those wanted; gives its path and whether it has one.
    #[pyo3(signature = (uuid, wanted=None))]
    fn open(&self, py: Python<'_>, uuid: &str, wanted: Option<Vec<String>>) -> PyResult<(String, bool)> {
        let opened = py.detach(|| self.folder.open(uuid, wanted.as_deref()));
        let opened = opened.map_err(|error| errors::checkpoint(&error))?;
        Ok((opened.path.to_string_lossy().into_owned(), opened.verified))
    }

    /// Names and sizes of a checkpoint's files.
    fn files(&self, py: Python<'_>, uuid: &str) -> PyResult<Vec<(String, u64)>> {
        py.detach(|| self.folder.list(uuid)).map_err(|error| errors::checkpoint(&error))
    }

    /// Delete a checkpoint.
    fn delete(&self, py: Python<'_>, uuid: &str) -> PyResult<()> {
        py.detach(|| self.folder.delete(uuid)).map_err(|error| errors::checkpoint(&error))
    }

    /// Join the lists of all ranks: every file once, and for every rank the names that it brings in.
    #[staticmethod]
    fn merge(ranks: Vec<Vec<Listed>>) -> PyResult<(Vec<Listed>, Vec<Vec<String>>)> {
        let ranks: Vec<Vec<Entry>> = ranks.into_iter().map(entries).collect();
        let merged = merge(&ranks).map_err(|error| errors::checkpoint(&error))?;
        let files = merged.entries.into_iter().map(|entry| (entry.name, entry.size, entry.hash)).collect();
        Ok((files, merged.brought))
    }
}

fn entries(files: Vec<Listed>) -> Vec<Entry> {
    files.into_iter().map(|(name, size, hash)| Entry { name, size, hash }).collect()
}
