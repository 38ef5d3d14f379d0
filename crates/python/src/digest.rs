//! A hash of memory, for comparing what ranks hold.
#![expect(unsafe_code, reason = "memory of tensors comes as addresses")]

use pyo3::prelude::{Bound, Python, pyfunction};
use pyo3::types::PyBytes;

/// The BLAKE3 hash of pieces of memory, one after the other, each given as its address and its length in bytes.
#[pyfunction]
pub(crate) fn digest<'py>(py: Python<'py>, memory: Vec<(usize, usize)>) -> Bound<'py, PyBytes> {
    let hash = py.detach(|| {
        let mut hasher = blake3::Hasher::new();
        for (address, bytes) in memory.into_iter().filter(|(_, bytes)| *bytes > 0) {
            let start = std::ptr::with_exposed_provenance::<u8>(address);
            // SAFETY: the caller keeps the memory valid, and unchanged, until this returns.
            hasher.update(unsafe { std::slice::from_raw_parts(start, bytes) });
        }
        hasher.finalize()
    });
    PyBytes::new(py, hash.as_bytes())
}
