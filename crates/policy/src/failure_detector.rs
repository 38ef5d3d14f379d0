//! When a peer that should send heartbeats has been silent for too long.
//!
//! Both ends of a control connection send something at least once an interval. Only time in which this process was awake
//! counts: one that was stopped, or whose machine slept, would otherwise take its own absence for everybody's. So the
//! clock of [`FailureDetector`] leaves out what passed between two ticks beyond the interval in which they are due.

use std::time::Duration;

/// A heartbeat failure detector, whose clock stops while this process is stopped.
#[derive(Debug, Clone)]
pub struct FailureDetector {
    interval: Duration,
    window: Duration,
    last_tick: Duration,
    slept: Duration,
    counts_sleep: bool,
}

impl FailureDetector {
    /// Peers send every `interval` and are suspected after `window`; `now` is any monotonic offset.
    pub fn new(interval: Duration, window: Duration, now: Duration) -> FailureDetector {
        FailureDetector { interval, window, last_tick: now, slept: Duration::ZERO, counts_sleep: false }
    }

    /// The clock does not stop: for a process whose peers will not wait longer because it slept.
    pub fn counting_sleep(self) -> FailureDetector {
        FailureDetector { counts_sleep: true, ..self }
    }

    /// How often both sides send, and [`FailureDetector::tick`] is due.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// To be called at least once an interval; returns how long this process was away.
    pub fn tick(&mut self, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.last_tick);
        self.last_tick = self.last_tick.max(now);
        // Twice the interval: a busy machine is late without having slept.
        let away = if passed > 2 * self.interval { passed - self.interval } else { Duration::ZERO };
        if !self.counts_sleep {
            self.slept += away;
        }
        away
    }

    /// Whether this process was away for so long that peers, which wait for `window`, have given it up: what they sent
    /// before is void.
    pub fn outlasts(&self, away: Duration, window: Duration) -> bool {
        away + self.interval > window
    }

    /// The time on the detector's clock; to be kept when a peer is heard.
    pub fn awake_time(&self, now: Duration) -> Duration {
        now.saturating_sub(self.slept)
    }

    /// Why a peer that was last heard at this [`FailureDetector::awake_time`] is suspected, once it was silent too long.
    pub fn suspicion(&self, heard: Duration, now: Duration) -> Option<String> {
        let silent = self.awake_time(now).saturating_sub(heard);
        (silent > self.window).then(|| format!("no heartbeat for {:.1} s", silent.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::FailureDetector;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_peer_is_suspected_after_the_window() {
        let mut detector = FailureDetector::new(SECOND, 5 * SECOND, Duration::ZERO);
        let heard = detector.awake_time(SECOND);
        for now in 2..=6 {
            detector.tick(now * SECOND);
            assert_eq!(detector.suspicion(heard, now * SECOND), None);
        }
        detector.tick(7 * SECOND);
        assert_eq!(detector.suspicion(heard, 7 * SECOND).as_deref(), Some("no heartbeat for 6.0 s"));
    }

    #[test]
    fn time_while_this_process_was_stopped_does_not_count_as_silence() {
        let mut detector = FailureDetector::new(SECOND, 5 * SECOND, Duration::ZERO);
        let heard = detector.awake_time(SECOND);
        detector.tick(SECOND);
        assert_eq!(detector.tick(61 * SECOND), 59 * SECOND);
        assert_eq!(detector.suspicion(heard, 61 * SECOND), None, "one interval has passed awake");
        for now in 62..=65 {
            detector.tick(now * SECOND);
        }
        assert_eq!(detector.suspicion(heard, 65 * SECOND), None);
        detector.tick(66 * SECOND);
        assert!(detector.suspicion(heard, 66 * SECOND).is_some());
    }

    #[test]
    fn a_clock_that_jumps_back_changes_nothing() {
        let mut detector = FailureDetector::new(SECOND, 5 * SECOND, 10 * SECOND);
        let heard = detector.awake_time(10 * SECOND);
        assert_eq!(detector.tick(2 * SECOND), Duration::ZERO);
        assert_eq!(detector.suspicion(heard, 2 * SECOND), None);
        assert_eq!(detector.tick(11 * SECOND), Duration::ZERO);
    }
}
