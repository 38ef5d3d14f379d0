//! Heartbeats on a control connection: how often both ends speak, and when a silent one is given up.

use std::time::{Duration, Instant};

use instep_policy::failure_detector::FailureDetector;

/// torchrun's keep-alive settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// `keep_alive_interval`.
    pub interval: Duration,
    /// `keep_alive_max_attempt`.
    pub attempts: u32,
}

impl Heartbeat {
    /// How long a launcher waits for a silent coordinator. Then it ends its workers at once.
    pub fn window(&self) -> Duration {
        self.interval * self.attempts
    }

    /// How long the coordinator waits for a silent launcher: longer by the interval since its last message and the one
    /// in which silence is checked, so that the workers behind a cut link have been killed before others take their ranks.
    pub fn coordinator_window(&self) -> Duration {
        self.window() + 2 * self.interval
    }
}

/// How long the coordinator has been silent, as this launcher perceives it.
#[derive(Debug)]
pub(super) struct CoordinatorMonitor {
    began: Instant,
    detector: FailureDetector,
    heartbeat: Heartbeat,
    /// When the coordinator was last heard, on the clock that stops while this process is stopped.
    heard: Duration,
    /// When this launcher sent the newest heartbeat that the coordinator has answered, on the clock that does not stop.
    confirmed: Duration,
}

impl CoordinatorMonitor {
    pub(super) fn new(heartbeat: Heartbeat, began: Instant) -> CoordinatorMonitor {
        CoordinatorMonitor {
            began,
            detector: FailureDetector::new(heartbeat.interval, heartbeat.window(), Duration::ZERO),
            heartbeat,
            heard: Duration::ZERO,
            confirmed: Duration::ZERO,
        }
    }

    pub(super) fn heard(&mut self) {
        self.heard = self.detector.awake_time(self.began.elapsed());
    }

    /// The coordinator has answered the heartbeat that was sent at this time, in milliseconds.
    pub(super) fn confirmed(&mut self, at: u64) {
        self.confirmed = Duration::from_millis(at).min(self.began.elapsed());
    }

    pub(super) fn may_have_been_dropped(&mut self) -> bool {
        let now = self.began.elapsed();
        self.detector.tick(now);
        now.saturating_sub(self.confirmed) > self.heartbeat.window() + self.heartbeat.interval
    }

    /// Why the coordinator counts as lost, once it has been silent for too long.
    pub(super) fn suspicion(&self) -> Option<String> {
        self.detector.suspicion(self.heard, self.began.elapsed())
    }

    pub(super) fn check_by(&self) -> Instant {
        Instant::now() + self.detector.interval()
    }
}
