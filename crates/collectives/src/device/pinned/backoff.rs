//! How long to spin, when to sleep, and when to look who is alive.

use std::time::{Duration, Instant};

use crate::Error;

/// How long to watch without sleeping, and how long to sleep before the next look.
pub(super) const SPIN: Duration = Duration::from_micros(500);

pub(super) const SLEEP: Duration = Duration::from_micros(50);

/// How often to look who is alive.
pub(super) const CHECK_PEERS: Duration = Duration::from_millis(10);

/// How long to watch, when to sleep, and when to look who is alive.
pub(super) struct Backoff {
    pub(super) since: Instant,
    pub(super) looked: Instant,
    pub(super) deadline: Option<Instant>,
    /// Something was wrong: what others did before that is seen at the next look.
    pub(super) in_doubt: bool,
}

impl Backoff {
    pub(super) fn new(timeout: Duration) -> Backoff {
        let now = Instant::now();
        Backoff { since: now, looked: now, deadline: now.checked_add(timeout), in_doubt: false }
    }

    /// Something has happened.
    pub(super) fn renew(&mut self) {
        self.since = Instant::now();
        self.in_doubt = false;
    }

    /// Waits a moment: whether it is time to look who is alive.
    pub(super) fn is_over(&mut self, crowded: bool) -> bool {
        let now = Instant::now();
        if now.duration_since(self.since) < SPIN {
            if crowded {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
            return false;
        }
        if self.in_doubt {
            return true;
        }
        std::thread::sleep(SLEEP);
        let over = now.duration_since(self.looked) >= CHECK_PEERS;
        if over {
            self.looked = now;
        }
        over
    }

    pub(super) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Fails if something was wrong at the last look already, and nothing has happened since.
    pub(super) fn doubt(&mut self, why: impl FnOnce() -> Error) -> Result<(), Error> {
        if self.in_doubt {
            Err(why())
        } else {
            self.in_doubt = true;
            Ok(())
        }
    }
}
