//! When a peer that should speak regularly has been silent for too long.
//!
//! Both ends of a control connection say something at least once an interval. Time is counted while we ourselves are
//! awake: a process that was paused, or a machine that slept, would otherwise take its own absence for everybody's.
//! So the clock of [`Silence`] leaves out what passed between two looks beyond the interval in which they are due.

use std::time::Duration;

/// A clock that stands still while we do.
#[derive(Debug, Clone)]
pub struct Silence {
    interval: Duration,
    window: Duration,
    looked: Duration,
    slept: Duration,
    counts_sleep: bool,
}

impl Silence {
    /// Peers speak every `interval` and are believed for `window`; `now` is any monotonic offset.
    pub fn new(interval: Duration, window: Duration, now: Duration) -> Silence {
        Silence { interval, window, looked: now, slept: Duration::ZERO, counts_sleep: false }
    }

    /// Does not stand still: for one whose peers will not wait longer for it because it slept.
    pub fn counting_sleep(self) -> Silence {
        Silence { counts_sleep: true, ..self }
    }

    /// How often both sides speak, and [`Silence::look`] is due.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// To be called at least once an interval: tells how long we were away.
    pub fn look(&mut self, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.looked);
        self.looked = self.looked.max(now);
        // Twice the interval: a busy machine is late without having slept.
        let away = if passed > 2 * self.interval { passed - self.interval } else { Duration::ZERO };
        if !self.counts_sleep {
            self.slept += away;
        }
        away
    }

    /// Whether an absence of ours was so long that others, who believe a silent peer for `window`, have given us up: what
    /// they sent before is void.
    pub fn outlasts(&self, away: Duration, window: Duration) -> bool {
        away + self.interval > window
    }

    /// What to note down when a peer is heard.
    pub fn mark(&self, now: Duration) -> Duration {
        now.saturating_sub(self.slept)
    }

    /// How a peer's silence since a [`Silence::mark`] is put to people, once it is too long.
    pub fn verdict(&self, heard: Duration, now: Duration) -> Option<String> {
        let silent = self.mark(now).saturating_sub(heard);
        (silent > self.window).then(|| format!("no heartbeat for {:.1} s", silent.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::Silence;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_peer_is_silent_after_the_window() {
        let mut silence = Silence::new(SECOND, 5 * SECOND, Duration::ZERO);
        let heard = silence.mark(SECOND);
        for now in 2..=6 {
            silence.look(now * SECOND);
            assert_eq!(silence.verdict(heard, now * SECOND), None);
        }
        silence.look(7 * SECOND);
        assert_eq!(silence.verdict(heard, 7 * SECOND).as_deref(), Some("no heartbeat for 6.0 s"));
    }

    #[test]
    fn our_own_absence_is_nobodys_silence() {
        let mut silence = Silence::new(SECOND, 5 * SECOND, Duration::ZERO);
        let heard = silence.mark(SECOND);
        silence.look(SECOND);
        assert_eq!(silence.look(61 * SECOND), 59 * SECOND);
        assert_eq!(silence.verdict(heard, 61 * SECOND), None, "one interval has passed awake");
        for now in 62..=65 {
            silence.look(now * SECOND);
        }
        assert_eq!(silence.verdict(heard, 65 * SECOND), None);
        silence.look(66 * SECOND);
        assert!(silence.verdict(heard, 66 * SECOND).is_some());
    }

    #[test]
    fn a_clock_that_jumps_back_changes_nothing() {
        let mut silence = Silence::new(SECOND, 5 * SECOND, 10 * SECOND);
        let heard = silence.mark(10 * SECOND);
        assert_eq!(silence.look(2 * SECOND), Duration::ZERO);
        assert_eq!(silence.verdict(heard, 2 * SECOND), None);
        assert_eq!(silence.look(11 * SECOND), Duration::ZERO);
    }
}
