//! The one place that decides what a poisoned mutex means in this crate.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a panic of another holder: what this crate shares between threads is replaced or extended
/// as a whole, so that a value from before the panic is still valid.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
