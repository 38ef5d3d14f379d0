//! Locks that a panic elsewhere does not spoil.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks, whatever became of a thread that panicked while it held the lock: what is behind it is never left half
/// changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a change, for at most so long.
pub fn wait_timeout<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>, longest: Duration) -> MutexGuard<'a, T> {
    changed.wait_timeout(guard, longest).unwrap_or_else(PoisonError::into_inner).0
}

/// Waits while something holds, for at most so long.
pub fn wait_timeout_while<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    longest: Duration,
    holds: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    changed.wait_timeout_while(guard, longest, holds).unwrap_or_else(PoisonError::into_inner).0
}
