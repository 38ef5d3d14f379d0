//! Locks that a panic elsewhere does not spoil.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two looks at a thread that should end.
const PAUSE: Duration = Duration::from_millis(10);

/// Locks, whatever became of a thread that panicked while it held the lock: what is behind it is never left half
/// changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins a thread; at a deadline, leaves it to the end of the process instead.
pub(crate) fn join_until(thread: JoinHandle<()>, deadline: Option<Instant>) {
    while !thread.is_finished() && deadline.is_some_and(|deadline| Instant::now() < deadline) {
        std::thread::sleep(PAUSE);
    }
    if deadline.is_none() || thread.is_finished() {
        // A panic of the thread was its own message; there is nothing left to do about it here.
        let _ = thread.join();
    } else {
        tracing::warn!(thread = thread.thread().name(), "the database does not answer; ending without it");
    }
}

/// Waits for a change.
pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_does_not_end_is_left_behind() {
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || ends.recv().unwrap());
        join_until(thread, Some(Instant::now() + PAUSE));
        // It was there the whole time.
        end.send(()).unwrap();
        join_until(std::thread::spawn(|| {}), None);
    }
}
