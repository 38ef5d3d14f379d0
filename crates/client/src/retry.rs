//! How long to wait before trying again: a decision about time that reads no clock.

use std::time::Duration;

/// Pauses that double from the first to the longest.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Default for Backoff {
    /// For requests to a master.
    fn default() -> Backoff {
        Backoff::new(Duration::from_millis(50), Duration::from_secs(5))
    }
}

impl Backoff {
    /// The first pause, and the one that none is longer than.
    pub fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, next: first }
    }

    /// The pause before the next try.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause
    }

    /// The pause before the next try, or `None` when no time is left. The last one is cut so that one more try happens
    /// just before the end.
    pub fn pause_within(&mut self, left: Duration) -> Option<Duration> {
        (!left.is_zero()).then(|| self.pause().min(left))
    }

    /// It worked: the next pause is the first again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_end_with_the_time_that_is_left() {
        let milliseconds = Duration::from_millis;
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (1..=9).map(|_| backoff.pause()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000].map(milliseconds));
        assert_eq!(backoff.pause_within(milliseconds(100)), Some(milliseconds(100)));
        assert_eq!(backoff.pause_within(Duration::ZERO), None);
        backoff.reset();
        assert_eq!(backoff.pause(), milliseconds(50));
    }
}
