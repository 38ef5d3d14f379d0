//! What threads and processes of a group need everywhere: locks, joins, wake-ups, deadlines, and the guard against forks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::Error;

/// The longest time anything can be given: far, but where instants do not overflow.
pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// A panic while the lock was held is reported by itself; what is behind the lock is changed in whole steps, so still good.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the end of a thread, unless it is the one that asks: callers' functions run on it.
pub(crate) fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() {
        // A thread that panicked has nothing more to say.
        let _ = thread.join();
    }
}

/// A descriptor that becomes readable when it is written to, to wake a thread that polls.
pub(crate) fn event_fd() -> Result<EventFd, Error> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    EventFd::from_value_and_flags(0, flags).map_err(|error| Error::system("create an event handle", error))
}

/// What is left until a deadline; zero after it.
pub(crate) fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// The process that made something. A forked child has a copy, which must neither speak for its parent nor join its threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkGuard(u32);

impl ForkGuard {
    pub(crate) fn new() -> ForkGuard {
        ForkGuard(std::process::id())
    }

    /// Whether this is still the process that made it.
    pub(crate) fn is_owner(self) -> bool {
        self.0 == std::process::id()
    }
}
