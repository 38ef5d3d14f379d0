//! Locks that a panic elsewhere does not spoil.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Locks, whatever became of a thread that panicked while it held the lock: what is behind it is never left half
/// changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a change.
pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
