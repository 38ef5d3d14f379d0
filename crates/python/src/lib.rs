//! The private `instep._native` extension module: what Python needs of the Rust crates, and nothing of its own.
//!
//! Every wait happens with the interpreter released. `python/instep/store.py` is the public face and
//! `python/instep/_native.pyi` the types; errors become Python exceptions in `errors` alone.

mod errors;
mod store;

use pyo3::pymodule;

/// The private native part of instep; use `instep.store`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::store::{StoreClient, StoreServer};

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
